"""dragoman sweep: which values of a config's options train the best model, by many trials."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dragoman.cli import options
from dragoman.cli.options import console, load_plugins, plain_table, print_text, print_to_stderr
from dragoman.core.errors import UserError

if TYPE_CHECKING:
    from dragoman.jobs.sweep.results import SweepResults

SHOWN = 20  # trials of the table


def sweep(
    config: Annotated[str | None, typer.Argument(help="A config file (.yaml).", metavar="[CONFIG]")] = None,
    trials: Annotated[
        int, typer.Option(help="How many finished trials there are to be in the folder, earlier ones included.")
    ] = 20,
    space: Annotated[
        str | None, typer.Option(help="A space file (.yaml) or a preset space. Default: the one of the encoder.")
    ] = None,
    preset: Annotated[str | None, typer.Option(help="A named config to build on; see `dragoman list presets`.")] = None,
    set: options.Set = [],
    run: Annotated[Path | None, typer.Option(help="The sweep's folder. Default: runs/NAME-sweep.")] = None,
    sampler: Annotated[Literal["tpe", "random"], typer.Option(help="What proposes the values of a trial.")] = "tpe",
    pruner: Annotated[
        Literal["asha", "median", "none"], typer.Option(help="What stops a trial that is not promising.")
    ] = "asha",
    seed: Annotated[int, typer.Option(help="Of the sampler; the trainings have the config's.", min=0)] = 1,
    executor: Annotated[Literal["local", "ray"], typer.Option(help="Where the trials run.")] = "local",
    workers: Annotated[
        int | None, typer.Option(help="Trials at once. Default: one, or one for each GPU; with Ray, all that fit.")
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(help="No trial begins that would not end within so many minutes.")
    ] = None,
    trial_minutes: Annotated[
        float | None, typer.Option(help="The time of each trial, in place of the config's steps.")
    ] = None,
    status: Annotated[bool, typer.Option("--status", help="Print the table as it is now, and train nothing.")] = False,
    as_json: options.AsJSON = False,
    plugins: options.Plugins = [],
) -> None:
    """Train trials of a config with other values, and find the best. The same command again goes on."""
    if config is None and preset is None:
        raise UserError("sweep needs a config file or --preset NAME (see `dragoman list presets`)")
    load_plugins(plugins)
    from dragoman.jobs.sweep import driver, results
    from dragoman.reports.sweep_report import write_sweep_report

    request = driver.SweepRequest(
        *(config, trials, space, preset, tuple(set), run, sampler, pruner, seed),
        *(executor, workers, minutes, trial_minutes, tuple(plugins)),
    )
    opened = driver.open_sweep(request, may_begin=not status)
    for notice in opened.notices:
        print_to_stderr(notice)
    if not status:
        try:
            for sentence in driver.run(request, opened):
                print_to_stderr(sentence)
        finally:
            found = results.write_results(opened.folder)
            if found.trials:
                write_sweep_report(opened.folder.path)
    else:
        found = results.collect_results(opened.folder)
    if as_json:
        print(json.dumps(found.as_json(), indent=1))
    else:
        _print_results(found, opened.folder.path)


def _print_results(found: SweepResults, folder: Path) -> None:
    from rich.table import Column

    from dragoman.jobs.sweep.driver import describe_params

    table = plain_table("trial", "", found.metric, "step", Column("values", overflow="fold"))
    for trial in found.trials[:SHOWN]:
        value = "" if trial.value is None else f"{trial.value:.4g}"
        table.add_row(str(trial.number), trial.state, value, str(trial.step or ""), describe_params(trial.params))
    console().print(table)
    if len(found.trials) > SHOWN:
        print_text(f"… and {len(found.trials) - SHOWN} more in {folder / 'trials.tsv'}")
    if found.best is not None:
        for finding in found.findings():
            print_text(f"· {finding}")
        print_text(f"{folder / 'best.yaml'}: {found.note}")
        print_text(f"report: {folder / 'report.html'}")
