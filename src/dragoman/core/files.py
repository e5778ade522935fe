"""Write files and folders atomically: under a temporary name, flushed to the disk, then renamed.

A process killed at any moment leaves the old file or the new one, and at most a `.tmp-…` beside it.
The permissions follow the user's umask, so that others can read a model.
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

TEMPORARY_PREFIX = ".tmp-"
DISK_BLOCK = 4096  # bytes: a file occupies whole blocks


def write_file(path: Path, data: bytes) -> None:
    """Write a file atomically, flushed to the disk; RunError explains a failure."""
    with open_atomic(path, len(data)) as file:
        file.write(data)


@contextmanager
def open_atomic(path: Path, size: int = 0) -> Iterator[IO[bytes]]:
    """Open a file to write piece by piece; it appears under its name when the block ends without an error."""
    temporary = _temporary_path(path)
    with explain_write_errors(path, size):
        try:
            with _open_flushed(temporary) as file:
                yield file
            temporary.replace(path)
            _flush_folder(path.parent)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise


def write_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write a folder of files atomically; `folder` must not exist. RunError explains a failure."""
    temporary = _temporary_path(folder)
    with explain_write_errors(folder, sum(-(-len(data) // DISK_BLOCK) * DISK_BLOCK for data in files.values())):
        try:
            temporary.mkdir(parents=True)
            for name, data in files.items():
                with _open_flushed(temporary / name) as file:
                    file.write(data)
            _flush_folder(temporary)
            temporary.rename(folder)
            _flush_folder(folder.parent)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise


def remove_folder(folder: Path) -> None:
    """Rename a folder, then remove it: it is never half removed under its own name."""
    temporary = _temporary_path(folder)
    folder.rename(temporary)
    shutil.rmtree(temporary, ignore_errors=True)


def remove_temporary(folder: Path) -> list[str]:
    """Remove temporary files and folders that a killed process left; returns their names."""
    leftovers = sorted(folder.glob(f"{TEMPORARY_PREFIX}*")) if folder.is_dir() else []
    for path in leftovers:
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
    return [path.name for path in leftovers]


def make_folder(folder: Path) -> None:
    """Create a folder and its parents, unless it exists; RunError explains a failure."""
    with explain_write_errors(folder, 0):
        folder.mkdir(parents=True, exist_ok=True)


@contextmanager
def explain_write_errors(path: Path, size: int) -> Iterator[None]:
    """Turn an OSError of writing into a RunError with path, reason and remedy; `size` is the bytes needed, if known."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            needed = f"{size:,} bytes are needed, " if size else ""
            raise RunError(
                f"{path}: the disk is full: {needed}{_free_bytes(path):,} bytes are free. "
                "Files saved before are unchanged; free some space and run the same command again"
            ) from None
        reason, hint = error.strerror or str(error), "choose another folder, or change its permissions"
        raise RunError(f"{path}: cannot be written: {reason}; {hint}") from None


def _free_bytes(path: Path) -> int:
    """The free bytes on the disk of a path, which need not exist yet."""
    return shutil.disk_usage(next(place for place in (path, *path.parents) if place.exists())).free


def _temporary_path(path: Path) -> Path:
    return path.with_name(f"{TEMPORARY_PREFIX}{path.name}-{os.getpid()}")


@contextmanager
def _open_flushed(path: Path) -> Iterator[IO[bytes]]:
    """Open a file to write; it is flushed to the disk at the end."""
    with path.open("wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def _flush_folder(folder: Path) -> None:
    with suppress(OSError):  # some file systems cannot flush a folder; the rename is still atomic
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
