"""One JSON object on each line.

    {"source": "Hund", "target": "dog", "source_lang": "de", "target_lang": "en"}
    {"source": "Hund", "target": ["dog", "hound"]}          several references; the first is the target
    {"source": "what color is it?", "second_source": "photo.jpg"}  two sources
    {"text": "Der Hund schläft."}                           where single texts are read

Other keys are ignored. Texts are cleaned as those of any file are: a line break inside one becomes a space.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from dragoman.core.errors import nearest
from dragoman.core.types import Example
from dragoman.data.lines import SEPARATORS, SURROGATES, BadLine, Line, clean, read_lines
from dragoman.data.readers import Reading, examples, readers, sides
from dragoman.data.readers.tsv import display_name, references

ENDINGS = (".jsonl", ".ndjson", ".json")
REMEDY = 'Write one object on each line, such as {"source": "…", "target": "…"}'


@readers.register("jsonl")
class JSONLines:
    """One JSON object on each line, with source, target and languages."""

    def accepts(self, spec: str) -> bool:
        return len(sides(spec)) == 1 and spec.lower().removesuffix(".gz").endswith(ENDINGS)

    def files(self, spec: str) -> list[Path]:
        return [Path(spec)]

    def read(self, spec: str, reading: Reading) -> Iterator[Example]:
        return self._objects(spec, None, reading, keep=False)

    def sources(self, spec: str | IO[bytes], name: str | None, reading: Reading) -> Iterator[Example]:
        return self._objects(spec, name, reading, keep=True)

    def _objects(self, spec: str | IO[bytes], name: str | None, reading: Reading, keep: bool) -> Iterator[Example]:
        file = display_name(spec, name)
        lines = read_lines(spec, name=file, on_error=reading.on_error, tally=reading.tally)
        return examples(lines, lambda line: pair(line, file, reading), file, reading, keep)


def pair(line: Line, file: str, reading: Reading) -> Example:
    """The keys of a line's object. A blank line is a blank pair; so is a cut one, for no half object can be read."""
    wanted = reading.columns
    if line.cut or not line.text.strip():
        return Example("", "" if "target" in wanted else None, file=file, line=line.number, source_truncated=line.cut)
    thing = parse(line.text)
    key = "text" if "text" in thing and "source" not in thing and "target" not in wanted else "source"
    source = _text(thing, key, line.text) if "source" in wanted else ""
    asked = "second_source" in wanted or (
        "second_source" in thing and "target" not in wanted
    )  # of sources alone, all there are
    second = _text(thing, "second_source", line.text) if asked else ""
    targets = _targets(thing, line.text) if "target" in wanted else []
    languages = [
        (_text(thing, key, line.text) or None) if thing.get(key) is not None else None
        for key in ("source_lang", "target_lang")
    ]
    several = reading.extra_targets or isinstance(thing.get("target"), list)
    if any(text and SEPARATORS.search(text) for text in (source, second, *targets)):
        reading.tally.add("separators", file, line.number)
    return Example(
        clean(source),
        clean(targets[0]) if targets else None,
        languages[0],
        languages[1],
        file,
        line.number,
        references=references([clean(text) for text in targets]) if several and targets else (),
        second_source=clean(second),
    )


def parse(text: str) -> dict[str, Any]:
    """A JSON object, or a BadLine that names the column."""
    try:
        thing = json.loads(text)
    except json.JSONDecodeError as error:
        raise BadLine("json", f"column {error.colno}: not valid JSON: {error.msg}", REMEDY) from None
    except (ValueError, RecursionError):  # a number of thousands of digits; brackets nested thousands deep
        raise BadLine(
            "json", "column 1: the JSON is nested too deeply, or has a number that is too long", REMEDY
        ) from None
    if not isinstance(thing, dict):
        raise BadLine("json", f"column 1: found {_kind(thing)}, expected an object", REMEDY)
    return thing


def _targets(thing: dict[str, Any], line: str) -> list[str]:
    value = thing.get("target")
    if not isinstance(value, list):
        return [_text(thing, "target", line)]
    if not value:
        raise BadLine("json", f"{_where('target', line)}: the list of targets is empty", "Give at least one target")
    return [_checked(text, "target", line) for text in value]


def _text(thing: dict[str, Any], key: str, line: str) -> str:
    if key not in thing:
        raise BadLine("json", f"the key '{key}' is missing{nearest(key, thing).removesuffix('?')}", REMEDY)
    return _checked(thing[key], key, line)


def _checked(value: Any, key: str, line: str) -> str:
    """A text that UTF-8 can write: JSON can spell NUL and lone surrogates that the bytes of the file do not show."""
    if not isinstance(value, str):
        raise BadLine("json", f"{_where(key, line)}: found {_kind(value)}, expected a text in quotes", REMEDY)
    if "\0" in value:
        raise BadLine("nul", f"{_where(key, line)}: the text holds \\u0000 (NUL)", "Remove it")
    if surrogate := SURROGATES.search(value):
        problem = f"{_where(key, line)}: the text holds the lone surrogate \\u{ord(surrogate[0]):04x}"
        raise BadLine("encoding", problem, "Write the whole character")
    return value


def _where(key: str, line: str) -> str:
    return f"column {line.find(json.dumps(key)) + 1}, '{key}'"


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
