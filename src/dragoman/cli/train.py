"""dragoman train: a config, a preset or both → a run folder with a trained model.

Under torchrun every rank runs this command; rank 0 shows the progress.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dragoman.cli.options import (
    AllowChange,
    ExplainEngine,
    Plugins,
    Set,
    console,
    load_plugins,
    print_to_stderr,
    program_name,
)

if TYPE_CHECKING:
    from dragoman.config.loading import LoadedConfig


def train(
    config: Annotated[Path | None, typer.Argument(help="A config file (YAML).", metavar="[CONFIG]")] = None,
    preset: Annotated[str | None, typer.Option(help="A named config to build on; see `dragoman list presets`.")] = None,
    set: Set = [],
    run: Annotated[Path | None, typer.Option(help="The run folder. Default: runs/<name>.")] = None,
    explain: Annotated[
        bool, typer.Option(help="Print every value of the config and where it comes from; train nothing.")
    ] = False,
    explain_engine: ExplainEngine = False,
    allow_change: AllowChange = [],
    plugins: Plugins = [],
) -> None:
    """Train a model. The same command again resumes a run that was stopped or killed."""
    from dragoman.core.errors import TrainingDiverged, TrainingStopped, UserError

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
    """Print every value of a config with its origin: as a table on a terminal, else as tab-separated lines."""
    from rich.table import Column, Table

    from dragoman import config as configs

    if not console().is_terminal:
        for key, value, origin in configs.explain_origins(loaded):
            print(key, "null" if value is None else value, origin, sep="\t")
        return
    columns = [Column(name, overflow="fold") for name in ("key", "value", "from")]
    table = Table(*columns, box=None, pad_edge=False)
    for key, value, origin in configs.explain_origins(loaded):
        table.add_row(key, "null" if value is None else str(value), origin)
    console().print(table)
