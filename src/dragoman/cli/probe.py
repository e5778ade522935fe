"""dragoman probe: how often a model fails in the ways models are known to fail; exit code 4 where it is too often."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dragoman.cli.options import (
    Beam,
    Columns,
    Device,
    Imports,
    Model,
    SourceLang,
    TargetLang,
    columns_of,
    console,
    import_all,
)

if TYPE_CHECKING:
    from rich.console import Console

SHOWN = 3  # examples of each check
WIDEST = 100  # characters of a text in an example

Data = Annotated[
    str | None, typer.Option(help="Pairs to take sources from; their targets say where copying is right, and lengths.")
]
Sources = Annotated[int, typer.Option(help="Sources: the first of --data, or made of the model's vocabulary.", min=1)]
Pairs = Annotated[
    str | None, typer.Option(help="Sources that differ in one word: a TAB b [TAB part of a's output TAB of b's].")
]
Neutral = Annotated[
    str | None, typer.Option(help="Sources that leave a gender open: source TAB item; or templates with {}.")
]
Items = Annotated[str | None, typer.Option(help="What to put into the templates of --neutral, one on each line.")]
Limit = Annotated[
    list[str],
    typer.Option(
        help="NAME=SHARE of inputs that may show a failure. Usual: repetition=0.05, babble=0.25, hallucination=0.25, "
        "copying=0.1, under-translation=0.1, over-translation=0.1, length=0.02, empty=0, pairs=0.1, neutral=0.5."
    ),
]
Pronouns = Annotated[
    str | None,
    typer.Option(
        help="What to count in --neutral, as he/him/his,she/her,~they/them: ~ stands before one without gender."
    ),
]


def probe(
    model: Model,
    data: Data = None,
    pairs: Pairs = None,
    neutral: Neutral = None,
    items: Items = None,
    pronouns: Pronouns = None,
    limit: Limit = [],
    count: Sources = 200,
    beam: Beam = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write the same as a page into this file.")] = None,
    columns: Columns = "",
    source_lang: SourceLang = None,
    target_lang: TargetLang = None,
    device: Device = "auto",
    modules: Imports = [],
) -> None:
    """Count a model's failures: loops, hallucination, copying, parts left out, minimal pairs, pronouns, and more.

    Exit code 4 where a check fails.
    """
    import_all(modules)
    from dragoman.core.errors import CheckFailed, UserError
    from dragoman.data.readers import read_pairs
    from dragoman.inference import pipeline
    from dragoman.inspection.probe_inputs import PRONOUNS, read_neutral, read_swaps
    from dragoman.inspection.views.probes import checked_limits, refuse
    from dragoman.inspection.views.probes import probe as provoke

    if neutral is None and (items is not None or pronouns is not None):
        raise UserError("--items and --pronouns belong to --neutral, a file of neutral sources or of templates")
    limits = checked_limits(parse_limits(limit))
    swaps = [] if pairs is None else read_swaps(pairs)
    sources = [] if neutral is None else read_neutral(neutral, items)
    opened = pipeline.load(model, device)
    refuse(opened)
    named = columns_of(columns, opened)
    found = provoke(
        opened,
        sources=None if data is None else list(islice(read_pairs(data, columns=named, extra_targets=True), count)),
        swaps=swaps,
        neutral=sources,
        limits=limits,
        pronouns=pronouns or PRONOUNS,
        count=count,
        beam=beam,
        source_lang=source_lang,
        target_lang=target_lang,
    )
    if as_json:
        print(json.dumps({"model": model, **found}, indent=1, ensure_ascii=False))
    else:
        _print(found["checks"], console())
    if html is not None:
        _write(found, model, html)
    failed = [check["name"] for check in found["checks"] if check["failed"]]
    if failed:
        raise CheckFailed(f"{len(failed)} of {len(found['checks'])} checks did not pass: {', '.join(failed)}")


def parse_limits(given: Sequence[str]) -> dict[str, float]:
    """NAME=SHARE as on the command line."""
    from dragoman.core.errors import UserError

    limits = {}
    for text in given:
        name, _, share = text.partition("=")
        try:
            limits[name.strip()] = float(share)
        except ValueError:
            raise UserError(f"--limit: '{text}' is not NAME=SHARE, as in copying=0.2") from None
    return limits


def _print(checks: Sequence[dict[str, Any]], out: Console) -> None:
    from rich.table import Column, Table
    from rich.text import Text

    table = Table("check", "found", "limit", "", box=None, pad_edge=False)
    for check in checks:
        verdict = Text("failed", style="red") if check["failed"] else Text("passed", style="green")
        share = check["count"] / max(check["of"], 1)
        table.add_row(check["name"], f"{share:.1%}", f"{check['limit']:.1%}", verdict)
    out.print(table)
    for check in checks:
        if check["count"] or check["table"]:
            out.print(f"\n{check['name']}: {check['sentence']}", markup=False, soft_wrap=True)
        for example in check["examples"][:SHOWN]:
            source, output = _short(example["source"]), _short(example["output"])
            out.print(f"  {source} → {output}   ({example['detail']})", markup=False, soft_wrap=True)
        if check["table"]:
            names = [Column(Text(name), overflow="fold") for name in check["table"]["columns"]]
            counts = Table(*names, box=None, pad_edge=False)
            for row in check["table"]["rows"]:
                counts.add_row(*(Text(str(cell)) for cell in row))
            out.print(counts)


def _short(text: str) -> str:
    return text if len(text) <= WIDEST else f"{text[: WIDEST - 1]}…"


def _write(found: dict[str, Any], model: str, html: Path) -> None:
    from dragoman.core import files
    from dragoman.inspection.render.page import page

    files.write(html, page([found], f"Probes of {model}").encode())
    console(error=True).print(f"wrote {html}", markup=False, soft_wrap=True)
