"""dragoman compare: several models on one file; a table, paired tests, quality by source length and by rarity."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dragoman.cli.evaluate import parse_metrics
from dragoman.cli.options import Beam, Columns, Device, Imports, Places, columns_of, console, import_all

if TYPE_CHECKING:
    from dragoman.inspection.assessment import Assessment
    from dragoman.inspection.views.quality import Buckets

    Counts = Mapping[str, int] | None


def compare(
    models: Annotated[list[str], typer.Argument(help="Two or more run or model folders.", metavar="MODEL…")],
    data: Annotated[str, typer.Option("--data", help="The pairs to compare on.")],
    metrics: Annotated[
        str, typer.Option(help="Names separated by commas; see `dragoman list metrics`.")
    ] = "bleu,chrf,exact",
    beam: Beam = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    png: Annotated[
        Path | None, typer.Option(help="Draw quality by length (of the first metric) into this file.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write all of it, with the worst examples, as a page into this file.")
    ] = None,
    columns: Columns = "",
    device: Device = "auto",
    modules: Imports = [],
    files: Places = [],
) -> None:
    """Compare models on the same pairs: scores, the first against each other by paired bootstrap, quality by length.

    And by the rarest token of a source: how often it was seen in the first model's training, where the training data is
    still there and small; else how often it is in these sources.
    """
    from dragoman.core.errors import UserError

    if len(models) < 2:
        raise UserError("compare needs two models or more; `dragoman evaluate` is for one")
    if len({*models}) < len(models):
        raise UserError("compare was given the same model twice")
    import_all(modules)
    parts = parse_metrics(metrics)
    from dragoman.data.readers import read_pairs
    from dragoman.inference import pipeline
    from dragoman.inspection.assessment import assess
    from dragoman.inspection.length_units import unit_of
    from dragoman.inspection.views.quality import training_counts

    opened = {name: pipeline.load(name, device).with_files(files) for name in models}
    if png is not None and not unit_of(opened[models[0]]):
        why = "the sources have no length to go by (images are all of one size)"
        raise UserError(f"{png}: there is no quality by length to draw, for {why}; leave --png out")
    named = columns_of(columns, opened[models[0]])
    examples = list(read_pairs(data, columns=named, extra_targets=True))
    found = {name: assess(model, examples, parts, beam=beam) for name, model in opened.items()}
    counts = training_counts(opened[models[0]])
    if as_json:
        print(json.dumps(_json(found, counts), indent=1))
    else:
        _print(found, counts)
    if png is not None:
        _draw(found, png)
    if html is not None:
        _write(found, counts, data, html)


def _json(found: dict[str, Assessment], counts: Counts) -> dict[str, Any]:
    from dataclasses import asdict

    from dragoman.inspection.assessment import against
    from dragoman.inspection.views.quality import grouped_by_length, grouped_by_rarity

    first = next(iter(found.values()))
    by_length = {metric: grouped_by_length(found, metric) for metric in first.scores}
    by_rarity = {metric: grouped_by_rarity(found, metric, counts) for metric in first.scores}
    return {
        name: one.as_json()
        | {
            "against_first": {
                m: asdict(against(first.scores[m], s)) for m, s in one.scores.items() if one is not first
            },
            "by_length": {m: [asdict(bucket) for bucket in by_length[m][name]] for m in one.scores},
            "by_rarity": {m: [asdict(bucket) for bucket in by_rarity[m][name]] for m in one.scores},
            "length_of": first.unit or None,
            "rarity_of": _rarity_of(counts),
        }
        for name, one in found.items()
    }


def _rarity_of(counts: Counts) -> str:
    return "these sources" if counts is None else "training"


def _print(found: dict[str, Assessment], counts: Counts) -> None:
    from rich.table import Column, Table

    from dragoman.inspection.assessment import against
    from dragoman.inspection.views.quality import grouped_by_length, grouped_by_rarity, left_out

    out = console()
    (first_name, first), *others = found.items()
    table = Table(Column("model", overflow="fold"), *first.scores, "perplexity", box=None, pad_edge=False)
    for name, one in found.items():
        table.add_row(
            name, *(f"{s.value:.2f} [{s.low:.2f}, {s.high:.2f}]" for s in one.scores.values()), f"{one.perplexity:.3f}"
        )
    out.print(table)
    out.print()
    for name, one in others:
        for metric, score in one.scores.items():
            test = against(first.scores[metric], score)
            verdict = "a real difference" if test.p < 0.05 else "may be chance"
            out.print(
                f"{name} against {first_name}: {metric} {test.difference:+.2f} [{test.low:+.2f}, {test.high:+.2f}], "
                f"p = {test.p:.3f}: {verdict}",
                markup=False,
                soft_wrap=True,
            )
    metric = next(iter(first.scores))
    _print_ranges(f"{metric} by source length in {first.unit}", first.unit, grouped_by_length(found, metric))
    title = f"{metric} by the rarest source token: its count in {_rarity_of(counts)}"
    _print_ranges(title, "count", grouped_by_rarity(found, metric, counts))
    if missing := left_out(first):
        out.print(f"\n{missing}", markup=False, soft_wrap=True)


def _print_ranges(title: str, what: str, buckets: Buckets) -> None:
    """A row for each range of pairs, a column for each model; nothing where there are no ranges."""
    from rich.table import Table

    if not any(buckets.values()):
        return
    out = console()
    table = Table(what, "pairs", *buckets, title=title, title_justify="left", box=None, pad_edge=False)
    for row in zip(*buckets.values(), strict=True):
        low, high, count = row[0].low, row[0].high, row[0].count
        span = f"{low:,}" if low == high else f"{low:,}–{high:,}"
        table.add_row(span, f"{count:,}", *(f"{bucket.score:.2f}" for bucket in row))
    out.print()
    out.print(table)


def _write(found: dict[str, Assessment], counts: Counts, data: str, html: Path) -> None:
    from dragoman.core import files
    from dragoman.inspection.render.page import page
    from dragoman.inspection.views.quality import report

    files.make_folder(html.parent)
    files.write(html, page([report(found, counts=counts)], f"Models compared on {data}").encode())
    console(error=True).print(f"wrote {html}", markup=False, soft_wrap=True)


def _draw(found: dict[str, Assessment], png: Path) -> None:
    from dragoman.inspection.render.image import Point, curves
    from dragoman.inspection.views.quality import grouped_by_length

    first = next(iter(found.values()))
    metric = next(iter(first.scores))
    series = {
        name: [Point((b.low + b.high) / 2, b.score, *b.interval, b.count) for b in buckets]
        for name, buckets in grouped_by_length(found, metric).items()
    }
    curves(png, series, xlabel=f"source length in {first.unit}", ylabel=metric, title="Quality by source length")
    console(error=True).print(f"wrote {png}", markup=False, soft_wrap=True)
