"""dragoman config: the JSON schema for editors, and a check that starts no work."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Annotated

import typer

from dragoman.cli.options import Imports, Set, import_all

app = typer.Typer(help="Look after config files.", no_args_is_help=True)


@app.command()
def schema(modules: Imports = []) -> None:
    """Print the JSON schema of config files, for editors that complete and check."""
    import_all(modules)
    from dragoman.config import Config

    with warnings.catch_warnings():  # parts as defaults have no JSON form of their own
        warnings.simplefilter("ignore")
        value = Config.model_json_schema()
    value["properties"]["preset"] = {"type": "string", "description": "a named config to build on"}
    print(json.dumps(value, indent=1))


@app.command()
def check(
    config: Annotated[Path, typer.Argument(help="A config file.")],
    set: Set = [],
    modules: Imports = [],
) -> None:
    """Say whether a config file is right, without starting any work."""
    import_all(modules)
    from dragoman import config as configs

    configs.load(config, None, set)
    print(f"{config} is right")
