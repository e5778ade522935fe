"""Read and write YAML 1.2 safely: `no` is a word, `1e-4` a number, a date is text, and aliases are limited.

It uses ruamel.yaml because PyYAML reads YAML 1.1 (`lang: no` becomes False, `1e-4` a string). A
file cannot create Python objects; tags other than YAML's own are errors.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.constructor import ConstructorError, SafeConstructor
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import MappingNode, ScalarNode
from ruamel.yaml.representer import SafeRepresenter

from dragoman.core.errors import ConfigError

MAX_CHARACTERS = 1_000_000  # bytes of a file
MAX_VALUES = 20_000  # values in it, aliases followed


class _Constructor(SafeConstructor):
    """A safe constructor: dates and a lone `=` are text, and `<<` does not merge."""

    def flatten_mapping(self, node: MappingNode) -> Any:
        # Twenty lines of `<<: [*a, *a]` would merge a million pairs before anyone could count them.
        for key, _ in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                problem = "'<<' merges mappings in YAML 1.1, not in 1.2; write the settings out"
                raise ConstructorError(None, None, problem, key.start_mark)
        return super().flatten_mapping(node)


for _kind in ("timestamp", "value"):
    _Constructor.add_constructor(f"tag:yaml.org,2002:{_kind}", lambda self, node: self.construct_scalar(node))


class _Representer(SafeRepresenter):
    """Escapes unprintable characters: a lone U+0085 between single quotes would be read back as a space."""

    def represent_str(self, data: str) -> ScalarNode:
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=None if data.isprintable() else '"')


_Representer.add_representer(str, _Representer.represent_str)


def _make_yaml() -> YAML:
    yaml = YAML(typ="safe", pure=True)
    yaml.Constructor, yaml.Representer = _Constructor, _Representer
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    yaml.width = 120
    return yaml


def parse(text: str, where: str | Path) -> Any:
    """Parse a YAML text to its value; ConfigError, with line and column, if it is invalid, too large or no config."""
    if len(text) > MAX_CHARACTERS:
        raise ConfigError(where, [f"the file has {len(text):,} characters; a config has at most {MAX_CHARACTERS:,}"])
    try:
        value = _make_yaml().load(text)
        _check_values(value)
    except YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        position = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ConfigError(where, [f"{position}not valid YAML: {problem}"]) from None
    except LookupError:  # what ruamel makes of `!!int ''` and `!!bool maybe`
        raise ConfigError(where, ["not valid YAML: a value does not match its tag"]) from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(where, [f"not a config: {str(error) or 'it is nested too deeply'}"]) from None
    return value


def read(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file, {} if it is empty; ConfigError if it cannot be read or is no mapping."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(path, ["there is no such file"]) from None
    except OSError as error:
        raise ConfigError(path, [f"cannot be read: {error.strerror}"]) from None
    except UnicodeDecodeError as error:
        raise ConfigError(path, [f"not UTF-8: byte {error.start} is {error.object[error.start]:#04x}"]) from None
    value = parse(text, path)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(path, [f"must be a mapping of settings, not {type(value).__name__}"])
    return value


def dump(value: object) -> str:
    """The YAML text of a value."""
    stream = io.StringIO()
    _make_yaml().dump(value, stream)
    return stream.getvalue()


def _check_values(value: object) -> None:
    """Raise ValueError for lone surrogates, keys that are not text, and more than MAX_VALUES values (alias bombs)."""
    total, remaining = 0, [value]
    while remaining:
        item = remaining.pop()
        total += 1
        if total > MAX_VALUES:
            raise ValueError(f"more than {MAX_VALUES:,} values, or aliases that multiply")
        for text in [item, *item] if isinstance(item, dict) else [item]:
            if isinstance(text, str) and any("\ud800" <= c <= "\udfff" for c in text):
                raise ValueError(f"{text!r} contains half a character (a lone surrogate)")
        if isinstance(item, dict):
            for key in item:
                if not isinstance(key, str):
                    raise ValueError(f"the key {key!r} must be text")
            remaining.extend(item.values())
        elif isinstance(item, list):
            remaining.extend(item)
