"""dragoman data curve: what twice the pairs may give."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dragoman.cli import options
from dragoman.cli.options import console, plain_table, print_text
from dragoman.core.errors import UserError

if TYPE_CHECKING:
    from dragoman.reports.learning_curve import LearningCurve
    from dragoman.training import Report


def curve(
    pairs: Annotated[str, typer.Argument(help="Pairs, or a config file (.yaml).", metavar="PAIRS|CONFIG")],
    minutes: Annotated[
        float | None,
        typer.Option(help="For all three trainings. Default: 10 for pairs, for a config the steps that it says."),
    ] = None,
    test: Annotated[
        str | None, typer.Option(help="The test pairs. Default: held out of the pairs; a config's validation pairs.")
    ] = None,
    metric: Annotated[str, typer.Option(help="A metric. Default: the main one of the task.")] = "",
    run: Annotated[Path | None, typer.Option(help="The folder of the trainings. Default: runs/NAME-curve.")] = None,
    png: Annotated[Path | None, typer.Option(help="Draw the curve into this file: .png, .svg or .pdf.")] = None,
    as_json: options.AsJSON = False,
    columns: Annotated[str, typer.Option(help="The columns of the pairs, as for `dragoman train PAIRS`.")] = "",
    set: options.Set = [],
    plugins: options.Plugins = [],
) -> None:
    """Train on a quarter, a half and all of the pairs, and estimate what twice as many may give."""
    options.load_plugins(plugins)
    if minutes is not None and minutes <= 0:
        raise UserError(f"--minutes must be above 0, found {minutes:g}")
    from dragoman.cli import progress
    from dragoman.data.columns import parse_columns_option
    from dragoman.evaluation.metrics import parse_metrics
    from dragoman.reports import curve_runs
    from dragoman.reports.learning_curve import draw_curve

    parts = parse_metrics(metric)
    if len(parts) > 1:
        raise UserError(f"--metric is '{metric}'; a curve has one")
    if pairs.lower().endswith((".yaml", ".yml")):
        if columns:
            raise UserError("--columns: a config says it in data.columns")
        reports = curve_runs.from_config(pairs, test, run, minutes, tuple(set), *parts)
    else:
        roles = parse_columns_option(columns) if columns else None
        reports = curve_runs.from_pairs(pairs, test, run, minutes, roles, tuple(set), *parts)
    results: list[LearningCurve] = []
    progress.show_training(_keep_result(reports, results))
    result = results[0]
    if as_json:
        print(json.dumps(result.as_json(), indent=1))
    else:
        table = plain_table("pairs", result.metric)
        for row in result.rows():
            table.add_row(*row)
        console().print(table)
        print_text(result.sentence)
    if png is not None:
        draw_curve(png, result)


def _keep_result(reports: Generator[Report, None, LearningCurve], results: list[LearningCurve]) -> Iterator[Report]:
    """Yield reports, and append what the generator returns to `results`."""
    results.append((yield from reports))
