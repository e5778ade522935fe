"""Record which files prepared data was made from, so that a data set that changed, or another one, is noticed.

    {"from": ["/sets/scan"], "files": {"/sets/scan/simple.train.tsv.gz": [bytes, modification time in ns, SHA-256]}}

A file is unchanged if its size and modification time are; if only the time differs, its hash decides.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

FileStamp = list[int | str]  # bytes, nanoseconds, hash


@dataclass(frozen=True)
class DataOrigin:
    """The folders of data sets, or a phrase for generated data, and the files that were read."""

    sources: list[str]
    files: dict[str, FileStamp] = field(default_factory=dict)

    def to_json(self) -> str:
        """The origin as the text of a JSON file."""
        return json.dumps({"from": self.sources, "files": self.files}, indent=1, ensure_ascii=False) + "\n"

    def changed_files(self) -> list[str]:
        """The paths of files whose content has changed, or that are gone."""
        return [path for path, stamp in self.files.items() if not _is_unchanged(Path(path), stamp)]


def record_origin(data_sets: Mapping[str, Path], files_read: Iterable[Path]) -> DataOrigin:
    """Record the data sets' folders and a stamp of each file read from them; other files are left out."""
    own = [(folder.resolve(), path) for path in files_read for folder in data_sets.values() if is_within(path, folder)]
    return DataOrigin(
        sorted({str(folder) for folder, _ in own}), {str(path.absolute()): _stamp(path) for _, path in own}
    )


def is_within(path: Path, folder: Path) -> bool:
    """Whether a path lies below a folder, or below the folder that the folder links to."""
    return path.is_relative_to(folder) or path.is_relative_to(folder.resolve())


def load_origin(path: Path) -> DataOrigin | None:
    """Read a recorded origin; None if the file cannot be parsed."""
    try:
        value = json.loads(path.read_bytes())
        return DataOrigin(value["from"], value["files"])
    except (ValueError, KeyError, TypeError):
        return None


def _stamp(path: Path) -> FileStamp:
    """The size, modification time and SHA-256 hash of a file."""
    info = path.stat()
    return [info.st_size, info.st_mtime_ns, _hash(path)]


def _is_unchanged(path: Path, stamp: FileStamp) -> bool:
    """Whether a file still exists with the stamp's size and time, or else with its size and hash."""
    if not path.is_file():
        return False
    info = path.stat()
    return [info.st_size, info.st_mtime_ns] == stamp[:2] or (info.st_size == stamp[0] and _hash(path) == stamp[2])


def _hash(path: Path) -> str:
    """The SHA-256 hash of a file's content, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
