"""Reading the files of data sets and writing those that a training reads; shared by the recipes' prepare.py.

Lines end at a line feed and nowhere else, columns at a tab. What is written is tab-separated, one pair a line; any run
of white space inside a text becomes one space.
"""

from __future__ import annotations

import gzip
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from dragoman.core import files
from dragoman.core.errors import DataError
from dragoman.data.lines import read_lines


def lines(path: Path) -> Iterator[str]:
    """The lines of a text file, or of the same with .gz."""
    found = path if path.exists() else path.with_name(path.name + ".gz")
    if not found.exists():
        raise DataError("the data set lacks this file (with or without .gz)", path)
    return (line.text for line in read_lines(found))


def rows(path: Path, least: int = 1) -> Iterator[list[str]]:
    """The columns of each line; a line with fewer than it needs is an error with its number."""
    for number, line in enumerate(lines(path), 1):
        fields = line.split("\t")
        if len(fields) < least:
            raise DataError(f"has {len(fields)} columns, not {least} or more", path, number)
        yield fields


def archive(path: Path) -> zipfile.ZipFile:
    """A .zip of a data set, opened."""
    try:
        return zipfile.ZipFile(path)
    except FileNotFoundError:
        raise DataError("the data set lacks this file", path) from None
    except (OSError, zipfile.BadZipFile) as error:
        raise DataError(f"cannot be opened as a .zip ({error}); copy or download it again", path) from None


def member(opened: zipfile.ZipFile, name: str) -> bytes:
    """A file inside it."""
    try:
        return opened.read(name)
    except (KeyError, OSError, EOFError, zlib.error, zipfile.BadZipFile):
        problem = f"has no whole '{name}', which a table of the set names; copy or download it again"
        raise DataError(problem, opened.filename) from None


def write(path: Path, every: Iterable[Sequence[str]]) -> int:
    """Rows into a file, whole or not at all; how many."""
    files.make_folder(path.parent)
    text = ["\t".join(" ".join(field.split()) for field in row) for row in every]
    files.write(path, "".join(f"{line}\n" for line in text).encode())
    return len(text)


def write_set(path: Path, every: Iterable[Sequence[str]]) -> None:
    """The same as a data set comes: fields as they are, gzipped where the name says so. For made-up data."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = "".join("\t".join(row) + "\n" for row in every).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
