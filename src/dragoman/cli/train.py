"""dragoman train: a config, a preset or both, or a file of pairs alone → a run folder with a trained model.

Under torchrun every rank runs this command; rank 0 shows the progress.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dragoman.cli import options
from dragoman.cli.options import console, load_plugins, plain_table, print_text, print_to_stderr
from dragoman.core.errors import DataError, TrainingDiverged, TrainingStopped, UserError

if TYPE_CHECKING:
    from dragoman.config import Config
    from dragoman.config.loading import LoadedConfig
    from dragoman.training.autotrain import TrainingRequest

CONFIG_SUFFIXES = (".yaml", ".yml")


def train(
    config: Annotated[
        str | None,
        typer.Argument(help="A config file (.yaml), or pairs, for which a config is chosen.", metavar="[CONFIG|PAIRS]"),
    ] = None,
    preset: Annotated[str | None, typer.Option(help="A named config to build on; see `dragoman list presets`.")] = None,
    set: options.Set = [],
    run: Annotated[Path | None, typer.Option(help="The run folder. Default: runs/<name>.")] = None,
    minutes: Annotated[
        float | None, typer.Option(help="With PAIRS: how long to train at most. Default: 10.", show_default=False)
    ] = None,
    search: Annotated[bool, typer.Option(help="With PAIRS: let several systems race within the minutes.")] = False,
    valid: Annotated[str | None, typer.Option(help="With PAIRS: validation pairs that are held out already.")] = None,
    test: Annotated[str | None, typer.Option(help="With PAIRS: test pairs that are held out already.")] = None,
    columns: Annotated[
        str, typer.Option(help="With PAIRS: the columns, as source,target,- or word,ipa. Default: by their looks.")
    ] = "",
    on_error: options.OnError = "stop",
    explain: Annotated[
        bool,
        typer.Option(
            help="Train nothing. Of a config: print every value and where it comes from; of pairs: what is chosen when."
        ),
    ] = False,
    explain_engine: options.ExplainEngine = False,
    allow_change: options.AllowChange = [],
    plugins: options.Plugins = [],
) -> None:
    """Train a model. The same command again resumes a run that was stopped or killed."""
    if config is None and preset is None:
        raise UserError("train needs pairs, a config file or --preset NAME (see `dragoman list presets`)")
    load_plugins(plugins)
    own = {"--minutes": minutes, "--search": search, "--valid": valid, "--test": test, "--columns": columns}
    own |= {"--on-error": on_error == "skip"}
    if config is not None and not config.lower().endswith(CONFIG_SUFFIXES):
        if preset is not None or allow_change or explain_engine:
            raise UserError(
                f"{config}: pairs have no --preset, --allow-change or --explain-engine; set data.train=FILE"
            )
        from dragoman.data.columns import parse_columns_option
        from dragoman.data.lines import read_blocker
        from dragoman.data.readers import spec_files

        for path in chain.from_iterable(spec_files(spec) for spec in (config, valid, test) if spec):
            if reason := read_blocker(path):  # before torch is imported, which takes a second or more
                raise DataError(reason, path)
        from dragoman.training.autotrain import MINUTES, TrainingRequest, default_folder

        asked = parse_columns_option(columns) if columns else None
        minutes = MINUTES if minutes is None else minutes
        request = TrainingRequest(config, valid, test, asked, minutes, search, tuple(set), on_error)
        _train_on_pairs(request, run or default_folder(config), explain, plugins)
        return
    if wrong := [name for name, value in own.items() if value]:
        raise UserError(f"{' and '.join(wrong)}: only with a file of pairs; a config says it in data: and training:")
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
    if loaded.config.data.valid is None:
        print_to_stderr(
            "no validation set (data.valid): nothing tells when to stop, and the last step counts as the best. "
            "A file of pairs in place of a config is divided"
        )
    last = progress.show_training(reports)
    if last is not None:
        _print_command(run or Path("runs") / loaded.config.name, loaded.config, plugins)


def _print_command(folder: Path, config: Config, plugins: Sequence[str]) -> None:
    """Say how the trained model is tried."""
    takes_text = config.model.frontend.name == "tokens" and config.model.second_source is None
    print_to_stderr(f"try it: {options.predict_command(folder, plugins, takes_text=takes_text)}")


def _train_on_pairs(request: TrainingRequest, folder: Path, explain: bool, plugins: Sequence[str]) -> None:
    from dragoman import config as configs
    from dragoman.training import autotrain

    if explain:
        _explain_choice(request)
        return
    from dragoman.cli import progress
    from dragoman.reports.run_report import write_run_report

    progress.show_training(autotrain.run(request, folder))
    test = autotrain.read_plan(folder)["test"]
    if test is not None:
        for line in write_run_report(folder, test).lines:
            print_text(line)
    _print_command(folder, configs.load(folder / "train.yaml", None, request.overrides).config, plugins)


def _explain_choice(request: TrainingRequest) -> None:
    """Print what the pairs look like and the table of choices, in which the row that applies is marked."""
    from dragoman.config import autoconfig
    from dragoman.data.quality.profile import profile_pairs

    examples, _, sentences = request.read()
    profile = profile_pairs(examples)
    print_text("\n".join([*sentences, str(profile), ""]))
    chosen = autoconfig.find_rule(profile)
    table = plain_table("", "looks like", "pairs", "systems, the first that the time suffices for", "measured")
    for rule in autoconfig.RULES:
        table.add_row("→" if rule is chosen else "", *rule.cells())
    console().print(table)


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
