"""Read and write YAML 1.2 safely: `no` is a word, `1e-4` a number, a date is text, and aliases are limited.

It uses ruamel.yaml because PyYAML reads YAML 1.1 (`lang: no` becomes False, `1e-4` a string). A
file cannot create Python objects; tags other than YAML's own are errors.
"""

from __future__ import annotations

import io
import itertools
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.constructor import ConstructorError, SafeConstructor
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import MappingNode, ScalarNode
from ruamel.yaml.representer import SafeRepresenter

from dragoman.core import files
from dragoman.core.errors import ConfigError

MAX_CHARACTERS = 200_000  # of a file: a config has 3,000
MAX_DEPTH = 100  # of brackets: ruamel takes two seconds to refuse 1,000
MAX_VALUES = 20_000  # values in it, aliases followed; ruamel takes a second for them


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
    if sum(map(text.count, "\n,[{")) > MAX_VALUES:  # there are no more values than these
        raise ConfigError(where, [f"not a config: more than {MAX_VALUES:,} values"])
    brackets = (1 if character in "[{" else -1 for character in text if character in "[{]}")
    if max(itertools.accumulate(brackets), default=0) > MAX_DEPTH:
        raise ConfigError(where, ["not a config: it is nested too deeply"])
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


def read(path: Path, *, is_named: bool = True) -> dict[str, Any]:
    """The mapping in a YAML file, {} if it is empty; ConfigError if it cannot be read or is no mapping.

    A file that the user names may be of any kind (`<(…)` is a pipe); one that was found in a folder must be plain.
    """
    try:
        text = (files.read_file if is_named else files.read_plain)(path, 4 * MAX_CHARACTERS).decode()
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
