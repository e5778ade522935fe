"""YAML 1.2 in and out, the traps closed: `no` is a word, `1e-4` a number, a date stays text, aliases cannot explode.

ruamel.yaml because PyYAML reads YAML 1.1 (`lang: no` becomes False, `1e-4` a string). Nothing in a file can name a
Python object; tags other than YAML's own are errors.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.constructor import ConstructorError, SafeConstructor
from ruamel.yaml.error import YAMLError
from ruamel.yaml.representer import SafeRepresenter

from dragoman.core.errors import ConfigError

LARGEST = 1_000_000  # bytes of a file
MOST = 20_000  # values in it, aliases followed


class _Constructor(SafeConstructor):
    """Safe, a date and a lone `=` are text, and nothing is merged."""

    def flatten_mapping(self, node: Any) -> Any:
        # Twenty lines of `<<: [*a, *a]` would merge a million pairs before anyone could count them.
        for key, _ in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                problem = "'<<' merges mappings in YAML 1.1, not in 1.2; write the settings out"
                raise ConstructorError(None, None, problem, key.start_mark)
        return super().flatten_mapping(node)


for _kind in ("timestamp", "value"):
    _Constructor.add_constructor(f"tag:yaml.org,2002:{_kind}", lambda self, node: self.construct_scalar(node))


class _Representer(SafeRepresenter):
    """What cannot be printed is escaped: a lone U+0085 between single quotes would be read back as a space."""

    def represent_str(self, data: str) -> Any:
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=None if data.isprintable() else '"')


_Representer.add_representer(str, _Representer.represent_str)


def _yaml() -> YAML:
    yaml = YAML(typ="safe", pure=True)
    yaml.Constructor, yaml.Representer = _Constructor, _Representer
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    yaml.width = 120
    return yaml


def parse(text: str, where: str | Path) -> Any:
    """The value of a YAML text; a ConfigError with line and column where it is not one."""
    if len(text) > LARGEST:
        raise ConfigError(where, [f"the file has {len(text):,} characters; a config has at most {LARGEST:,}"])
    try:
        value = _yaml().load(text)
        _count(value)
    except YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ConfigError(where, [f"{place}not valid YAML: {problem}"]) from None
    except LookupError:  # what ruamel makes of `!!int ''` and `!!bool maybe`
        raise ConfigError(where, ["not valid YAML: a value does not have the form that its tag asks for"]) from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(where, [f"not a config: {str(error) or 'it is nested too deeply'}"]) from None
    return value


def read(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file."""
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


def dump(value: Any) -> str:
    stream = io.StringIO()
    _yaml().dump(value, stream)
    return stream.getvalue()


def _count(value: Any) -> int:
    """How many values there are, aliases followed; raises past MOST, which is what a bomb of aliases runs into."""
    total, waiting = 0, [value]
    while waiting:
        item = waiting.pop()
        total += 1
        if total > MOST:
            raise ValueError(f"more than {MOST:,} values, or aliases that multiply")
        for text in [item, *item] if isinstance(item, dict) else [item]:
            if isinstance(text, str) and any("\ud800" <= c <= "\udfff" for c in text):
                raise ValueError(f"{text!r} holds half a character (a lone surrogate)")
        if isinstance(item, dict):
            for key in item:
                if not isinstance(key, str):
                    raise ValueError(f"the key {key!r} must be text")
            waiting.extend(item.values())
        elif isinstance(item, list):
            waiting.extend(item)
    return total
