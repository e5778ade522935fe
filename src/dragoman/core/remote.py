"""Files at URLs (s3://, gs://, hdfs://, …), through fsspec and the package that it names for each.

Objects are put whole, and a store shows an object when it is complete. Calls that fail are tried again: all that is
done here may be done twice. fsspec is imported only if a URL is given.
"""

from __future__ import annotations

import atexit
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from dragoman.core.errors import MissingExtra, RunError, UserError

FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
URL = re.compile(r"[a-z][a-z0-9+.\-]+://.")
TRIES = 4
FIRST_DELAY_S = 0.5  # before the second try; then twice as long each time

Result = TypeVar("Result")


def is_url(path: object) -> bool:
    """Whether a path is a URL."""
    return URL.match(str(path)) is not None


class StoredFile(NamedTuple):
    """A file in a folder."""

    name: str
    size: int
    modified: float  # seconds since 1970; 0 where the store does not say


class RemoteFolder:
    """A folder at a URL: files are read and written whole."""

    def __init__(self, url: str) -> None:
        """Connect to the store; MissingExtra or UserError if that cannot be."""
        self.url = url.rstrip("/")
        try:
            import fsspec
        except ImportError:
            raise MissingExtra("fsspec", "remote", f"{url}") from None
        try:
            self._system, self._path = fsspec.core.url_to_fs(self.url, use_listings_cache=False)
        except ImportError as error:  # fsspec names the package of the store
            named = re.search(r"[Ii]nstall ([\w-]+)", str(error))
            if named is None:
                raise UserError(f"{url}: {error}") from None
            if named[1] == "s3fs":
                raise MissingExtra("s3fs", "remote", f"{url}") from None
            raise UserError(f"{url} needs the package '{named[1]}'. Install it with: pip install {named[1]}") from None
        except ValueError as error:
            raise UserError(f"{url}: {error}") from None

    def __str__(self) -> str:
        return self.url

    def names(self) -> set[str]:
        """The names of the files in the folder; none if it does not exist."""
        return {file.name for file in self.files()}

    def files(self) -> Iterator[StoredFile]:
        """The files in the folder; none if it does not exist."""

        def list_files() -> list[dict[str, Any]]:
            self._system.invalidate_cache(self._path)
            try:
                found: list[dict[str, Any]] = self._system.ls(self._path, detail=True)
            except FileNotFoundError:
                return []
            return found

        for entry in self._try(list_files, self.url):
            if entry["type"] == "file":
                modified = entry.get("LastModified") or entry.get("mtime") or entry.get("created") or 0.0
                seconds = modified.timestamp() if hasattr(modified, "timestamp") else float(modified)
                yield StoredFile(entry["name"].rpartition("/")[2], int(entry["size"] or 0), seconds)

    def read(self, name: str) -> bytes:
        """Read a file; FileNotFoundError if there is none."""
        path = f"{self._path}/{name}"
        data: bytes = self._try(lambda: self._system.cat_file(path), f"{self.url}/{name}")
        return data

    def write(self, name: str, data: bytes) -> None:
        """Write a file, which appears when it is whole."""
        path = f"{self._path}/{name}"
        self._try(lambda: self._system.pipe_file(path, data), f"{self.url}/{name}")

    def exists(self, name: str) -> bool:
        """Whether there is a file of this name."""
        found: bool = self._try(lambda: self._system.exists(f"{self._path}/{name}"), f"{self.url}/{name}")
        return found

    def make(self) -> None:
        """Nothing: the first file makes the folder."""

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""

        def remove() -> None:
            try:
                self._system.rm_file(f"{self._path}/{name}")  # of most stores also if it is not there
            except FileNotFoundError:
                return

        self._try(remove, f"{self.url}/{name}")

    def download(self, name: str, target: Path) -> None:
        """Copy a file to this machine."""
        path = f"{self._path}/{name}"
        self._try(lambda: self._system.get_file(path, str(target)), f"{self.url}/{name}")

    def _try(self, work: Callable[[], Result], url: str) -> Result:
        for number in range(TRIES):
            try:
                return work()
            except (FileNotFoundError, PermissionError, IsADirectoryError) as error:
                if isinstance(error, FileNotFoundError):
                    raise
                raise RunError(f"{url}: {error.strerror or error}; check the name and your rights") from None
            except Exception as error:  # of any store's package, most of them for a while only
                if number == TRIES - 1:
                    reason = (str(error) or type(error).__name__).splitlines()[0]
                    raise RunError(f"{url}: failed {TRIES} times: {reason}; run the same command again") from None
                time.sleep(FIRST_DELAY_S * 2**number)
        raise AssertionError("unreachable")


def fetch_file(url: str) -> Path:
    """Copy the file at a URL into a temporary folder, which goes with this process."""
    folder, _, name = url.rpartition("/")
    target = _temporary_folder() / name
    try:
        RemoteFolder(folder).download(name, target)
    except FileNotFoundError:
        raise UserError(f"{url}: there is no such file") from None
    return target


def _temporary_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="dragoman-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def fetch_model(url: str) -> Path:
    """Copy a model folder, the best checkpoint of a run, or a packed model into a temporary folder.

    Its training state is left out. Loading checks the files against the manifest.
    """
    if url.endswith(".zip"):
        return fetch_file(url)
    folder = RemoteFolder(url)
    names = {file.name for file in folder.files()}
    pointer = next((name for name in ("best", "last") if name in names), None)
    if "manifest.json" not in names and pointer is not None:
        name = folder.read(pointer).decode("utf-8", "replace").strip()
        if not FILE_NAME.fullmatch(name):
            raise UserError(f"{url}/{pointer}: names no checkpoint")
        folder = RemoteFolder(f"{folder.url}/checkpoints/{name}")
        names = {file.name for file in folder.files()}
    if "manifest.json" not in names:
        raise UserError(f"{url}: there is no model: neither a manifest.json nor a run with a checkpoint")
    target = _temporary_folder() / folder.url.rpartition("/")[2]
    target.mkdir()
    for name in sorted(filter(FILE_NAME.fullmatch, names)):
        if name.startswith("training."):
            continue
        folder.download(name, target / name)
    return target
