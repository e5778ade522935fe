"""A config from a preset, a file and single values, the later over the earlier; and where each value came from.

    load(path, preset, ["model.decoder.layers=2"]) → Loaded(config, origins)

A file may say `preset: NAME` to build on a preset; a file's values replace the preset's, `--set` values replace both.
Where a part changes its name, its options start over. `origins` says for each value where it came from.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from dragoman.config.building import rehearse
from dragoman.config.checks import validate
from dragoman.config.schema import Config
from dragoman.core import yaml
from dragoman.core.errors import ConfigError, nearest


@dataclass
class Loaded:
    """A config, and for each of its keys the file or option that set it."""

    config: Config
    origins: dict[str, str] = field(default_factory=dict)


def presets() -> dict[str, str]:
    """Every preset's name and the first line of its comment."""
    files = sorted(resources.files("dragoman.presets").iterdir(), key=lambda file: file.name)
    return {
        file.name.removesuffix(".yaml"): file.read_text(encoding="utf-8").split("\n", 1)[0].lstrip("# ")
        for file in files
        if file.name.endswith(".yaml")
    }


def load(path: str | Path | None = None, preset: str | None = None, sets: Sequence[str] = ()) -> Loaded:
    """A config from a file, a preset and single values, the later over the earlier; or one error with every problem."""
    where = str(path or (f"preset {preset}" if preset else "the config"))
    value = yaml.read(Path(path)) if path is not None else {}
    preset = value.pop("preset", None) or preset
    merged: dict[str, Any] = {}
    origins: dict[str, str] = {}
    if preset is not None:
        merge(merged, _preset(preset, where), f"preset {preset}", origins)
    merge(merged, value, where, origins)
    for text in sets:
        merge(merged, _assignment(text), f"--set {text.split('=', 1)[0]}", origins)
    merged.setdefault("name", Path(path).name.split(".")[0] if path is not None else preset or "model")
    try:
        config = validate(merged, where)
    except ConfigError as error:
        raise ConfigError(where, [_blamed(problem, origins, where) for problem in error.problems]) from None
    problems = rehearse(config)
    if problems:
        raise ConfigError(where, problems)
    return Loaded(config, origins)


def _blamed(problem: str, origins: dict[str, str], where: str) -> str:
    """A problem with the place its key was set at, where that is not the file itself."""
    origin = origins.get(re.split(r"[: ]", problem, maxsplit=1)[0], where)
    return problem if origin == where else f"{problem} (from {origin})"


def merge(into: dict[str, Any], value: dict[str, Any], origin: str, origins: dict[str, str], path: str = "") -> None:
    """Lay one mapping over another; a part under another name starts over."""
    for key, new in value.items():
        here, old = f"{path}{key}", into.get(key)
        if isinstance(new, dict):
            if isinstance(old, str):  # a part by its bare name, now given options
                old = {"name": old}
            renamed = isinstance(old, dict) and "name" in new and new["name"] != old.get("name")
            into[key] = {} if renamed or not isinstance(old, dict) else old
            if renamed:
                _forget(here, origins)
            merge(into[key], new, origin, origins, here + ".")
        else:
            same_part = isinstance(new, str) and isinstance(old, dict) and old.get("name") == new
            if not same_part:
                _forget(here, origins)
            into[key] = old if same_part else new
            origins[f"{here}.name" if isinstance(into[key], dict) else here] = origin


def _forget(path: str, origins: dict[str, str]) -> None:
    """What stood at a path and below it is replaced."""
    for gone in [key for key in origins if key == path or key.startswith(path + ".")]:
        del origins[gone]


def explain(loaded: Loaded) -> Iterator[tuple[str, Any, str]]:
    """Every value of a config with its key and where it came from."""

    def walk(value: dict[str, Any], path: str) -> Iterator[tuple[str, Any, str]]:
        for key, item in value.items():
            here = f"{path}{key}"
            if isinstance(item, dict):
                yield from walk(item, here + ".")
            else:
                bare = here.removesuffix(".name")
                yield here, item, loaded.origins.get(here) or loaded.origins.get(bare) or "default"

    return walk(loaded.config.plain(), "")


def _preset(name: Any, where: str) -> dict[str, Any]:
    names = presets()
    if not isinstance(name, str) or name not in names:
        raise ConfigError(
            where, [f"preset: no preset called '{name}'{nearest(str(name), names)} (there is {', '.join(names)})"]
        )
    return yaml.parse((resources.files("dragoman.presets") / f"{name}.yaml").read_text(encoding="utf-8"), name) or {}


def _assignment(text: str) -> dict[str, Any]:
    """`a.b.c=value` → {a: {b: {c: value}}}, the value read as YAML."""
    key, equals, value = text.partition("=")
    if not equals or not all(key.strip().split(".")):
        raise ConfigError(f"--set {text}", ["must read KEY=VALUE, as in --set model.decoder.layers=2"])
    result: Any = yaml.parse(value, f"--set {text}")
    for part in reversed(key.strip().split(".")):
        result = {part: result}
    return result  # type: ignore[no-any-return]
