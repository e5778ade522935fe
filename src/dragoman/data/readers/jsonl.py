"""One JSON object on each line.

    {"source": "Hund", "target": "dog", "source_lang": "de", "target_lang": "en"}
    {"source": "Hund", "target": ["dog", "hound"]}          several references; the first is the target
    {"source": "what color is it?", "second_source": "photo.jpg"}       two sources
    {"text": "Der Hund schläft."}                           single texts
    {"word": "Hund", "ipa": "hʊnt"}                         with columns {source: word, target: ipa}

Other keys are ignored. As in any file, a line break inside a text becomes a space.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain
from typing import IO

from dragoman.core.errors import did_you_mean
from dragoman.core.types import Example
from dragoman.data.columns import ColumnLayout, join_cells
from dragoman.data.lines import SEPARATORS, BadLine, read_lines, reject_line, replace_separators
from dragoman.data.readers import (
    ReadOptions,
    Row,
    Table,
    TableReader,
    drop_blank_references,
    readers,
    split_spec,
)
from dragoman.text.normalization import SURROGATES

JSON_SUFFIXES = (".jsonl", ".ndjson", ".json")
REMEDY = 'Write one object on each line, such as {"source": "…", "target": "…"}'
NAMED_REMEDY = "Give every object the keys that data.columns or --columns names"

JSONObject = dict[str, object]


@readers.register("jsonl")
class JSONLines(TableReader):
    """One JSON object on each line, with source, target and languages."""

    def accepts(self, spec: str) -> bool:
        return len(split_spec(spec)) == 1 and spec.lower().removesuffix(".gz").endswith(JSON_SUFFIXES)

    def read_rows(self, spec: str | IO[bytes], name: str | None, options: ReadOptions) -> Iterator[Row]:
        """The lines of a file: the text as one cell, the object as its values; a blank line has an empty one."""
        file = name or (spec if isinstance(spec, str) and spec != "-" else "<stdin>")
        for line in read_lines(spec, name=name, on_error=options.on_error, report=options.report):
            value: JSONObject = {}
            error = line.error
            if not error and not line.is_truncated and line.text.strip():
                try:
                    value = parse_object(line.text)
                except BadLine as bad:
                    reject_line(bad, file, line.number, options.on_error, options.report)
                    error = bad.problem
            yield Row([line.text], line.number, line.is_truncated, error, value)

    def open_table(self, spec: str | IO[bytes], name: str | None, options: ReadOptions) -> Table:
        """The header has the keys of the first object."""
        file = name or (spec if isinstance(spec, str) and spec != "-" else "<stdin>")
        rows = self.read_rows(spec, name, options)
        before: list[Row] = []
        for row in rows:
            before.append(row)
            if row.values or len(before) > 1000:
                break
        keys = tuple(before[-1].values) if before else ()
        return Table(self, file, keys, ColumnLayout(()), chain(before, rows), options)

    def parse_row(self, row: Row, table: Table) -> Example:
        """The pair in an object; BadLine if a key is missing or holds something else than text."""
        columns, options, line, value = table.options.columns, table.options, row.cells[0], row.values
        if row.is_truncated or not line.strip():
            target = "" if "target" in columns else None
            return Example("", target, file=table.file, line=row.line, source_truncated=row.is_truncated)
        if columns.names is not None:
            texts = {
                role: [
                    _text_value(value, name, line, NAMED_REMEDY)
                    for other, name in zip(columns.roles, columns.names, strict=True)
                    if other == role
                ]
                for role in ("source", "second_source", "source_lang", "target_lang")
            }
            keys = [name for role, name in zip(columns.roles, columns.names, strict=True) if role == "target"]
            targets = [text for key in keys for text in _targets(value, key, line, NAMED_REMEDY)]
            several = len(targets) > 1
        else:
            key = "text" if "text" in value and "source" not in value and "target" not in columns else "source"
            # Without targets, every source of the object is read.
            has_second = "second_source" in columns or ("second_source" in value and "target" not in columns)
            texts = {
                "source": [_text_value(value, key, line)] if "source" in columns else [],
                "second_source": [_text_value(value, "second_source", line)] if has_second else [],
                **{
                    role: [_text_value(value, role, line)] if value.get(role) is not None else []
                    for role in ("source_lang", "target_lang")
                },
            }
            targets = _targets(value, "target", line) if "target" in columns else []
            several = isinstance(value.get("target"), list)
        if any(SEPARATORS.search(text) for text in (*texts["source"], *texts["second_source"], *targets)):
            options.report.add("separators", table.file, row.line)
        targets = [replace_separators(text) for text in targets]
        source = join_cells(texts["source"]) if texts["source"] else ""
        return Example(
            replace_separators(source),
            targets[0] if targets else None,
            "".join(texts["source_lang"]) or None,
            "".join(texts["target_lang"]) or None,
            table.file,
            row.line,
            references=drop_blank_references(targets) if (options.extra_targets or several) and targets else (),
            second_source=replace_separators("".join(texts["second_source"])),
        )


def parse_object(text: str) -> JSONObject:
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


def _targets(value: JSONObject, key: str, line: str, remedy: str = REMEDY) -> list[str]:
    target = value.get(key)
    if not isinstance(target, list):
        return [_text_value(value, key, line, remedy)]
    if not target:
        raise BadLine("json", f"{_key_location(key, line)}: the list of targets is empty", "Give at least one target")
    return [_check_text(text, key, line) for text in target]


def _text_value(value: JSONObject, key: str, line: str, remedy: str = REMEDY) -> str:
    if key not in value:
        raise BadLine("json", f"the key '{key}' is missing{did_you_mean(key, value).removesuffix('?')}", remedy)
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
