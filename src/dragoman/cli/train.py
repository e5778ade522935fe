"""dragoman train: a config, a preset or both → a run folder with a trained model.

Under torchrun every rank runs this command; rank 0 shows the progress.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dragoman.cli import options
from dragoman.cli.options import console, load_plugins, plain_table, print_to_stderr, program_name
from dragoman.core.errors import TrainingDiverged, TrainingStopped, UserError

if TYPE_CHECKING:
    from dragoman.config.loading import LoadedConfig


def train(
    config: Annotated[Path | None, typer.Argument(help="A config file (YAML).", metavar="[CONFIG]")] = None,
    preset: Annotated[str | None, typer.Option(help="A named config to build on; see `dragoman list presets`.")] = None,
    set: options.Set = [],
    run: Annotated[Path | None, typer.Option(help="The run folder. Default: runs/<name>.")] = None,
    explain: Annotated[
        bool, typer.Option(help="Print every value of the config and where it comes from; train nothing.")
    ] = False,
    explain_engine: options.ExplainEngine = False,
    allow_change: options.AllowChange = [],
    plugins: options.Plugins = [],
) -> None:
    """Train a model. The same command again resumes a run that was stopped or killed."""
    if config is None and preset is None:
        raise UserError("train needs a config file or --preset NAME (see `dragoman list presets`)")
    load_plugins(plugins)
    from dragoman import config as configs

    loaded = configs.load(config, preset, set)
    if explain:
        _print_values(loaded)
        return
    from dragoman import training
    from dragoman.cli import progress
    from dragoman.training.distributed import rank_and_world_size

    reports = training.run(loaded.config, run, allow_change=allow_change)
    if rank_and_world_size()[0] > 0:
        try:
            for _ in reports:
                pass
        except (TrainingStopped, TrainingDiverged) as error:  # on all ranks at once; rank 0 prints it
            raise typer.Exit(error.code) from None
        return
    if explain_engine:
        from dragoman.engines.base import report_config
        from dragoman.inference.device import select_device

        device = select_device(loaded.config.runtime.device)
        print_to_stderr("\n".join(report_config(loaded.config, device).lines()))
    last = progress.show_training(reports)
    if last is not None:
        folder = run or Path("runs") / loaded.config.name
        model = loaded.config.model
        takes_text = model.frontend.name == "tokens" and model.second_source is None
        start, end = ('echo "some source" | ', "") if takes_text else ("", " FILE")
        print_to_stderr(f"try it: {start}{program_name()} predict {folder}{end}")


def _print_values(loaded: LoadedConfig) -> None:
    from rich.table import Column

    from dragoman import config as configs

    rows = [
        (key, "null" if value is None else str(value), origin) for key, value, origin in configs.explain_origins(loaded)
    ]
    if not console().is_terminal:
        print(*("\t".join(row) for row in rows), sep="\n")
        return
    table = plain_table(*(Column(name, overflow="fold") for name in ("key", "value", "from")))
    for row in rows:
        table.add_row(*row)
    console().print(table)
