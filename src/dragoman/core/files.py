"""Files that are either whole or not there: written aside, flushed to the disk, renamed into place.

A process killed at any moment leaves the old file or the new one, and at most a `.tmp-…` beside it. The permission bits
follow the user's umask, so that others can read a model.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from dragoman.core.errors import RunError

TEMPORARY = ".tmp-"
BLOCK = 4096  # bytes: a file takes whole blocks of a disk


def write(path: Path, data: bytes) -> None:
    """One file, whole or not at all."""
    aside = path.with_name(f"{TEMPORARY}{path.name}-{os.getpid()}")
    with writing(path, len(data)):
        try:
            _put(aside, data)
            aside.replace(path)
            _flush_folder(path.parent)
        except BaseException:
            with suppress(OSError):
                aside.unlink()
            raise


@contextmanager
def aside(path: Path) -> Iterator[IO[bytes]]:
    """A file to write piece by piece, which appears under its name when all of it is there."""
    place = path.with_name(f"{TEMPORARY}{path.name}-{os.getpid()}")
    with writing(path, 0):
        try:
            with place.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            place.replace(path)
            _flush_folder(path.parent)
        except BaseException:
            with suppress(OSError):
                place.unlink()
            raise


def write_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    """A folder of files, whole or not at all; `folder` must not exist."""
    aside = folder.with_name(f"{TEMPORARY}{folder.name}-{os.getpid()}")
    with writing(folder, sum(-(-len(data) // BLOCK) * BLOCK for data in files.values())):
        try:
            aside.mkdir(parents=True)
            for name, data in files.items():
                _put(aside / name, data)
            _flush_folder(aside)
            aside.rename(folder)
            _flush_folder(folder.parent)
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise


def remove_folder(folder: Path) -> None:
    """Take a folder away so that no half of it is ever seen under its name."""
    aside = folder.with_name(f"{TEMPORARY}{folder.name}-{os.getpid()}")
    folder.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)


def sweep(folder: Path) -> list[str]:
    """Remove what a killed process left half-written; the names of what was removed."""
    left = sorted(folder.glob(f"{TEMPORARY}*")) if folder.is_dir() else []
    for path in left:
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
    return [path.name for path in left]


def make_folder(folder: Path) -> None:
    with writing(folder, 0):
        folder.mkdir(parents=True, exist_ok=True)


@contextmanager
def writing(path: Path, size: int) -> Iterator[None]:
    """Turn what a disk can refuse into one sentence with the path, the reason and a hint."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            needed = f"{size:,} bytes are needed, " if size else ""
            raise RunError(
                f"{path}: the disk is full: {needed}{_free(path):,} bytes are free. "
                "What was saved before is untouched; free some space and run the same command again"
            ) from None
        hint = "choose another place, or change its permissions"
        raise RunError(f"{path}: cannot be written: {reason}; {hint}") from None


def _free(path: Path) -> int:
    place = path
    while not place.exists() and place != place.parent:
        place = place.parent
    return shutil.disk_usage(place).free


def _put(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _flush_folder(folder: Path) -> None:
    with suppress(OSError):  # some file systems cannot flush a folder; the rename is still atomic
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
