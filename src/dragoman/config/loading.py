"""A config from a preset, a file and single values, the later over the earlier; and where each value came from.

    load(path, preset, ["model.decoder.layers=2"]) → LoadedConfig(config, origins)

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

from dragoman.config.checks import validate
from dragoman.config.rehearsal import rehearse
from dragoman.config.schema import Config, TrainingOptions
from dragoman.core import yaml
from dragoman.core.errors import ConfigError, did_you_mean
from dragoman.core.generation import fields_of, lift_search_options
from dragoman.optim.schedules import schedules
from dragoman.search import searches, uses_field


@dataclass
class LoadedConfig:
    """A config, and for each of its keys the file or option that set it."""

    config: Config
    origins: dict[str, str] = field(default_factory=dict)


def list_presets() -> dict[str, str]:
    """Return the first comment line of every preset, by name."""
    files = sorted(resources.files("dragoman.presets").iterdir(), key=lambda file: file.name)
    return {
        file.name.removesuffix(".yaml"): file.read_text(encoding="utf-8").split("\n", 1)[0].lstrip("# ")
        for file in files
        if file.name.endswith(".yaml")
    }


def load(path: str | Path | None = None, preset: str | None = None, overrides: Sequence[str] = ()) -> LoadedConfig:
    """Load and check a config from a preset, a file and KEY=VALUE `overrides`, later ones over earlier ones."""
    where = str(path or (f"preset {preset}" if preset else "the config"))
    value = yaml.read(Path(path)) if path is not None else {}
    preset = value.pop("preset", None) or preset
    merged: dict[str, Any] = {}
    origins: dict[str, str] = {}
    layers = [] if preset is None else [(_read_preset(preset, where), f"preset {preset}")]
    layers += [(value, where)]
    layers += [(_parse_assignment(text), f"--set {text.split('=', 1)[0]}") for text in overrides]
    for layer, origin in layers:
        _drop_search_options(merged, layer, origins)
        merge_into(merged, layer, origin, origins)
    _shrink_warmup(merged, origins, [origin for _, origin in layers])
    merged.setdefault("name", Path(path).name.split(".")[0] if path is not None else preset or "model")
    try:
        config = validate(merged, where)
    except ConfigError as error:
        raise ConfigError(where, [_with_origin(problem, origins, where) for problem in error.problems]) from None
    problems = rehearse(config)
    if problems:
        raise ConfigError(where, problems)
    return LoadedConfig(config, origins)


def _shrink_warmup(merged: dict[str, Any], origins: dict[str, str], layers: Sequence[str]) -> None:
    """Make a warm-up a tenth of the steps if a later layer asks for fewer steps than the warm-up has, in place."""
    training = _mapping_at(merged, "training")
    schedule = training.get("schedule", TrainingOptions.model_fields["schedule"].default.name)
    options = schedule if isinstance(schedule, dict) else {"name": schedule}
    if options.get("name") not in schedules.names:
        return
    fields = schedules.schema(options["name"]).model_fields
    warmup = options.get("warmup", fields["warmup"].default if "warmup" in fields else 0)
    steps = training.get("steps")
    by = [origins.get(f"training.{key}") for key in ("schedule.warmup", "steps")]
    if not isinstance(steps, int) or not isinstance(warmup, int) or not 0 < steps < warmup:
        return
    if by[0] is None or layers.index(by[0]) < layers.index(by[1] or ""):
        training["schedule"] = options | {"warmup": max(steps // 10, 1)}
        origins["training.schedule.warmup"] = f"a tenth of training.steps, which {warmup} would exceed"


def _with_origin(problem: str, origins: dict[str, str], where: str) -> str:
    """Append the preset or option that set a problem's key, unless that is the file itself."""
    origin = origins.get(re.split(r"[: ]", problem, maxsplit=1)[0], where)
    return problem if origin == where else f"{problem} (from {origin})"


def merge_into(
    target: dict[str, Any], value: dict[str, Any], origin: str, origins: dict[str, str], path: str = ""
) -> None:
    """Merge `value` into `target` in place, noting each key's origin; a part with a new name starts over."""
    for key, new in value.items():
        here, old = f"{path}{key}", target.get(key)
        if isinstance(new, dict):
            if isinstance(old, str):  # a part by its bare name, now given options
                old = {"name": old}
            renamed = isinstance(old, dict) and "name" in new and new["name"] != old.get("name")
            target[key] = {} if renamed or not isinstance(old, dict) else old
            if renamed:
                _drop_origins(here, origins)
            merge_into(target[key], new, origin, origins, here + ".")
        else:
            same_part = isinstance(new, str) and isinstance(old, dict) and old.get("name") == new
            if not same_part:
                _drop_origins(here, origins)
            target[key] = old if same_part else new
            origins[f"{here}.name" if isinstance(target[key], dict) else here] = origin


def _drop_search_options(target: dict[str, Any], layer: dict[str, Any], origins: dict[str, str]) -> None:
    """If a layer changes the search, drop the merged options that the new search lacks, in place."""
    for path in ("generation", "training.validate_generation"):
        old, new = _mapping_at(target, path), _mapping_at(layer, path)
        if "search" not in new:
            continue
        lifted = dict(lift_search_options(new))
        new.clear()
        new.update(lifted)
        search = lifted.get("search")
        name = search.get("name") if isinstance(search, dict) else search
        for option in [option for option in old if option in fields_of("search")]:
            if name in searches.names and not uses_field(name, option):
                del old[option]
                _drop_origins(f"{path}.{option}", origins)


def _mapping_at(value: Any, path: str) -> dict[str, Any]:
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def _drop_origins(path: str, origins: dict[str, str]) -> None:
    for old in [key for key in origins if key == path or key.startswith(path + ".")]:
        del origins[old]


def explain_origins(loaded: LoadedConfig) -> Iterator[tuple[str, Any, str]]:
    """Yield every key of a config with its value and where that came from."""

    def flatten(value: dict[str, Any], path: str) -> Iterator[tuple[str, Any, str]]:
        for key, item in value.items():
            here = f"{path}{key}"
            if isinstance(item, dict):
                yield from flatten(item, here + ".")
            else:
                bare = here.removesuffix(".name")
                yield here, item, loaded.origins.get(here) or loaded.origins.get(bare) or "default"

    return flatten(loaded.config.model_dump(), "")


def _read_preset(name: Any, where: str) -> dict[str, Any]:
    names = list_presets()
    if not isinstance(name, str) or name not in names:
        raise ConfigError(
            where, [f"preset: no preset called '{name}'{did_you_mean(str(name), names)} (there is {', '.join(names)})"]
        )
    return yaml.parse((resources.files("dragoman.presets") / f"{name}.yaml").read_text(encoding="utf-8"), name) or {}


def _parse_assignment(text: str) -> dict[str, Any]:
    """Parse `a.b.c=value` as {a: {b: {c: value}}}; the value is YAML."""
    key, equals, value = text.partition("=")
    if not equals or not all(key.strip().split(".")):
        raise ConfigError(f"--set {text}", ["must read KEY=VALUE, as in --set model.decoder.layers=2"])
    result: Any = yaml.parse(value, f"--set {text}")
    for part in reversed(key.strip().split(".")):
        result = {part: result}
    return result  # type: ignore[no-any-return]
