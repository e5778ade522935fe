"""Validation: a plain mapping → the typed config, or one error with every problem in it, each a sentence.

    {"model": {"widht": 8}} → model.widht is not an option; did you mean 'width'? (there is …)

Types are checked first; where one is wrong, the rules between the fields of every valid group are checked all the same,
so that a user sees all problems at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from pydantic import ValidationError

from dragoman.config.schema import COLUMN_FORMS, GROUPS, Config, nested_types
from dragoman.core.errors import ConfigError, did_you_mean
from dragoman.core.registry import Options, Registry


def validate(value: dict[str, Any], where: str) -> Config:
    """Validate a plain mapping as a config; raise one ConfigError with every problem, for the file `where`."""
    try:
        config = Config.model_validate(value)
    except ValidationError as error:
        problems = [_error_message(item, value) for item in error.errors(include_url=False)]
        groups = dict(_valid_groups(value))
        problems += _group_problems(groups)
        if groups.keys() == GROUPS.keys():  # the rules between groups can be checked, too
            problems += Config.model_construct(**groups).problems()  # type: ignore[arg-type]
        raise ConfigError(where, list(dict.fromkeys(problems))) from None
    problems = [*config.problems(), *_group_problems({name: getattr(config, name) for name in GROUPS})]
    if problems:
        raise ConfigError(where, problems)
    return config


def _group_problems(groups: Mapping[str, Options]) -> Iterator[str]:
    return (f"{name}.{problem}" for name, group in groups.items() for problem in group.problems())


def _valid_groups(value: dict[str, Any]) -> Iterator[tuple[str, Options]]:
    for name, kind in GROUPS.items():
        with suppress(ValidationError):
            yield name, kind.model_validate(value.get(name, {}))


def _error_message(error: Any, value: dict[str, Any]) -> str:
    """Turn one of pydantic's errors into a sentence: key, what is wrong, what was found, what is allowed."""
    location = [str(part) for part in error["loc"] if part not in ("function-plain[parse()]", "[key]", *COLUMN_FORMS)]
    key, found, kind = ".".join(location), f"{error['input']!r}"[:60], error["type"]
    if kind == "extra_forbidden":
        options = _options_of_key(location[:-1], value)
        return f"{key} is not an option{did_you_mean(location[-1], options)} (there is {', '.join(options)})"
    if kind == "missing":
        return f"{key} is missing" + ("; name the pairs, as in data.train=pairs.tsv" if location[0] == "data" else "")
    if kind == "part":
        text = str(error["msg"])
        is_unknown = text.startswith("no ") and "did you mean" not in text
        return f"{key}: {text}" + ("; a part of your own needs --plugin FILE.py" if is_unknown else "")
    if kind == "literal_error":
        allowed = error["ctx"]["expected"]
        near = did_you_mean(str(error["input"]), re.findall("'(.+?)'", allowed))
        return f"{key}: found {found}, allowed is {allowed}{near}"
    if kind == "model_type":
        return f"{key}: must be a mapping of settings, found {found}"
    text = error["msg"].replace("Input should be", "must be").replace("Value error, ", "")
    return f"{key}: {text[0].lower() + text[1:]}, found {found}"


def _options_of_key(location: Sequence[str], value: Any) -> list[str]:
    """Return the names of the options allowed below a key of a config `value`; [] for an unknown key."""
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
        registry = next((m for m in nested_types(info) if isinstance(m, Registry)), None)
        if registry is not None:
            name = value.get("name") if isinstance(value, dict) else value
            kind = registry.schema(str(name)) if name in registry.names else Options
        else:
            kind = next((m for m in nested_types(info) if isinstance(m, type) and issubclass(m, Options)), Options)
    return list(kind.model_fields)
