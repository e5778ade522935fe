"""Where a ledger keeps its files: a folder of this machine or a shared disk, or a folder at a URL (core/remote.py).

Both show a file when it is whole: a folder by a rename, an object store by its own rules.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from dragoman.core import files
from dragoman.core.errors import RunError, UserError
from dragoman.core.remote import RemoteFolder, StoredFile, is_url


class Storage(Protocol):
    """Files that are read and written whole."""

    def names(self) -> set[str]: ...

    def files(self) -> Iterator[StoredFile]: ...

    def exists(self, name: str) -> bool: ...

    def read(self, name: str) -> bytes: ...

    def write(self, name: str, data: bytes) -> None: ...

    def remove(self, name: str) -> None: ...

    def make(self) -> None: ...


class LocalFolder:
    """A folder of this machine, which may be on a disk that many machines share."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __str__(self) -> str:
        return str(self.path)

    def names(self) -> set[str]:
        """The names of the files in the folder; none if it does not exist."""
        try:
            return set(os.listdir(self.path))
        except FileNotFoundError:
            return set()
        except NotADirectoryError:
            raise UserError(f"{self.path}: is a file; name a folder for the shards") from None
        except OSError as error:
            raise RunError(f"{self.path}: cannot be read: {error.strerror}") from None

    def files(self) -> Iterator[StoredFile]:
        """The files in the folder, with their sizes and times."""
        for name in self.names():
            with suppress(FileNotFoundError):  # it was renamed or removed just now
                status = (self.path / name).stat()
                yield StoredFile(name, status.st_size, status.st_mtime)

    def exists(self, name: str) -> bool:
        """Whether there is a file of this name."""
        return (self.path / name).exists()

    def read(self, name: str) -> bytes:
        """Read a file; FileNotFoundError if there is none."""
        try:
            with files.open_plain(self.path / name) as file:
                return file.read()
        except (FileNotFoundError, NotADirectoryError):
            raise FileNotFoundError(name) from None
        except OSError as error:
            raise UserError(f"{self.path / name}: cannot be read: {error.strerror or error}") from None

    def write(self, name: str, data: bytes) -> None:
        """Write a file aside, flush it and rename it."""
        files.write_shared(self.path / name, data)

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        with files.explain_write_errors(self.path / name, 0):
            (self.path / name).unlink(missing_ok=True)

    def make(self) -> None:
        """Make the folder and those on its way."""
        files.make_folder(self.path)


def open_storage(folder: str | Path) -> Storage:
    """The storage of a path or a URL."""
    return RemoteFolder(str(folder)) if is_url(folder) else LocalFolder(Path(folder))
