"""A plain mapping → the typed config, or one error with every problem in it, each a sentence.

    {"model": {"widht": 8}} → model.widht is not an option; did you mean 'width'? (there is …)

Types are checked first; where one is wrong, the rules between the fields of every group that is right are checked all
the same, so that nobody mends a config one message at a time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from pydantic import ValidationError

from dragoman.config.schema import GROUPS, Config, Generation, inside
from dragoman.core.errors import ConfigError, nearest
from dragoman.core.registry import Options, Registry


def validate(value: dict[str, Any], where: str) -> Config:
    """A plain mapping → the config, or an error with every problem in it."""
    try:
        config = Config.model_validate(value)
    except ValidationError as error:
        problems = [_sentence(item, value) for item in error.errors(include_url=False)]
        groups = dict(_valid_groups(value))
        problems += _cross(groups)
        if groups.keys() == GROUPS.keys():  # what goes between the groups can be told, too
            problems += Config.model_construct(**groups).problems()  # type: ignore[arg-type]
        raise ConfigError(where, list(dict.fromkeys(problems))) from None
    problems = [*config.problems(), *_cross({name: getattr(config, name) for name in GROUPS})]
    if problems:
        raise ConfigError(where, problems)
    return config


def validated_generation(config: Config, changes: dict[str, Any]) -> Generation:
    """The generation settings of a config with some of them changed, checked as a file's are."""
    try:
        return Generation.model_validate(config.generation.model_dump() | changes)
    except ValidationError as error:
        raise ConfigError("generation", [_sentence(item, {}) for item in error.errors(include_url=False)]) from None


def _cross(groups: Mapping[str, Options]) -> Iterator[str]:
    """What does not go together inside each group."""
    return (f"{name}.{problem}" for name, group in groups.items() for problem in group.problems())


def _valid_groups(value: dict[str, Any]) -> Iterator[tuple[str, Options]]:
    """The groups of a broken config that are right by themselves: their cross-field rules can still be checked."""
    for name, kind in GROUPS.items():
        with suppress(ValidationError):
            yield name, kind.model_validate(value.get(name, {}))


def _sentence(error: Any, value: dict[str, Any]) -> str:
    """One of pydantic's errors as `key: what is wrong, what was found, what is allowed`."""
    location = [str(part) for part in error["loc"] if part != "function-plain[parse()]"]
    key, found, kind = ".".join(location), f"{error['input']!r}"[:60], error["type"]
    if kind == "extra_forbidden":
        options = _options_at(location[:-1], value)
        return f"{key} is not an option{nearest(location[-1], options)} (there is {', '.join(options)})"
    if kind == "missing":
        return f"{key} is missing" + ("; name the pairs, as in data.train=pairs.tsv" if location[0] == "data" else "")
    if kind == "part":
        return f"{key}: {error['msg']}"
    if kind == "literal_error":
        allowed = error["ctx"]["expected"]
        near = nearest(str(error["input"]), re.findall("'(.+?)'", allowed))
        return f"{key}: found {found}, allowed is {allowed}{near}"
    if kind == "model_type":
        return f"{key}: must be a mapping of settings, found {found}"
    text = error["msg"].replace("Input should be", "must be").replace("Value error, ", "")
    return f"{key}: {text[0].lower() + text[1:]}, found {found}"


def _options_at(location: Sequence[str], value: Any) -> list[str]:
    """The options there are at a place of the config."""
    kind: Any = Config
    for i, part in enumerate(location):
        if isinstance(value, list):  # the place in a list of what `kind` is already
            value = value[int(part)] if part.isdigit() and int(part) < len(value) else None
        elif part in kind.model_fields:
            value = value.get(part) if isinstance(value, dict) else None
            info = kind.model_fields[part]
        else:
            return []
        if isinstance(value, list) and i + 1 < len(location):
            continue
        registry = next((m for m in inside(info) if isinstance(m, Registry)), None)
        if registry is not None:
            name = value.get("name") if isinstance(value, dict) else value
            kind = registry.schema(str(name)) if name in registry.names else Options
        else:
            kind = next((m for m in inside(info) if isinstance(m, type) and issubclass(m, Options)), Options)
    return list(kind.model_fields)
