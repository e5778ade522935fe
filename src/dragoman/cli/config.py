"""dragoman config: the JSON schema for editors, and a check that starts no work."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from dragoman.cli.options import Plugins, Set, load_plugins

app = typer.Typer(help="Look after config files.", no_args_is_help=True)


@app.command()
def schema(plugins: Plugins = []) -> None:
    """Print the JSON schema of config files, for editors that complete and check."""
    load_plugins(plugins)
    from dragoman.config import Config

    value = Config.model_json_schema()
    value["properties"]["preset"] = {"type": "string", "description": "a named config to build on"}
    print(json.dumps(value, indent=1))


@app.command()
def check(
    config: Annotated[Path, typer.Argument(help="A config file.")],
    set: Set = [],
    plugins: Plugins = [],
) -> None:
    """Say whether a config file is right and which engines would serve it, without starting any work."""
    load_plugins(plugins)
    import torch

    from dragoman import config as configs
    from dragoman.engines.base import report_config

    loaded = configs.load(config, None, set).config
    print(f"{config} is right")
    for device in ("cpu", "cuda"):
        is_here = device == "cpu" or torch.cuda.is_available()
        print(*report_config(loaded, torch.device(device), on_this_machine=is_here).lines(), sep="\n")
