"""One JSON object on each line.

    {"source": "Hund", "target": "dog", "source_lang": "de", "target_lang": "en"}
    {"source": "Hund", "target": ["dog", "hound"]}          several references; the first is the target
    {"source": "what color is it?", "second_source": "photo.jpg"}       two sources
    {"text": "Der Hund schläft."}                           single texts

Other keys are ignored. As in any file, a line break inside a text becomes a space.
"""

from __future__ import annotations

import json

from dragoman.core.errors import did_you_mean
from dragoman.core.types import Example
from dragoman.data.lines import SEPARATORS, BadLine, Line, replace_separators
from dragoman.data.readers import PairReader, ReadOptions, readers, split_spec
from dragoman.data.readers.tsv import drop_blank_references
from dragoman.text.normalization import SURROGATES

JSON_SUFFIXES = (".jsonl", ".ndjson", ".json")
REMEDY = 'Write one object on each line, such as {"source": "…", "target": "…"}'


@readers.register("jsonl")
class JSONLines(PairReader):
    """One JSON object on each line, with source, target and languages."""

    def accepts(self, spec: str) -> bool:
        return len(split_spec(spec)) == 1 and spec.lower().removesuffix(".gz").endswith(JSON_SUFFIXES)

    def parse_pair(self, line: Line, file: str, options: ReadOptions) -> Example:
        columns = options.columns
        if line.is_truncated or not line.text.strip():
            return Example(
                "", "" if "target" in columns else None, file=file, line=line.number, source_truncated=line.is_truncated
            )
        value = parse_object(line.text)
        key = "text" if "text" in value and "source" not in value and "target" not in columns else "source"
        source = _text_value(value, key, line.text) if "source" in columns else ""
        # Without targets, every source of the object is read.
        has_second = "second_source" in columns or ("second_source" in value and "target" not in columns)
        second = _text_value(value, "second_source", line.text) if has_second else ""
        targets = _targets(value, line.text) if "target" in columns else []
        languages = [
            (_text_value(value, key, line.text) or None) if value.get(key) is not None else None
            for key in ("source_lang", "target_lang")
        ]
        several = options.extra_targets or isinstance(value.get("target"), list)
        if any(text and SEPARATORS.search(text) for text in (source, second, *targets)):
            options.report.add("separators", file, line.number)
        return Example(
            replace_separators(source),
            replace_separators(targets[0]) if targets else None,
            languages[0],
            languages[1],
            file,
            line.number,
            references=drop_blank_references([replace_separators(text) for text in targets])
            if several and targets
            else (),
            second_source=replace_separators(second),
        )


def parse_object(text: str) -> dict[str, object]:
    """Parse a JSON object; BadLine names the column."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise BadLine("json", f"column {error.colno}: not valid JSON: {error.msg}", REMEDY) from None
    except (ValueError, RecursionError):  # a number of thousands of digits; brackets nested thousands deep
        raise BadLine(
            "json", "column 1: the JSON is nested too deeply, or has a number that is too long", REMEDY
        ) from None
    if not isinstance(value, dict):
        raise BadLine("json", f"column 1: found {_json_type(value)}, expected an object", REMEDY)
    return value


def _targets(value: dict[str, object], line: str) -> list[str]:
    target = value.get("target")
    if not isinstance(target, list):
        return [_text_value(value, "target", line)]
    if not target:
        raise BadLine(
            "json", f"{_key_location('target', line)}: the list of targets is empty", "Give at least one target"
        )
    return [_check_text(text, "target", line) for text in target]


def _text_value(value: dict[str, object], key: str, line: str) -> str:
    if key not in value:
        raise BadLine("json", f"the key '{key}' is missing{did_you_mean(key, value).removesuffix('?')}", REMEDY)
    return _check_text(value[key], key, line)


def _check_text(value: object, key: str, line: str) -> str:
    """The value if it is text that UTF-8 can encode; BadLine for others, for NUL and for lone surrogates."""
    if not isinstance(value, str):
        raise BadLine(
            "json", f"{_key_location(key, line)}: found {_json_type(value)}, expected a text in quotes", REMEDY
        )
    if "\0" in value:
        raise BadLine("nul", f"{_key_location(key, line)}: the text holds \\u0000 (NUL)", "Remove it")
    if surrogate := SURROGATES.search(value):
        problem = f"{_key_location(key, line)}: the text holds the lone surrogate \\u{ord(surrogate[0]):04x}"
        raise BadLine("encoding", problem, "Write the whole character")
    return value


def _key_location(key: str, line: str) -> str:
    """Column and key for a message: "column 12, 'target'"."""
    return f"column {line.find(json.dumps(key)) + 1}, '{key}'"


def _json_type(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
