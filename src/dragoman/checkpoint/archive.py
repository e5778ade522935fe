"""A packed model: the files of a model folder in one zip. They are read where they are and never unpacked.

    hungarian.zip   MODEL.md  card.json  config.yaml  manifest.json  model.safetensors  *.tokenizer.*

    write_archive   files → a zip whose bytes depend on them alone: one order, one date, nothing compressed
    open_member     hungarian.zip/config.yaml → a stream of its bytes

Nothing reaches the disk, so nothing is left there, is shared with others, or fails where the disk is read-only. A zip
may be a stranger's: its directory is checked whole before a byte of a file is read, and its files have plain names,
are not encrypted, and may not be much larger than the zip. What is in them is checked as in a folder (model_folder.py).
"""

from __future__ import annotations

import errno
import io
import os
import shutil
import stat
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from dragoman.checkpoint.model_paths import FILE_NAME
from dragoman.core import files
from dragoman.core.errors import ModelError

SIGNATURE = b"PK\x03\x04"  # of the first file in a zip; an empty zip begins otherwise
DATE = (1980, 1, 1, 0, 0, 0)  # the earliest that a zip can hold
MAX_DIRECTORY_BYTES = 2**17  # an entry has 60
MIN_UNPACKED_BYTES, MAX_RATIO = 2**25, 10  # of all files together; weights can hardly be compressed
ENCRYPTION_FLAGS = 0x2041  # encrypted, strongly encrypted, and with an encrypted directory
COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


def is_archive(path: Path) -> bool:
    """Whether a path is a file that begins as a zip does."""
    if not os.path.isfile(path):
        return False
    with files.explain_read_errors(path), open(path, "rb") as file:
        return file.read(len(SIGNATURE)) == SIGNATURE


def write_archive(path: Path, contents: Mapping[str, tuple[IO[bytes], int]], inputs: Iterable[Path] = ()) -> None:
    """Write a zip of streams with their sizes, by name; `path` is a user's, and none of the `inputs`."""
    files.make_folder(path.parent)
    with files.open_output(path, inputs) as file, zipfile.ZipFile(file, "w") as archive:
        for name, (stream, size) in sorted(contents.items()):
            info = zipfile.ZipInfo(name, DATE)
            info.create_system, info.external_attr, info.file_size = 3, 0o644 << 16, size  # 3: Unix, on every system
            with archive.open(info, "w") as member:
                shutil.copyfileobj(stream, member, 2**20)


@contextmanager
def open_member(path: Path) -> Iterator[tuple[IO[bytes], int]]:
    """Open a file of a packed model, named as ZIP/NAME, with its size; FileNotFoundError if the zip has none."""
    with _open_archive(path.parent) as archive:
        try:
            info = archive.getinfo(path.name)
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path)) from None
        with _explain_damage(path.parent, Exception):  # a file's own header may be damaged in many ways
            member = archive.open(info)
        with member, _explain_damage(path.parent, zipfile.BadZipFile, zlib.error, EOFError):
            yield member, info.file_size


def has_member(path: Path) -> bool:
    """Whether a packed model has a file, named as ZIP/NAME."""
    with _open_archive(path.parent) as archive:
        return path.name in archive.NameToInfo


@contextmanager
def _open_archive(path: Path) -> Iterator[zipfile.ZipFile]:
    target = Path(os.path.realpath(path))  # a user may name a link
    with _DirectoryReader(files.open_plain(target).detach()) as file:  # type: ignore[attr-defined]
        with _explain_damage(path, Exception):  # zipfile raises struct.error, ValueError, NotImplementedError …
            archive = zipfile.ZipFile(file)
        with archive:
            file.max_read = None
            _check_directory(path, archive.infolist(), os.fstat(file.fileno()).st_size)
            yield archive


class _DirectoryReader(io.BufferedReader):
    """A file that refuses to read as much at once as no zip's directory needs; `max_read` None lifts the limit."""

    max_read: int | None = MAX_DIRECTORY_BYTES

    def read(self, size: int | None = -1, /) -> bytes:
        if self.max_read is None:
            return super().read(size)
        data = super().read(self.max_read + 1 if size is None or size < 0 else min(size, self.max_read + 1))
        if len(data) > self.max_read:
            raise zipfile.BadZipFile(f"its directory has more than {self.max_read:,} bytes")
        return data


@contextmanager
def _explain_damage(path: Path, *kinds: type[Exception]) -> Iterator[None]:
    """Turn an error of these kinds into a ModelError, unless the file merely cannot be read now."""
    try:
        yield
    except kinds as error:
        if isinstance(error, OSError) and error.errno in files.READ_FAILURES:
            raise
        reason = " ".join(str(error).split())[:100] or type(error).__name__
        raise ModelError(f"{path}: is a damaged zip ({reason}); copy it again") from None


def _check_directory(path: Path, members: list[zipfile.ZipInfo], size: int) -> None:
    """Raise ModelError for files that a packed model cannot hold, before any of them is read."""

    def refuse(problem: str) -> ModelError:
        return ModelError(f"{path}: {problem}; dragoman pack writes no such zip")

    seen: set[str] = set()
    for info in members:
        name, kind = info.orig_filename, stat.S_IFMT(info.external_attr >> 16)
        if not FILE_NAME.fullmatch(name):
            raise refuse(f"holds {name[:100]!r}, which is not a plain file name")
        if name in seen:
            raise refuse(f"holds '{name}' twice")
        if kind not in (0, stat.S_IFREG):
            raise refuse(f"holds '{name}' as a link, a folder or a device")
        if info.flag_bits & ENCRYPTION_FLAGS:
            raise refuse(f"'{name}' in it is encrypted")
        if info.compress_type not in COMPRESSIONS:
            raise refuse(f"'{name}' in it is compressed by method {info.compress_type}; allowed are 0 and 8 (deflate)")
        seen.add(name)
    unpacked = sum(info.file_size for info in members)
    if unpacked > (limit := max(MIN_UNPACKED_BYTES, MAX_RATIO * size)):
        raise refuse(f"its files have {unpacked:,} bytes together, and in a zip of {size:,} they may have {limit:,}")
