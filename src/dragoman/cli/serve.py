"""dragoman serve: serve models over HTTP, with a playground, until a signal."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dragoman.cli.options import Device, ExplainEngine, Plugins, Precision, Reference, load_plugins, print_to_stderr
from dragoman.core.errors import ConfigError, MissingExtra, UserError, did_you_mean

if TYPE_CHECKING:
    from dragoman.serve.settings import ServerSettings

KEYS_VARIABLE = "DRAGOMAN_API_KEYS"  # separated by commas


def serve(
    models: Annotated[
        list[str],
        typer.Argument(
            help="Run folders, model folders or packed models; NAME=MODEL gives one a name.", metavar="MODEL…"
        ),
    ],
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port to listen on; 0: any free port.")] = 8000,
    workers: Annotated[
        int | None, typer.Option(help="Worker processes. Default: 1 on a GPU, one per core on a CPU.")
    ] = None,
    key_file: Annotated[
        Path | None, typer.Option(help=f"API keys, one per line; or set {KEYS_VARIABLE}. Default: no keys.")
    ] = None,
    allow_origins: Annotated[
        list[str],
        typer.Option(
            "--allow-origin",
            help="A page of another site that may use the API, as in https://shop.example.org; may be given several "
            "times.",
            metavar="URL",
        ),
    ] = [],
    device: Device = "auto",
    precision: Precision = None,
    reference: Reference = False,
    explain_engine: ExplainEngine = False,
    set: Annotated[
        list[str], typer.Option("--set", help="KEY=VALUE for a setting of the server, as in deadline_s=10.")
    ] = [],
    plugins: Plugins = [],
) -> None:
    """Serve models over HTTP. Prints the address when ready; drains and stops on SIGTERM or Ctrl-C."""
    check_extras()
    load_plugins(plugins)
    options = {
        "host": host, "port": port, "workers": workers, "keys": read_keys(key_file), "allow_origins": allow_origins,
        "device": device, "precision": precision, "reference": reference, "plugins": plugins,
    }  # fmt: skip
    settings = validate_settings(options | parse_assignments(set))
    paths = parse_model_arguments(models)
    if not settings.is_loopback and not settings.keys:
        text = f"warning: everyone who can reach {settings.host} can use this server; require a key with --key-file"
        print(text, file=sys.stderr, flush=True)
    if explain_engine:
        _print_engines(paths, settings)
    import asyncio

    from dragoman.serve import lifecycle

    names = ", ".join(paths)
    asyncio.run(lifecycle.serve(settings, paths, lambda address: print(f"serving {names} on {address}", flush=True)))


def _print_engines(paths: Mapping[str, str], settings: ServerSettings) -> None:
    from dragoman.checkpoint import model_folder, model_paths
    from dragoman.engines.base import report_config
    from dragoman.inference.device import select_device

    device = select_device(settings.device)
    for name, path in paths.items():
        if len(model_paths.parse_model_paths(path)) > 1:
            print_to_stderr(f"{name}: decoding on {device.type}: reference, because an ensemble is not a single model")
            continue
        config, _ = model_folder.load_codec(path)
        report = report_config(
            config, device, with_training=False, precision=settings.precision, reference_only=settings.reference
        )
        print_to_stderr("\n".join([f"{name}:", *report.lines()]))


def check_extras() -> None:
    """Raise MissingExtra unless the packages of the extra `serve` are installed."""
    for package, name in {"fastapi": "fastapi", "uvicorn": "uvicorn", "prometheus_client": "prometheus-client"}.items():
        if importlib.util.find_spec(package) is None:
            raise MissingExtra(name, "serve", "dragoman serve")


def parse_model_arguments(models: Sequence[str]) -> dict[str, str]:
    """Map names to paths: from NAME=MODEL, or by the folder's or zip's name; missing models and equal names raise."""
    from dragoman.checkpoint import model_paths

    paths: dict[str, str] = {}
    for text in models:
        name, _, path = text.partition("=") if "=" in text and not Path(text).exists() else ("", "", text)
        for folder in map(Path, model_paths.parse_model_paths(path)):
            model_paths.check_exists(folder)  # workers check the rest
        name = name or "+".join(map(model_paths.model_name, model_paths.parse_model_paths(path)))
        if name in paths:
            raise UserError(f"two models are called '{name}'; give them names, as in first={paths[name]}")
        paths[name] = path
    return paths


def read_keys(path: Path | None) -> list[str]:
    """Return the API keys of the environment variable, then those of a file, if any; # begins a comment line."""
    value = os.environ.get(KEYS_VARIABLE)
    keys = [key.strip() for key in (value or "").split(",") if key.strip()]
    if value is not None and not keys:  # a secret that did not arrive must not open the server
        raise UserError(f"{KEYS_VARIABLE} is set, but has no key; write keys separated by commas, or unset it")
    if path is None:
        return keys
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--key-file {path}: cannot be read: {getattr(error, 'strerror', 'is not UTF-8')}") from None
    file_keys = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if not file_keys:
        raise UserError(f"--key-file {path}: the file has no key; write one per line")
    return keys + file_keys


def parse_assignments(texts: Sequence[str]) -> dict[str, object]:
    """Parse the KEY=VALUE texts of --set; values are YAML."""
    from dragoman.core import yaml

    values: dict[str, object] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise UserError(f"--set {text}: there is no '='; write KEY=VALUE, as in deadline_s=10")
        values[key.strip()] = yaml.parse(value, f"--set {key}")
    return values


def validate_settings(values: Mapping[str, object]) -> ServerSettings:
    """Build the server settings, or raise ConfigError with all problems at once."""
    from pydantic import ValidationError

    from dragoman.serve.settings import ServerSettings

    try:
        settings = ServerSettings.model_validate(dict(values))
    except ValidationError as error:
        problems = []
        for item in error.errors(include_url=False):
            key = ".".join(map(str, item["loc"]))
            if item["type"] == "extra_forbidden":
                problems.append(f"{key} is not an option{did_you_mean(key, ServerSettings.model_fields)}")
            else:
                text = item["msg"].replace("Input should be", "must be")
                shown = "" if key.startswith("keys") else f", found {item['input']!r}"
                problems.append(f"{key}: {text[0].lower() + text[1:]}{shown}")
        raise ConfigError("dragoman serve", problems) from None
    problems = list(settings.problems())
    if problems:
        raise ConfigError("dragoman serve", problems)
    return settings
