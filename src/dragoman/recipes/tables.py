"""Reading the files of data sets and writing those that a training reads; shared by the recipes' prepare.py.

Lines end at a line feed and nowhere else, columns at a tab. What is written is tab-separated, one pair a line; any run
of white space inside a text becomes one space. What is wrong with a set is a DataError with the file, as it is called,
and the line. `reading` notes which files were read: what was prepared is as old as they are.
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
from typing import TYPE_CHECKING, Any

from dragoman.core import files
from dragoman.core.errors import DataError
from dragoman.data.lines import Line, read_lines
from dragoman.modalities.features import array_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

AGAIN = "copy or download it again"
_read: ContextVar[dict[Path, int | None] | None] = ContextVar("read", default=None)


@contextmanager
def reading() -> Iterator[dict[Path, int | None]]:
    """The files that are read inside, and how many lines of each; None: it is an archive."""
    noted: dict[Path, int | None] = {}
    before = _read.set(noted)
    try:
        yield noted
    finally:
        _read.reset(before)


def _note(path: Path, lines: int | None) -> None:
    if (noted := _read.get()) is not None:
        noted[path] = lines


# -- tables ------------------------------------------------------------------------------------------------------------


class Row(list[str]):
    """The columns of a line, which knows where it stands."""

    def __init__(self, columns: Iterable[str], file: Path, line: int) -> None:
        super().__init__(columns)
        self.file, self.line = file, line

    def wrong(self, problem: str) -> DataError:
        return DataError(problem, self.file, self.line)

    def whole(self, column: int) -> int:
        """A column as a whole number, 0 or more."""
        if not self[column].isdecimal():
            raise self.wrong(f"column {column + 1} is '{self[column]}'; it must be a whole number")
        return int(self[column])

    def number(self, column: int) -> float:
        """A column as a number, 0 or more."""
        try:
            found = float(self[column])
        except ValueError:
            found = -1.0
        if not isfinite(found) or found < 0:
            raise self.wrong(f"column {column + 1} is '{self[column]}'; it must be a number, 0 or more")
        return found


def file_of(path: Path) -> Path:
    """The file as the set has it, with .gz or without."""
    found = path if path.exists() else path.with_name(path.name + ".gz")
    if not found.exists():
        raise DataError("the data set lacks this file (with or without .gz)", path)
    return found


def lines(path: Path) -> Iterator[str]:
    """The lines of a text file, or of the same with .gz."""
    return (line.text for line in _lines(file_of(path)))


def _lines(path: Path) -> Iterator[Line]:
    _note(path, 0)
    for line in read_lines(path, on_error="skip"):  # bad ones come with their reason
        if line.bad:
            raise DataError(f"{line.bad}; save the file as UTF-8, or {AGAIN}", path, line.number)
        _note(path, line.number)
        yield line


def rows(path: Path, least: int = 1, exactly: int | None = None) -> Iterator[Row]:
    """The columns of each line; a line with fewer than it needs, or more than it may have, is an error."""
    found = file_of(path)
    for line in _lines(found):
        row = Row(line.text.split("\t"), found, line.number)
        if exactly is not None and len(row) != exactly:
            raise row.wrong(f"has {_columns(row)}, not {exactly}; mend the line, or {AGAIN}")
        if len(row) < least:
            raise row.wrong(f"has {_columns(row)}, not {least} or more; mend the line, or {AGAIN}")
        yield row


def _columns(row: Row) -> str:
    return "1 column" if len(row) == 1 else f"{len(row)} columns"


def side_by_side(one: Path, other: Path) -> Iterator[tuple[str, str]]:
    """The pairs of two files, line by line; both have as many."""
    places = file_of(one), file_of(other)
    for count, (left, right) in enumerate(zip_longest(*map(lines, places))):
        if left is None or right is None:
            short, long = places if left is None else reversed(places)
            raise DataError(f"ends after line {count:,}, and {long} goes on; line by line they are pairs", short)
        yield left, right


# -- archives ----------------------------------------------------------------------------------------------------------


def archive(path: Path) -> zipfile.ZipFile:
    """A .zip of a data set, opened."""
    try:
        opened = zipfile.ZipFile(path)
    except FileNotFoundError:
        raise DataError("the data set lacks this file", path) from None
    except (OSError, zipfile.BadZipFile) as error:
        raise DataError(f"cannot be opened as a .zip ({error}); {AGAIN}", path) from None
    _note(path, None)
    return opened


def member(opened: zipfile.ZipFile, name: str) -> bytes:
    """A file inside it."""
    try:
        return opened.read(name)
    except (KeyError, OSError, EOFError, zlib.error, zipfile.BadZipFile, NotImplementedError, RuntimeError):
        problem = f"has no whole '{name}', which a table of the set names; {AGAIN}"
        raise DataError(problem, opened.filename) from None


def require(path: Path, names: Iterable[str]) -> None:
    """That an archive has all of these files, whole; what they hold is not looked at."""
    with archive(path) as opened:
        for name in names:
            member(opened, name)


def arrays(path: Path, *names: str) -> list[NDArray[Any]]:
    """The arrays of an .npz, by name."""
    with archive(path) as opened:
        found = [member(opened, f"{name}.npy") for name in names]
    try:
        return [array_of(data) for data in found]
    except (ValueError, EOFError, MemoryError, OverflowError, SyntaxError) as error:
        raise DataError(f"cannot be read as arrays ({error}); {AGAIN}", path) from None


# -- what is written ---------------------------------------------------------------------------------------------------


def write(path: Path, every: Iterable[Sequence[str]], named: bool = False) -> int:
    """Rows into a file, whole or not at all; how many. Where a file is named first, its name stays as it is."""
    files.make_folder(path.parent)
    text = []
    for row in every:
        names, texts = (row[:1], row[1:]) if named else ((), row)
        text.append("\t".join([*names, *(" ".join(field.split()) for field in texts)]))
    files.write(path, "".join(f"{line}\n" for line in text).encode())
    return len(text)


def write_set(path: Path, every: Iterable[Sequence[str]]) -> None:
    """The same as a data set comes: fields as they are, gzipped where the name says so. For made-up data."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = "".join("\t".join(row) + "\n" for row in every).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
