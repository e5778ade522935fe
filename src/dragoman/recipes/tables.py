"""Read the files of data sets and write the files that a training reads; shared by the recipes' prepare.py.

Lines end at a line feed and nowhere else, columns at a tab. Written files are tab-separated, one pair a line; any run
of white space inside a text becomes one space. A problem with a data set is a DataError with the file and the line.
`record_files_read` collects the files that were read, so that prepared data can be checked against them later.
"""

from __future__ import annotations

import gzip
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import zip_longest
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.core import files
from dragoman.core.errors import DataError
from dragoman.data.lines import Line, read_lines
from dragoman.modalities.features import load_npy

if TYPE_CHECKING:
    from dragoman.modalities.features import AnyArray

DOWNLOAD_AGAIN = "copy or download it again"
_files_read: ContextVar[dict[Path, int | None] | None] = ContextVar("files_read", default=None)


@contextmanager
def record_files_read() -> Iterator[dict[Path, int | None]]:
    """Collect the files that are read inside the block, with the number of lines read; None for an archive."""
    line_counts: dict[Path, int | None] = {}
    token = _files_read.set(line_counts)
    try:
        yield line_counts
    finally:
        _files_read.reset(token)


def _record_file(path: Path, lines: int | None) -> None:
    """Note a file that was read, with its lines read so far, if `record_files_read` is active."""
    if (line_counts := _files_read.get()) is not None:
        line_counts[path] = lines


# -- tables ------------------------------------------------------------------------------------------------------------


class TableRow(list[str]):
    """The columns of a line, with its file and line number for error messages."""

    def __init__(self, columns: Iterable[str], file: Path, line: int) -> None:
        """Hold the columns of a line, with its file and line number."""
        super().__init__(columns)
        self.file, self.line = file, line

    def error(self, problem: str) -> DataError:
        """A DataError that names the file and the line."""
        return DataError(problem, self.file, self.line)

    def integer(self, column: int) -> int:
        """Parse a column as an integer of 0 or more; raise DataError otherwise."""
        if not self[column].isdecimal():
            raise self.error(f"column {column + 1} is '{self[column]}'; it must be a whole number")
        return int(self[column])

    def number(self, column: int) -> float:
        """Parse a column as a finite number of 0 or more; raise DataError otherwise."""
        try:
            value = float(self[column])
        except ValueError:
            value = -1.0
        if not isfinite(value) or value < 0:
            raise self.error(f"column {column + 1} is '{self[column]}'; it must be a number, 0 or more")
        return value


def find_file(path: Path) -> Path:
    """Return the path, or the path with .gz, whichever exists; raise DataError if neither does."""
    existing = path if path.exists() else path.with_name(path.name + ".gz")
    if not existing.exists():
        raise DataError("the data set lacks this file (with or without .gz)", path)
    return existing


def text_lines(path: Path) -> Iterator[str]:
    """The lines of a text file, gzipped or not."""
    return (line.text for line in _read_lines(find_file(path)))


def _read_lines(path: Path) -> Iterator[Line]:
    """Yield the lines of a file and record how many were read; a line that is not UTF-8 raises DataError."""
    _record_file(path, 0)
    for line in read_lines(path, on_error="skip"):  # a bad line comes with its reason
        if line.error:
            raise DataError(f"{line.error}; save the file as UTF-8, or {DOWNLOAD_AGAIN}", path, line.number)
        _record_file(path, line.number)
        yield line


def read_rows(path: Path, min_columns: int = 1, num_columns: int | None = None) -> Iterator[TableRow]:
    """The columns of each line of a tab-separated file; a wrong number of columns is an error."""
    file = find_file(path)
    for line in _read_lines(file):
        row = TableRow(line.text.split("\t"), file, line.number)
        if num_columns is not None and len(row) != num_columns:
            raise row.error(f"has {_count_columns(row)}, not {num_columns}; correct the line, or {DOWNLOAD_AGAIN}")
        if len(row) < min_columns:
            problem = f"has {_count_columns(row)}, not {min_columns} or more"
            raise row.error(f"{problem}; correct the line, or {DOWNLOAD_AGAIN}")
        yield row


def _count_columns(row: TableRow) -> str:
    """ "1 column", or "N columns", of a row."""
    return "1 column" if len(row) == 1 else f"{len(row)} columns"


def read_parallel(source: Path, target: Path) -> Iterator[tuple[str, str]]:
    """The pairs of two files, line by line; both must have the same number of lines."""
    paths = find_file(source), find_file(target)
    for count, (left, right) in enumerate(zip_longest(*map(text_lines, paths))):
        if left is None or right is None:
            short, long = paths if left is None else reversed(paths)
            problem = f"ends after line {count:,}, and {long} has more lines; both must have as many"
            raise DataError(problem, short)
        yield left, right


# -- archives ----------------------------------------------------------------------------------------------------------


def open_archive(path: Path) -> zipfile.ZipFile:
    """Open a zip file of a data set and record it as read; raise DataError if it is missing or damaged."""
    try:
        archive = zipfile.ZipFile(path)
    except FileNotFoundError:
        raise DataError("the data set lacks this file", path) from None
    except (OSError, zipfile.BadZipFile) as error:
        raise DataError(f"cannot be opened as a .zip ({error}); {DOWNLOAD_AGAIN}", path) from None
    _record_file(path, None)
    return archive


def read_member(archive: zipfile.ZipFile, name: str) -> bytes:
    """Read one file of an archive; raise DataError if it is missing or damaged."""
    try:
        return archive.read(name)
    except (KeyError, OSError, EOFError, zlib.error, zipfile.BadZipFile, NotImplementedError, RuntimeError):
        problem = f"has no intact '{name}', which a table of the data set names; {DOWNLOAD_AGAIN}"
        raise DataError(problem, archive.filename) from None


def require_members(path: Path, names: Iterable[str]) -> None:
    """Raise DataError unless an archive has all of these files intact; their content is not parsed."""
    with open_archive(path) as archive:
        for name in names:
            read_member(archive, name)


def read_arrays(path: Path, *names: str) -> list[AnyArray]:
    """Read the named arrays of an .npz file; raise DataError if that fails."""
    with open_archive(path) as archive:
        members = [read_member(archive, f"{name}.npy") for name in names]
    try:
        return [load_npy(data) for data in members]
    except (ValueError, EOFError, MemoryError, OverflowError, SyntaxError) as error:
        raise DataError(f"cannot be read as arrays ({error}); {DOWNLOAD_AGAIN}", path) from None


# -- writing -----------------------------------------------------------------------------------------------------------


def write_rows(path: Path, rows: Iterable[Sequence[str]], has_file_name: bool = False) -> int:
    """Write a tab-separated file atomically and return its number of rows; runs of white space become one space.

    With `has_file_name` the first column is a file name, which stays as it is.
    """
    files.make_folder(path.parent)
    lines = []
    for row in rows:
        names, texts = (row[:1], row[1:]) if has_file_name else ((), row)
        lines.append("\t".join([*names, *(" ".join(field.split()) for field in texts)]))
    files.write_file(path, "".join(f"{line}\n" for line in lines).encode())
    return len(lines)


def write_data_set(path: Path, rows: Iterable[Sequence[str]]) -> None:
    """Write tab-separated rows as they are, gzipped if the file name ends with .gz."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = "".join("\t".join(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
