"""Read the file that a source names: a plain file, or a member of a .zip, .tar or .npz archive that stays packed.

A .tar may be compressed with gzip, bzip2 or xz. The suffix of a name, in any case, decides what is an archive.

    photo.jpg                 beside the file that names it, in the working folder, or below one of the search paths
    photos.zip/a/photo.jpg    a member of an archive in any of these

Search paths are folders and archives, tried in order. A process keeps an archive open together with
its list of members. A forked process opens it again, because both would share one file position. An
example may carry the bytes of its source; then no file is read.
"""

from __future__ import annotations

import os
import tarfile
import zipfile
from collections.abc import Sequence
from functools import cached_property, lru_cache
from pathlib import Path, PurePosixPath
from typing import IO

from dragoman.core.errors import DataError
from dragoman.core.types import Example

ARCHIVE_SUFFIXES = (".zip", ".npz", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
MAX_SOURCE_BYTES = 1 << 30  # a larger file is neither an image nor a clip


class Archive:
    """An open archive: the sizes of its members by name, and their bytes."""

    sizes: dict[str, int]

    def extract(self, name: str) -> bytes:
        """The bytes of a member, whatever its size."""
        raise NotImplementedError

    def read(self, name: str) -> bytes | None:
        """The bytes of a member, whose .npy suffix may be left out; None if there is none, ValueError if too large."""
        name = name if name in self.sizes else f"{name}.npy"
        if name not in self.sizes:
            return None
        if self.sizes[name] > MAX_SOURCE_BYTES:
            raise ValueError(f"'{name}' has {self.sizes[name]:,} bytes; the limit is {MAX_SOURCE_BYTES:,}")
        return self.extract(name)

    @cached_property
    def folders(self) -> dict[str, list[str]]:
        """Folder → names of its files."""
        folders: dict[str, list[str]] = {}
        for member in self.sizes:
            folder, _, name = member.rpartition("/")
            folders.setdefault(folder, []).append(name)
        return folders


class ZipArchive(Archive):
    """A .zip archive, or an .npz, which is one."""

    def __init__(self, path: Path | IO[bytes]) -> None:
        self.file = zipfile.ZipFile(path)
        self.sizes = {info.filename: info.file_size for info in self.file.infolist() if not info.is_dir()}

    def extract(self, name: str) -> bytes:
        return self.file.read(name)


class TarArchive(Archive):
    """A .tar archive. Use an uncompressed one: a compressed one is read from its start for every step backwards."""

    def __init__(self, path: Path) -> None:
        self.file = tarfile.open(path)  # noqa: SIM115 - open as long as the process
        self.members = {info.name.removeprefix("./"): info for info in self.file if info.isfile()}
        self.sizes = {name: info.size for name, info in self.members.items()}

    def extract(self, name: str) -> bytes:
        content = self.file.extractfile(self.members[name])
        assert content is not None  # a file
        return content.read()


@lru_cache(maxsize=64)
def _open_cached(path: Path, process: int, modified: int) -> Archive:
    return ZipArchive(path) if path.suffix.lower() in (".zip", ".npz") else TarArchive(path)


def open_archive(path: Path) -> Archive:
    """Open an archive, or take it from the cache; DataError if it is damaged."""
    try:
        return _open_cached(path, os.getpid(), path.stat().st_mtime_ns)
    except Exception as error:  # damaged archives raise all kinds of errors (zlib.error, …)
        if isinstance(error, OSError) and error.strerror:  # from the disk, not from the format
            raise DataError(f"the archive cannot be opened ({error.strerror})", path) from None
        reason = str(error)
        if isinstance(error, tarfile.ReadError) and "\n" in reason:  # a line for each compression that was tried
            reason = "it is no tar file" if path.stat().st_size else "it is empty"
        raise DataError(f"the archive cannot be opened ({reason}); make or copy it anew", path) from None


def has_archive_suffix(name: str) -> bool:
    """Whether a file name ends like an archive."""
    return name.lower().endswith(ARCHIVE_SUFFIXES)


def is_archive(path: Path) -> bool:
    """Whether a path is an existing file with the suffix of an archive."""
    return has_archive_suffix(path.name) and path.is_file()


def check_search_paths(search_paths: Sequence[str]) -> None:
    """Raise DataError for a search path that is missing, or is neither a folder nor an archive."""
    for path in map(Path, search_paths):
        if not path.exists():
            raise DataError("there is no such folder or archive to look for files in", path)
        if not path.is_dir() and not is_archive(path):
            suffixes = ", ".join(ARCHIVE_SUFFIXES)
            raise DataError(f"neither a folder nor an archive to look for files in ({suffixes})", path)


def read_content(example: Example, search_paths: Sequence[str] = ()) -> bytes:
    """The bytes of an example's source: its own, or those of the file it names; DataError lists where it searched."""
    if example.content is not None:
        return example.content
    name, roots = example.source.strip(), candidate_roots(example, search_paths)
    try:
        for root in roots:
            content = _read_from(name, root)
            if content is not None:
                return content
        if any((root / name).is_dir() for root in roots if name):
            files = f"{name.rstrip('/')}/*"
            raise source_error(
                example, f"is a folder, not a file; name the files in it, on the command line as {files}"
            )
    except DataError:
        raise
    except Exception as error:  # damaged archives raise all kinds of errors
        raise source_error(example, f"cannot be read ({error})") from None
    searched = ", ".join(f"'{root}'" for root in roots)
    raise DataError(
        f"there is no file '{name}' (searched in {searched}); add folders or archives with data.files or --files",
        example.file or None,
        example.line or None,
    )


def source_error(example: Example, problem: str) -> DataError:
    """A DataError about the file that an example names: `file:line: 'name' problem`."""
    return DataError(f"'{example.source.strip()}' {problem}", example.file or None, example.line or None)


def candidate_roots(example: Example, search_paths: Sequence[str]) -> list[Path]:
    """The folders and archives that may hold the source of an example, in the order of the search."""
    return list(dict.fromkeys([*map(Path, example_folders(example)), Path(), *map(Path, search_paths)]))


def example_folders(example: Example) -> list[str]:
    """The folder of the file that an example was read from; [] if it was not read from a file."""
    return [os.path.dirname(example.file) or "."] if example.file and example.file != "-" else []


def locate_member(name: str, root: Path) -> tuple[Archive, str] | None:
    """The archive that holds a name, which is the root itself or part of the name, and the member's name in it."""
    location = (root, name) if is_archive(root) else split_archive_path(name, root)
    return None if location is None else (open_archive(location[0]), location[1])


def split_archive_path(name: str, root: str | Path) -> tuple[Path, str] | None:
    """Split photos.zip/a/photo.jpg below a root into archive and member; None if no part is an archive."""
    if not any(suffix in name.lower() for suffix in ARCHIVE_SUFFIXES):
        return None
    parts = PurePosixPath(name).parts
    for i in range(1, len(parts)):
        archive = Path(root, *parts[:i])
        if is_archive(archive):
            return archive, "/".join(parts[i:])
    return None


def source_files(example: Example, search_paths: Sequence[str] = ()) -> list[str]:
    """The files whose bytes decide what a source contains: the named file, or all files of the named folder.

    For a member it is the archive, if the name contains one. Archives among the search paths are not opened.
    """
    name = example.source.strip()
    for root in [*example_folders(example), "", *search_paths] if name else ():
        path = os.path.join(root, name)  # strings: for the 100,000 files of a corpus, Path took three times as long
        if os.path.isfile(path):
            return [path]
        if os.path.isdir(path):
            return sorted(entry.path for entry in os.scandir(path) if entry.is_file())
        if location := split_archive_path(name, root):
            return [str(location[0])]
    return []


def _read_from(name: str, root: Path) -> bytes | None:
    path = root / name
    if path.is_file() and not is_archive(root):
        if path.stat().st_size > MAX_SOURCE_BYTES:
            raise ValueError(f"it has {path.stat().st_size:,} bytes; the limit is {MAX_SOURCE_BYTES:,}")
        return path.read_bytes()
    member = locate_member(name, root)
    return None if member is None else member[0].read(member[1])
