"""dragoman train: a config, a preset or both → a run folder with a trained model.

Under torchrun every rank runs this command; the first one shows what happens.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from dragoman.cli.options import AllowChange, Imports, Set, console, import_all, program


def train(
    config: Annotated[Path | None, typer.Argument(help="A config file (YAML).", metavar="[CONFIG]")] = None,
    preset: Annotated[str | None, typer.Option(help="A named config to build on; see `dragoman list presets`.")] = None,
    set: Set = [],
    run: Annotated[Path | None, typer.Option(help="The run folder. Default: runs/<name>.")] = None,
    explain: Annotated[bool, typer.Option(help="Print every value and where it came from; train nothing.")] = False,
    allow_change: AllowChange = [],
    modules: Imports = [],
) -> None:
    """Train a model. The same command again resumes where a stopped or killed run left off."""
    from dragoman.core.errors import Diverged, Stopped, UserError

    if config is None and preset is None:
        raise UserError("train needs a config file or --preset NAME (see `dragoman list presets`)")
    import_all(modules)
    from dragoman import config as configs

    loaded = configs.load(config, preset, set)
    if explain:
        _explain(loaded)
        return
    from dragoman import training
    from dragoman.cli import progress
    from dragoman.training.distributed import position

    reports = training.run(loaded.config, run, allow_change=allow_change)
    if position()[0] > 0:
        try:
            for _ in reports:
                pass
        except (Stopped, Diverged) as error:  # which happens to all ranks at once, and the first one says so
            raise typer.Exit(error.code) from None
        return
    last = progress.show(reports)
    if last is not None:
        folder = run or Path("runs") / loaded.config.name
        model: Any = loaded.config.model
        one_text = model.frontend.name == "tokens" and model.second_source is None
        begin, end = ('echo "some source" | ', "") if one_text else ("", " FILE")
        console(error=True).print(f"try it: {begin}{program()} predict {folder}{end}", markup=False, soft_wrap=True)


def _explain(loaded: object) -> None:
    from rich.table import Column, Table

    from dragoman import config as configs

    assert isinstance(loaded, configs.Loaded)
    if not console().is_terminal:  # for other programs: no folding, one value a line
        for key, value, origin in configs.explain(loaded):
            print(key, "null" if value is None else value, origin, sep="\t")
        return
    whole = [Column(name, overflow="fold") for name in ("key", "value", "from")]
    table = Table(*whole, box=None, pad_edge=False)
    for key, value, origin in configs.explain(loaded):
        table.add_row(key, "null" if value is None else str(value), origin)
    console().print(table)
