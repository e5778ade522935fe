"""dragoman compare: several models on the same pairs: scores, paired tests, quality by source length and by rarity."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dragoman.cli import options
from dragoman.cli.options import console, load_plugins, plain_table, print_text, print_to_stderr
from dragoman.cli.output import write_page
from dragoman.cli.source_columns import read_pairs_for
from dragoman.core.errors import UserError

if TYPE_CHECKING:
    from dragoman.inspection.assessment import Assessment
    from dragoman.inspection.views import ViewData
    from dragoman.inspection.views.quality import Buckets

    Counts = Mapping[str, int] | None


def compare(
    models: Annotated[
        list[str], typer.Argument(help="Two or more run folders, model folders or packed models.", metavar="MODEL…")
    ],
    data: Annotated[str, typer.Option("--data", help="The pairs to compare on.")],
    metrics: Annotated[
        str, typer.Option(help="Names separated by commas; see `dragoman list metrics`.")
    ] = "bleu,chrf,exact",
    beam: options.Beam = None,
    as_json: options.AsJSON = False,
    png: Annotated[
        Path | None, typer.Option(help="Draw quality by length (of the first metric) into this file.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write a page with the scores and the worst examples into this file.")
    ] = None,
    columns: options.Columns = "",
    device: options.Device = "auto",
    plugins: options.Plugins = [],
    files: options.MediaFolders = [],
) -> None:
    """Compare models on the same pairs: scores, paired bootstrap tests against the first model, quality by length.

    Quality is also by the count of a source's rarest token: in the first model's training data if that is there and
    small, else in these sources.
    """
    if len(models) < 2:
        raise UserError("compare needs two models or more; use `dragoman evaluate` for one")
    if len({*models}) < len(models):
        raise UserError("the same model is there twice; name different models")
    load_plugins(plugins)
    from dragoman.evaluation.metrics import parse_metrics

    parts = parse_metrics(metrics)
    from dragoman.inference import pipeline
    from dragoman.inspection.assessment import assess
    from dragoman.inspection.length_units import length_unit
    from dragoman.inspection.render.image import draw_quality_curves
    from dragoman.inspection.views.quality import count_training_tokens, group_by_length, quality_report

    pipelines = {name: pipeline.load(name, device).with_media_roots(files) for name in models}
    first = pipelines[models[0]]
    if png is not None and not length_unit(first):
        raise UserError(f"{png}: there is no quality by length, because images all have one size; leave --png out")
    examples = list(read_pairs_for(data, columns, first, extra_targets=True))
    assessments = {name: assess(one, examples, parts, beam=beam) for name, one in pipelines.items()}
    counts = count_training_tokens(first)
    if as_json:
        print(json.dumps(_as_json(assessments, counts), indent=1))
    else:
        _print_tables(assessments, counts)
    if png is not None:
        metric = next(iter(assessments[models[0]].scores))
        curves, xlabel = group_by_length(assessments, metric), f"source length in {length_unit(first)}"
        draw_quality_curves(png, curves, xlabel=xlabel, ylabel=metric, title="Quality by source length")
        print_to_stderr(f"wrote {png}")
    if html is not None:
        write_page(html, [quality_report(assessments, counts=counts)], f"Models compared on {data}")


def _as_json(assessments: dict[str, Assessment], counts: Counts) -> ViewData:
    from dragoman.inspection.assessment import compare_scores
    from dragoman.inspection.views.quality import group_by_length, group_by_rarity, rarity_of

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
            "rarity_of": rarity_of(counts),
        }
        for name, one in assessments.items()
    }


def _print_tables(assessments: dict[str, Assessment], counts: Counts) -> None:
    from rich.table import Column

    from dragoman.inspection.assessment import compare_scores
    from dragoman.inspection.views.quality import explain_omitted_groups, group_by_length, group_by_rarity, rarity_of

    (first_name, first), *others = assessments.items()
    table = plain_table(Column("model", overflow="fold"), *first.scores, "perplexity")
    for name, one in assessments.items():
        scores = (f"{s.value:.2f} [{s.low:.2f}, {s.high:.2f}]" for s in one.scores.values())
        table.add_row(name, *scores, f"{one.perplexity:.3f}")
    console().print(table, "")
    for name, one in others:
        for metric, score in one.scores.items():
            test = compare_scores(first.scores[metric], score)
            verdict = "a real difference" if test.p < 0.05 else "may be chance"
            interval = f"[{test.low:+.2f}, {test.high:+.2f}]"
            result = f"{metric} {test.difference:+.2f} {interval}, p = {test.p:.3f}: {verdict}"
            print_text(f"{name} against {first_name}: {result}")
    if others:
        print_text("(by the test pairs; another seed of the same training may differ by as much)")
    metric = next(iter(first.scores))
    title = f"{metric} by source length in {first.length_unit}"
    _print_ranges(title, first.length_unit, group_by_length(assessments, metric))
    title = f"{metric} by the rarest source token: its count in {rarity_of(counts)}"
    _print_ranges(title, "count", group_by_rarity(assessments, metric, counts))
    if missing := explain_omitted_groups(first):
        print_text(f"\n{missing}")


def _print_ranges(title: str, unit: str, buckets: Buckets) -> None:
    """Print a row for each range of pairs and a column for each model; nothing if there are no ranges."""
    if not any(buckets.values()):
        return
    table = plain_table(unit, "pairs", *buckets, title=title)
    for row in zip(*buckets.values(), strict=True):
        low, high, count = row[0].low, row[0].high, row[0].count
        span = f"{low:,}" if low == high else f"{low:,}–{high:,}"
        table.add_row(span, f"{count:,}", *(f"{bucket.score:.2f}" for bucket in row))
    console().print("", table)
