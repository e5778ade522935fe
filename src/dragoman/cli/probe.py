"""dragoman probe: count a model's known failures; exit code 4 if a check fails."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from dragoman.cli import options
from dragoman.cli.options import console, load_plugins
from dragoman.cli.output import write_page
from dragoman.cli.source_columns import read_pairs_for
from dragoman.core.errors import CheckFailed, UserError


def probe(
    model: options.Model,
    data: Annotated[
        str | None,
        typer.Option(help="Pairs with sources to probe; their targets say where copying is right, and usual lengths."),
    ] = None,
    pairs: Annotated[
        str | None, typer.Option(help="Sources that differ in one word: a TAB b [TAB part of a's output TAB of b's].")
    ] = None,
    neutral: Annotated[
        str | None, typer.Option(help="Sources that leave a gender open: source TAB item; or templates with {}.")
    ] = None,
    items: Annotated[str | None, typer.Option(help="Items for the templates of --neutral, one on each line.")] = None,
    pronouns: Annotated[
        str | None,
        typer.Option(
            help="Pronouns to count in --neutral, as he/him/his,she/her,~they/them; ~ marks one without gender."
        ),
    ] = None,
    limit: Annotated[
        list[str],
        typer.Option(
            help="NAME=FRACTION of inputs that may fail. Default: repetition=0.05, babble=0.25, hallucination=0.25, "
            "copying=0.1, under-translation=0.1, over-translation=0.1, length=0.02, empty=0, pairs=0.1, neutral=0.5."
        ),
    ] = [],
    count: Annotated[
        int, typer.Option(help="Number of sources: the first of --data, or sampled from the vocabulary.", min=1)
    ] = 200,
    beam: options.Beam = None,
    as_json: options.AsJSON = False,
    html: Annotated[Path | None, typer.Option(help="Write the results as a page into this file.")] = None,
    columns: options.Columns = "",
    source_lang: options.SourceLang = None,
    target_lang: options.TargetLang = None,
    device: options.Device = "auto",
    plugins: options.Plugins = [],
) -> None:
    """Count a model's failures: loops, hallucination, copying, omissions, minimal pairs, pronouns, and more.

    Exit code 4 if a check fails.
    """
    load_plugins(plugins)
    from dragoman.inference import pipeline
    from dragoman.inspection.probe_inputs import PRONOUNS, read_minimal_pairs, read_neutral_sources
    from dragoman.inspection.views.probes import check_limits, print_probes, run_probes

    if neutral is None and (items is not None or pronouns is not None):
        raise UserError("--items and --pronouns need --neutral, a file of neutral sources or templates")
    limits = check_limits(parse_limits(limit))
    minimal_pairs = [] if pairs is None else read_minimal_pairs(pairs)
    neutral_sources = [] if neutral is None else read_neutral_sources(neutral, items)
    loaded = pipeline.load(model, device)
    if (reason := run_probes.blocker(loaded)) is not None:  # before --data is read
        raise UserError(reason)
    sources = None
    if data is not None:
        sources = list(islice(read_pairs_for(data, columns, loaded, extra_targets=True), count))
    probes = run_probes(
        loaded,
        sources,
        minimal_pairs=minimal_pairs,
        neutral=neutral_sources,
        limits=limits,
        pronouns=pronouns or PRONOUNS,
        count=count,
        beam=beam,
        source_lang=source_lang,
        target_lang=target_lang,
    )
    if as_json:
        print(json.dumps({"model": model, **probes}, indent=1, ensure_ascii=False))
    else:
        print_probes(console(), probes)
    if html is not None:
        write_page(html, [probes], f"Probes of {model}")
    failed = [check["name"] for check in probes["checks"] if check["failed"]]
    if failed:
        raise CheckFailed(f"{len(failed)} of {len(probes['checks'])} checks did not pass: {', '.join(failed)}")


def parse_limits(texts: Sequence[str]) -> dict[str, float]:
    """Parse the NAME=FRACTION texts of --limit."""
    limits = {}
    for text in texts:
        name, _, fraction = text.partition("=")
        try:
            limits[name.strip()] = float(fraction)
        except ValueError:
            raise UserError(f"--limit: '{text}' is not NAME=FRACTION, as in copying=0.2") from None
    return limits
