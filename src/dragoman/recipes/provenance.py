"""What prepared data was made of, written beside it, so that a set that was mended, or another one, is noticed.

    {"from": ["/sets/scan"], "files": {"/sets/scan/simple.train.tsv.gz": [bytes, time of change, hash]}}

A file is the same while its size and time are; where they are not, its hash decides.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

Stamp = list[Any]  # bytes, nanoseconds, hash


@dataclass(frozen=True)
class Origin:
    """Folders of data sets, or a phrase for what was made up; and the files that were read of them."""

    places: list[str]
    files: dict[str, Stamp] = field(default_factory=dict)

    def text(self) -> str:
        told = asdict(self)
        return json.dumps({"from": told["places"], "files": told["files"]}, indent=1, ensure_ascii=False) + "\n"

    def changed(self) -> list[str]:
        """The files that are not what they were."""
        return [path for path, stamp in self.files.items() if not _same(Path(path), stamp)]


def of(sets: Mapping[str, Path], read: Iterable[Path]) -> Origin:
    """The origin of what was prepared from these files of data sets."""
    inside = [(folder.resolve(), path) for path in read for folder in sets.values() if within(path, folder)]
    return Origin(
        sorted({str(folder) for folder, _ in inside}), {str(path.absolute()): _stamp(path) for _, path in inside}
    )


def within(path: Path, folder: Path) -> bool:
    return path.is_relative_to(folder) or path.is_relative_to(folder.resolve())


def load(path: Path) -> Origin | None:
    """What was written; None where that cannot be read."""
    try:
        found = json.loads(path.read_bytes())
        return Origin(found["from"], found["files"])
    except (ValueError, KeyError, TypeError):
        return None


def _stamp(path: Path) -> Stamp:
    found = path.stat()
    return [found.st_size, found.st_mtime_ns, _hash(path)]


def _same(path: Path, stamp: Stamp) -> bool:
    if not path.is_file():
        return False
    found = path.stat()
    return [found.st_size, found.st_mtime_ns] == stamp[:2] or (found.st_size == stamp[0] and _hash(path) == stamp[2])


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
