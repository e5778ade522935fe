"""Write tables with all columns that were read, and the results after them.

    tsv, csv, jsonl     one line (or one quoted row) after the other: a LineFormat
    xlsx, parquet       a file that is whole only at its end: a FileFormat

Numbers, dates and JSON values stay what they were where the format has them; else they are written as people read them.
A text that begins with = + - or @ is written as it is: in XLSX it is a text, but a spreadsheet program that opens a CSV
file takes it for a formula.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from dragoman.data.cells import cell_text
from dragoman.data.readers import Row

SUFFIXES = {
    ".tsv": "tsv",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".xlsx": "xlsx",
    ".parquet": "parquet",
    ".pq": "parquet",
}
FILE_KINDS = ("xlsx", "parquet")  # that are no lines
FORMULA_STARTS = ("=", "+", "-", "@")

Results = Sequence[str | float]


class LineFormat(Protocol):
    """A format in which every row is a text of its own."""

    def header(self) -> str | None:
        """The header row; None without one."""

    def line(self, row: Row, results: Results) -> str:
        """A row and its results, without the end of the line."""


class FileFormat(Protocol):
    """A format whose file is complete when it is closed."""

    def write(self, row: Row, results: Results) -> None:
        """Add a row and its results; DataError if the format cannot hold them."""

    def close(self) -> None:
        """Complete the file."""


def kind_of(path: str | Path) -> str | None:
    """The kind of table that a file's name says; None for others."""
    return SUFFIXES.get(Path(path).suffix.lower())


def unique_names(header: Sequence[str], names: Sequence[str]) -> list[str]:
    """The names of result columns, numbered where the table has them already: prediction (2)."""
    taken, unique = set(header), []
    for name in names:
        number, free = 1, name
        while free in taken:
            number += 1
            free = f"{name} ({number})"
        taken.add(free)
        unique.append(free)
    return unique


def row_values(row: Row, header: Sequence[str] | None = None) -> list[Any]:
    """The cells of a row as its file has them; of a JSON object those of the header's keys."""
    if isinstance(row.values, dict):
        return [row.values.get(name) for name in header or row.values]
    if isinstance(row.values, list):
        return row.values
    return list(row.cells) if row.values is None else list(row.values.values())


def row_texts(row: Row, width: int, header: Sequence[str] | None = None) -> list[str]:
    """The cells of a row as texts, padded to a width."""
    texts = [cell_text(value) for value in row_values(row, header)] if isinstance(row.values, dict) else row.cells
    return [*texts, *[""] * (width - len(texts))]


def result_text(result: str | float) -> str:
    """A result as text: a probability has six digits."""
    return result if isinstance(result, str) else f"{result:.6g}"
