"""Tables of lines: TSV, CSV and JSON lines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from dragoman.core.json import replace_nonfinite
from dragoman.data.cells import NumberCell, cell_text
from dragoman.data.readers import Row
from dragoman.data.writers import Results, result_text, row_texts, row_values, unique_names


class TSVFormat:
    """Tab-separated columns; tabs and line breaks inside a cell are escaped."""

    def __init__(self, header: Sequence[str] | None, results: Sequence[str], width: int, keys: Sequence[str] | None):
        self.names = None if header is None else [*header, *unique_names(header, results)]
        self.width, self.keys = width, keys

    def header(self) -> str | None:
        return None if self.names is None else "\t".join(map(escape, self.names))

    def line(self, row: Row, results: Results) -> str:
        cells = [*row_texts(row, self.width, self.keys), *map(result_text, results)]
        return "\t".join(map(escape, cells))


class CSVFormat:
    """Columns separated by the delimiter; a cell that needs quotes has them."""

    def __init__(
        self,
        header: Sequence[str] | None,
        results: Sequence[str],
        width: int,
        keys: Sequence[str] | None,
        delimiter: str = ",",
    ):
        self.names = None if header is None else [*header, *unique_names(header, results)]
        self.width, self.keys, self.delimiter = width, keys, delimiter

    def header(self) -> str | None:
        return None if self.names is None else self._join(self.names)

    def line(self, row: Row, results: Results) -> str:
        return self._join([*row_texts(row, self.width, self.keys), *map(result_text, results)])

    def _join(self, cells: Sequence[str]) -> str:
        return self.delimiter.join(map(self._quote, cells)) or '""'  # a blank line is no row of one blank cell

    def _quote(self, cell: str) -> str:
        if not any(c in cell for c in ('"', "\n", "\r", self.delimiter)):
            return cell
        return '"' + cell.replace('"', '""') + '"'


class JSONLinesFormat:
    """One object on each line: that of the input, or one of the table's names, with the results added."""

    def __init__(self, header: Sequence[str], results: Sequence[str]) -> None:
        self.names, self.results = header, results

    def header(self) -> str | None:
        return None

    def line(self, row: Row, results: Results) -> str:
        if isinstance(row.values, dict):
            value = dict(row.values)
        else:
            values = row_values(row)
            padded = [*values, *[""] * (len(self.names) - len(values))]
            value = {name: json_value(cell) for name, cell in zip(self.names, padded, strict=False)}
        value.update(zip(unique_names(list(value), self.results), results, strict=True))
        return json.dumps(replace_nonfinite(value), ensure_ascii=False)


def json_value(value: Any) -> Any:
    """A cell as JSON has it: a number, true or false, null, else a text."""
    if isinstance(value, NumberCell):
        is_whole = value.number.is_integer() and abs(value.number) < 2**53
        plain = int(value.number) if is_whole else value.number
        return str(value) if value.moment is not None else plain
    return value if value is None or isinstance(value, str | bool | int | float) else cell_text(value)


def escape(text: str) -> str:
    """Escape line breaks, tabs and then also backslashes of a text; one without line breaks or tabs stays as it is."""
    if not any(c in text for c in "\n\r\t"):
        return text
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
