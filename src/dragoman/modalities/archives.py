"""The bytes behind a name: a file, or a member of a .zip, .tar or .npz archive, which is never unpacked.

A .tar may be compressed by gzip, bzip2 or xz. The endings of names say what is an archive, in upper or lower case.

    photo.jpg                 beside the file that names it, from here, or in one of the places given
    photos.zip/a/photo.jpg    a member of an archive, wherever archives may stand

Places are folders and archives; they are looked through in their order. An archive stays open, with the list of its
members, for as long as its process; a fork opens it anew, since two processes would move each other's place in it.
An example may bring the bytes themselves instead; then no file is looked for.
"""

from __future__ import annotations

import os
import tarfile
import zipfile
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import IO, Any, Protocol

from dragoman.core.errors import DataError
from dragoman.core.types import Example

ARCHIVES = (".zip", ".npz", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
LARGEST = 1 << 30  # bytes of one source: what claims more is no image and no clip


class Archive(Protocol):
    """The members of an archive by name."""

    members: dict[str, Any]

    def read(self, name: str) -> bytes | None: ...

    def __hash__(self) -> int: ...


class Zip:
    """A .zip, or an .npz, which is one."""

    def __init__(self, path: Path | IO[bytes]) -> None:
        self.file = zipfile.ZipFile(path)
        self.members = {info.filename: info for info in self.file.infolist() if not info.is_dir()}

    def read(self, name: str) -> bytes | None:
        info = self.members.get(name) or self.members.get(f"{name}.npy")
        if info is None:
            return None
        if info.file_size > LARGEST:
            raise ValueError(f"'{name}' has {info.file_size:,} bytes, more than a source may have")
        return self.file.read(info)


class Tar:
    """A .tar; a compressed one is read from its beginning for each step back, so a plain one is better."""

    def __init__(self, path: Path) -> None:
        self.file = tarfile.open(path)  # noqa: SIM115 - open as long as the process
        self.members = {info.name.removeprefix("./"): info for info in self.file if info.isfile()}

    def read(self, name: str) -> bytes | None:
        info = self.members.get(name)
        if info is None:
            return None
        if info.size > LARGEST:
            raise ValueError(f"'{name}' has {info.size:,} bytes, more than a source may have")
        content = self.file.extractfile(info)
        return content.read() if content is not None else None


@lru_cache(maxsize=64)
def _opened(path: Path, process: int, changed: int) -> Archive:
    """An archive, once for each process, and again after it changed."""
    return Zip(path) if path.suffix.lower() in (".zip", ".npz") else Tar(path)


def archive(path: Path) -> Archive:
    try:
        return _opened(path, os.getpid(), path.stat().st_mtime_ns)
    except Exception as error:  # a damaged one makes their readers raise whatever they stumble over (zlib.error, …)
        if isinstance(error, OSError) and error.strerror:  # of the disk, not of what is on it
            raise DataError(f"the archive cannot be opened ({error.strerror})", path) from None
        reason = str(error)
        if isinstance(error, tarfile.ReadError) and "\n" in reason:  # a line for each compression that was tried
            reason = "it is no tar file" if path.stat().st_size else "it is empty"
        raise DataError(f"the archive cannot be opened ({reason}); make or copy it anew", path) from None


def called_archive(name: str) -> bool:
    return name.lower().endswith(ARCHIVES)


def is_archive(path: Path) -> bool:
    return called_archive(path.name) and path.is_file()


def check_places(places: Sequence[str]) -> None:
    """Refuse places in which no file could be found: what is not there, and files that are no archives."""
    for place in map(Path, places):
        if not place.exists():
            raise DataError("there is no such folder or archive to look for files in", place)
        if not place.is_dir() and not is_archive(place):
            raise DataError(f"neither a folder nor an archive to look for files in ({', '.join(ARCHIVES)})", place)


def content(example: Example, places: Sequence[str] = ()) -> bytes:
    """The bytes that the source of an example brings or names, or an error that says where it was looked for."""
    if example.content is not None:
        return example.content
    name, looked = example.source.strip(), where(example, places)
    try:
        for place in looked:
            found = _looked_up(name, place)
            if found is not None:
                return found
        if any((place / name).is_dir() for place in looked if name):
            raise DataError(
                f"'{name}' is a folder, not a file; name the files in it, on the command line as {name.rstrip('/')}/*",
                example.file or None,
                example.line or None,
            )
    except DataError:
        raise
    except Exception as error:  # as above
        raise DataError(f"'{name}' cannot be read ({error})", example.file or None, example.line or None) from None
    said = ", ".join(f"'{place}'" for place in looked)
    raise DataError(
        f"there is no file '{name}' (looked in {said}); data.files, or --files, names more places",
        example.file or None,
        example.line or None,
    )


def where(example: Example, places: Sequence[str]) -> list[Path]:
    """The folders and archives in which the source of an example is looked for."""
    return list(dict.fromkeys([*map(Path, beside(example)), Path(), *map(Path, places)]))


def beside(example: Example) -> list[str]:
    """The folder of the file that an example is from, if it is from one."""
    return [os.path.dirname(example.file) or "."] if example.file and example.file != "-" else []


def inside_of(name: str, place: Path) -> tuple[Archive, str] | None:
    """The archive that a place is, or that a part of the name is, and the name in it."""
    found = (place, name) if is_archive(place) else split(name, place)
    return None if found is None else (archive(found[0]), found[1])


def split(name: str, place: str | Path) -> tuple[Path, str] | None:
    """The archive that a part of a name is, and its member that the rest names: photos.zip/a/photo.jpg."""
    if not any(ending in name.lower() for ending in ARCHIVES):
        return None
    parts = PurePosixPath(name).parts
    for i in range(1, len(parts)):
        outer = Path(place, *parts[:i])
        if is_archive(outer):
            return outer, "/".join(parts[i:])
    return None


def behind(example: Example, places: Sequence[str] = ()) -> list[str]:
    """The files whose bytes decide what the source of an example is: the one it names, or all in the folder it names.

    Of a member it is the archive, where the name says so; archives among the places are not looked into.
    """
    name = example.source.strip()
    for place in [*beside(example), "", *places] if name else ():
        path = os.path.join(place, name)  # as text: a corpus may name 100,000 files, and Path took three times as long
        if os.path.isfile(path):
            return [path]
        if os.path.isdir(path):
            return sorted(entry.path for entry in os.scandir(path) if entry.is_file())
        if inner := split(name, place):
            return [str(inner[0])]
    return []


def _looked_up(name: str, place: Path) -> bytes | None:
    """The bytes of a name in a folder or an archive; None: it is not there."""
    path = place / name
    if path.is_file() and not is_archive(place):
        if path.stat().st_size > LARGEST:
            raise ValueError(f"it has {path.stat().st_size:,} bytes, more than a source may have")
        return path.read_bytes()
    found = inside_of(name, place)
    return None if found is None else found[0].read(found[1])
