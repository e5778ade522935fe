"""dragoman compare: several models on one file; a table, paired tests, quality by source length."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dragoman.cli.evaluate import parse_metrics
from dragoman.cli.options import Beam, Columns, Device, Imports, columns_of, console, import_all

if TYPE_CHECKING:
    from dragoman.inspection.quality import Assessment


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
    columns: Columns = "",
    device: Device = "auto",
    modules: Imports = [],
) -> None:
    """Compare models on the same pairs: scores, the first against each other by paired bootstrap, quality by length."""
    from dragoman.core.errors import UserError

    if len(models) < 2:
        raise UserError("compare needs two models or more; `dragoman evaluate` is for one")
    if len({*models}) < len(models):
        raise UserError("compare was given the same model twice")
    import_all(modules)
    parts = parse_metrics(metrics)
    from dragoman import pipeline
    from dragoman.data.readers import read_pairs
    from dragoman.inspection.quality import assess

    opened = {name: pipeline.load(name, device) for name in models}
    named = columns_of(columns, opened[models[0]])
    examples = list(read_pairs(data, columns=named, extra_targets=True))
    found = {name: assess(model, examples, parts, beam=beam) for name, model in opened.items()}
    if as_json:
        print(json.dumps(_json(found), indent=1))
    else:
        _print(found)
    if png is not None:
        _draw(found, png)


def _json(found: dict[str, Assessment]) -> dict[str, Any]:
    from dataclasses import asdict

    from dragoman.inspection.quality import against, lengths

    first = next(iter(found.values()))
    edges = _edges(found)
    return {
        name: one.as_json()
        | {
            "against_first": {
                m: asdict(against(first.scores[m], s)) for m, s in one.scores.items() if one is not first
            },
            "by_length": {m: [asdict(bucket) for bucket in lengths(one, m, edges)] for m in one.scores},
        }
        for name, one in found.items()
    }


def _edges(found: dict[str, Assessment]) -> list[int]:
    """The first model's length buckets, used for all: their tokens may differ, their pictures must not."""
    from dragoman.inspection.quality import lengths

    first = next(iter(found.values()))
    return [bucket.high for bucket in lengths(first, next(iter(first.scores)))][:-1]


def _print(found: dict[str, Assessment]) -> None:
    from rich.table import Column, Table

    from dragoman.inspection.quality import against, lengths

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
    edges = _edges(found)
    rows = {name: lengths(one, metric, edges) for name, one in found.items()}
    table = Table(
        "source length",
        "pairs",
        *found,
        title=f"{metric} by source length",
        title_justify="left",
        box=None,
        pad_edge=False,
    )
    for i, bucket in enumerate(rows[first_name]):
        cells = [f"{r[i].score:.2f}" if i < len(r) else "–" for r in rows.values()]
        table.add_row(f"{bucket.low}–{bucket.high}", f"{bucket.count:,}", *cells)
    out.print()
    out.print(table)


def _draw(found: dict[str, Assessment], png: Path) -> None:
    from dragoman.inspection.picture import Point, curves
    from dragoman.inspection.quality import lengths

    edges, metric = _edges(found), next(iter(next(iter(found.values())).scores))
    series = {
        name: [Point((b.low + b.high) / 2, b.score, *b.interval, b.count) for b in lengths(one, metric, edges)]
        for name, one in found.items()
    }
    curves(png, series, xlabel="source length in tokens", ylabel=metric, title="Quality by source length")
    console(error=True).print(f"wrote {png}", markup=False)
