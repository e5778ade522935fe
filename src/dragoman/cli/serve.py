"""dragoman serve: models behind an HTTP API, with a playground, until a signal ends it."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dragoman.cli.options import Device, Imports, Plain, Precision, import_all

if TYPE_CHECKING:
    from dragoman.serve.settings import Serving

KEYS = "DRAGOMAN_API_KEYS"  # several are separated by commas


def serve(
    models: Annotated[
        list[str], typer.Argument(help="Run folders or model folders; NAME=MODEL gives one a name.", metavar="MODEL…")
    ],
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0: any that is free.")] = 8000,
    workers: Annotated[
        int | None, typer.Option(help="Processes that compute. Default: 1 on a GPU, one for each core on a CPU.")
    ] = None,
    key_file: Annotated[
        Path | None, typer.Option(help=f"API keys, one on each line; or set {KEYS}. Default: none is asked for.")
    ] = None,
    device: Device = "auto",
    precision: Precision = None,
    plain: Plain = False,
    set: Annotated[
        list[str], typer.Option("--set", help="KEY=VALUE over a limit of the server, as in deadline_s=10.")
    ] = [],
    modules: Imports = [],
) -> None:
    """Answer requests over HTTP. Prints the address when it is ready; SIGTERM or Ctrl-C lets it finish and end."""
    check_extras()
    import_all(modules)
    given = {
        "host": host, "port": port, "workers": workers, "keys": read_keys(key_file), "device": device,
        "precision": precision, "plain": plain, "imports": modules,
    }  # fmt: skip
    serving = validated(given | assignments(set))
    paths = named(models)
    if not serving.loopback and not serving.keys:
        text = f"warning: everyone who can reach {serving.host} can use this server; --key-file asks them for a key"
        print(text, file=sys.stderr, flush=True)
    from dragoman.serve import lifecycle

    lifecycle.run(serving, paths, lambda address: print(f"serving {', '.join(paths)} on {address}", flush=True))


def check_extras() -> None:
    """The packages of the extra, before anything is loaded."""
    from dragoman.core.errors import MissingExtra

    for package, name in {"fastapi": "fastapi", "uvicorn": "uvicorn", "prometheus_client": "prometheus-client"}.items():
        if importlib.util.find_spec(package) is None:
            raise MissingExtra(name, "serve", "dragoman serve")


def named(models: Sequence[str]) -> dict[str, str]:
    """Paths by name: the one given, or the name of the folder."""
    from dragoman.checkpoint import model_paths
    from dragoman.core.errors import ModelError, UserError, nearest

    found: dict[str, str] = {}
    for text in models:
        name, _, path = text.partition("=") if "=" in text and not Path(text).exists() else ("", "", text)
        for folder in map(Path, model_paths.paths(path)):
            if not folder.is_dir():  # all else about a folder is for the workers to find out
                beside = [other.name for other in folder.parent.iterdir()] if folder.parent.is_dir() else []
                raise ModelError(f"{folder}: there is no such model or run folder{nearest(folder.name, beside)}")
        name = name or "+".join(Path(member).resolve().name for member in model_paths.paths(path))
        if name in found:
            raise UserError(f"two models are called '{name}'; give them names, as in first={found[name]}")
        found[name] = path
    return found


def read_keys(path: Path | None) -> list[str]:
    """The keys of a file, and those of the environment."""
    from dragoman.core.errors import UserError

    keys = [key.strip() for key in os.environ.get(KEYS, "").split(",") if key.strip()]
    if path is None:
        return keys
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--key-file {path}: cannot be read: {getattr(error, 'strerror', 'is not UTF-8')}") from None
    found = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if not found:
        raise UserError(f"--key-file {path}: there is no key in it; write one on each line")
    return keys + found


def assignments(texts: Sequence[str]) -> dict[str, Any]:
    """What --set says."""
    from dragoman.core import yaml
    from dragoman.core.errors import UserError

    found = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise UserError(f"--set {text}: there is no '='; write KEY=VALUE, as in deadline_s=10")
        found[key.strip()] = yaml.parse(value, f"--set {key}")
    return found


def validated(values: Mapping[str, Any]) -> Serving:
    """The settings, or every problem with them at once."""
    from pydantic import ValidationError

    from dragoman.core.errors import ConfigError, nearest
    from dragoman.serve.settings import Serving

    try:
        serving = Serving.model_validate(dict(values))
    except ValidationError as error:
        problems = []
        for item in error.errors(include_url=False):
            key = ".".join(map(str, item["loc"]))
            if item["type"] == "extra_forbidden":
                problems.append(f"{key} is not an option{nearest(key, Serving.model_fields)}")
            else:
                text = item["msg"].replace("Input should be", "must be")
                shown = "" if key.startswith("keys") else f", found {item['input']!r}"
                problems.append(f"{key}: {text[0].lower() + text[1:]}{shown}")
        raise ConfigError("dragoman serve", problems) from None
    problems = list(serving.problems())
    if problems:
        raise ConfigError("dragoman serve", problems)
    return serving
