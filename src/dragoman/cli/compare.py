"""dragoman compare: several models on the same pairs: scores, paired tests, quality by source length and by rarity."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dragoman.cli.evaluate import parse_metrics
from dragoman.cli.options import (
    Beam,
    Columns,
    Device,
    MediaFolders,
    Plugins,
    console,
    load_plugins,
    print_to_stderr,
    resolve_columns,
)

if TYPE_CHECKING:
    from dragoman.inspection.assessment import Assessment
    from dragoman.inspection.views import ViewData
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
        Path | None, typer.Option(help="Write a page with the scores and the worst examples into this file.")
    ] = None,
    columns: Columns = "",
    device: Device = "auto",
    plugins: Plugins = [],
    files: MediaFolders = [],
) -> None:
    """Compare models on the same pairs: scores, paired bootstrap tests against the first model, quality by length.

    Quality is also by the count of a source's rarest token: in the first model's training data if that is there and
    small, else in these sources.
    """
    from dragoman.core.errors import UserError

    if len(models) < 2:
        raise UserError("compare needs two models or more; use `dragoman evaluate` for one")
    if len({*models}) < len(models):
        raise UserError("the same model is there twice; name different models")
    load_plugins(plugins)
    parts = parse_metrics(metrics)
    from dragoman.data.readers import read_pairs
    from dragoman.inference import pipeline
    from dragoman.inspection.assessment import assess
    from dragoman.inspection.length_units import length_unit
    from dragoman.inspection.views.quality import count_training_tokens

    pipelines = {name: pipeline.load(name, device).with_media_roots(files) for name in models}
    first = pipelines[models[0]]
    if png is not None and not length_unit(first):
        raise UserError(f"{png}: there is no quality by length, because images all have one size; leave --png out")
    examples = list(read_pairs(data, columns=resolve_columns(columns, first), extra_targets=True))
    assessments = {name: assess(one, examples, parts, beam=beam) for name, one in pipelines.items()}
    counts = count_training_tokens(first)
    if as_json:
        print(json.dumps(_as_json(assessments, counts), indent=1))
    else:
        _print_tables(assessments, counts)
    if png is not None:
        _draw_curves(assessments, png)
    if html is not None:
        _write_page(assessments, counts, data, html)


def _as_json(assessments: dict[str, Assessment], counts: Counts) -> ViewData:
    """Return each model's scores, tests against the first model, and scores by length and rarity as JSON."""
    from dataclasses import asdict

    from dragoman.inspection.assessment import compare_scores
    from dragoman.inspection.views.quality import group_by_length, group_by_rarity

    first = next(iter(assessments.values()))
    by_length = {metric: group_by_length(assessments, metric) for metric in first.scores}
    by_rarity = {metric: group_by_rarity(assessments, metric, counts) for metric in first.scores}
    return {
        name: one.as_json()
        | {
            "against_first": {
                m: asdict(compare_scores(first.scores[m], s)) for m, s in one.scores.items() if one is not first
            },
            "by_length": {m: [asdict(bucket) for bucket in by_length[m][name]] for m in one.scores},
            "by_rarity": {m: [asdict(bucket) for bucket in by_rarity[m][name]] for m in one.scores},
            "length_unit": first.length_unit or None,
            "rarity_of": _rarity_of(counts),
        }
        for name, one in assessments.items()
    }


def _rarity_of(counts: Counts) -> str:
    """Return what token counts are of: "training", or "these sources" if `counts` is None."""
    return "these sources" if counts is None else "training"


def _print_tables(assessments: dict[str, Assessment], counts: Counts) -> None:
    """Print the scores, the tests against the first model, and the first metric by length and rarity."""
    from rich.table import Column, Table

    from dragoman.inspection.assessment import compare_scores
    from dragoman.inspection.views.quality import group_by_length, group_by_rarity, omitted_ranges

    out = console()
    (first_name, first), *others = assessments.items()
    table = Table(Column("model", overflow="fold"), *first.scores, "perplexity", box=None, pad_edge=False)
    for name, one in assessments.items():
        table.add_row(
            name, *(f"{s.value:.2f} [{s.low:.2f}, {s.high:.2f}]" for s in one.scores.values()), f"{one.perplexity:.3f}"
        )
    out.print(table)
    out.print()
    for name, one in others:
        for metric, score in one.scores.items():
            test = compare_scores(first.scores[metric], score)
            verdict = "a real difference" if test.p < 0.05 else "may be chance"
            out.print(
                f"{name} against {first_name}: {metric} {test.difference:+.2f} [{test.low:+.2f}, {test.high:+.2f}], "
                f"p = {test.p:.3f}: {verdict}",
                markup=False,
                soft_wrap=True,
            )
    metric = next(iter(first.scores))
    _print_ranges(
        f"{metric} by source length in {first.length_unit}", first.length_unit, group_by_length(assessments, metric)
    )
    title = f"{metric} by the rarest source token: its count in {_rarity_of(counts)}"
    _print_ranges(title, "count", group_by_rarity(assessments, metric, counts))
    if missing := omitted_ranges(first):
        out.print(f"\n{missing}", markup=False, soft_wrap=True)


def _print_ranges(title: str, unit: str, buckets: Buckets) -> None:
    """Print a row for each range of pairs and a column for each model; nothing if there are no ranges."""
    from rich.table import Table

    if not any(buckets.values()):
        return
    out = console()
    table = Table(unit, "pairs", *buckets, title=title, title_justify="left", box=None, pad_edge=False)
    for row in zip(*buckets.values(), strict=True):
        low, high, count = row[0].low, row[0].high, row[0].count
        span = f"{low:,}" if low == high else f"{low:,}–{high:,}"
        table.add_row(span, f"{count:,}", *(f"{bucket.score:.2f}" for bucket in row))
    out.print()
    out.print(table)


def _write_page(assessments: dict[str, Assessment], counts: Counts, data: str, html: Path) -> None:
    """Write the quality report of the models as an HTML page into a file, and say so on the standard error."""
    from dragoman.core import files
    from dragoman.inspection.render.page import render_page
    from dragoman.inspection.views.quality import quality_report

    files.make_folder(html.parent)
    page = render_page(
        [{"view": "quality", **quality_report(assessments, counts=counts)}], f"Models compared on {data}"
    )
    files.write_file(html, page.encode())
    print_to_stderr(f"wrote {html}")


def _draw_curves(assessments: dict[str, Assessment], png: Path) -> None:
    """Draw the first metric by source length into an image file, and say so on the standard error."""
    from dragoman.inspection.render.image import CurvePoint, draw_quality_curves
    from dragoman.inspection.views.quality import group_by_length

    first = next(iter(assessments.values()))
    metric = next(iter(first.scores))
    series = {
        name: [CurvePoint((b.low + b.high) / 2, b.score, *b.interval, b.count) for b in buckets]
        for name, buckets in group_by_length(assessments, metric).items()
    }
    draw_quality_curves(
        png, series, xlabel=f"source length in {first.length_unit}", ylabel=metric, title="Quality by source length"
    )
    print_to_stderr(f"wrote {png}")
