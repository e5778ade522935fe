"""The zip of an office document: read without trust, and written again with some members changed.

Names that lead out of the archive, encryption, too many members, and members that unpack to far more than they should
are refused before anything is unpacked.
"""

from __future__ import annotations

import io
import shutil
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO

from dragoman.core.errors import DataError

MAX_MEMBERS = 10_000
MAX_BYTES = 256 << 20  # of all members, unpacked
MAX_PART_BYTES = 32 << 20  # of a member that is parsed, unpacked
MAX_RATIO, RATIO_FROM = 200, 1 << 20  # of a member's size to its packed size, from this size on

COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)

UNSUPPORTED = "The file may be damaged or protected: open it in an office program, and save it again"


@dataclass
class OfficeZip:
    """A checked archive in memory."""

    data: bytes
    file: str

    def __post_init__(self) -> None:
        with self._explained(), zipfile.ZipFile(io.BytesIO(self.data)) as archive:
            self._check(archive.infolist())
            self.names = archive.namelist()

    def read(self, name: str) -> bytes:
        """The bytes of a member that is to be parsed."""
        with self._explained(), zipfile.ZipFile(io.BytesIO(self.data)) as archive:
            info = archive.getinfo(name)
            if info.file_size > MAX_PART_BYTES:
                problem = f"{name} has {info.file_size:,} bytes, at most {MAX_PART_BYTES:,} are read"
                raise DataError(f"{problem}. Divide the document", self.file)
            return archive.read(info)

    def write(self, changed: Mapping[str, bytes], stream: IO[bytes]) -> None:
        """Write the archive with other bytes for some members; order, dates and compression are kept."""
        with (
            self._explained(),
            zipfile.ZipFile(io.BytesIO(self.data)) as archive,
            zipfile.ZipFile(stream, "w") as output,
        ):
            output.comment = archive.comment
            for info in archive.infolist():
                if info.filename in changed:
                    output.writestr(_copy_info(info), changed[info.filename])
                    continue
                with archive.open(info) as source, output.open(_copy_info(info), "w") as target:
                    shutil.copyfileobj(source, target)

    def _check(self, members: list[zipfile.ZipInfo]) -> None:
        """Raise DataError for an archive that is no office document, or breaks a limit."""
        problem = ""
        if len(members) > MAX_MEMBERS:
            problem = f"the archive has {len(members):,} members, at most {MAX_MEMBERS:,} are read"
        elif len({member.filename for member in members}) < len(members):
            problem = "two members of the archive have the same name"
        elif sum(member.file_size for member in members) > MAX_BYTES:
            problem = f"the archive unpacks to more than {MAX_BYTES:,} bytes"
        for member in members:
            if member.filename.startswith("/") or ".." in member.filename.replace("\\", "/").split("/"):
                problem = "the name of a member leads out of the archive"
            elif member.flag_bits & 1:
                problem = "the archive is encrypted"
            elif member.compress_type not in COMPRESSIONS:
                problem = f"a member is compressed by method {member.compress_type}; allowed are 0 and 8 (deflate)"
            elif member.file_size > max(RATIO_FROM, MAX_RATIO * member.compress_size):
                problem = f"a member unpacks to {member.file_size:,} bytes from {member.compress_size:,}: a zip bomb"
        if problem:
            raise DataError(f"{problem}. {UNSUPPORTED}", self.file)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Raise DataError for an archive that cannot be read."""
        try:
            yield
        except (zipfile.BadZipFile, zlib.error, NotImplementedError, EOFError, KeyError, RuntimeError, ValueError):
            raise DataError(f"this is no archive of an office document. {UNSUPPORTED}", self.file) from None


def _copy_info(info: zipfile.ZipInfo) -> zipfile.ZipInfo:
    """A new entry of an archive with the name, date, kind and compression of another."""
    copy = zipfile.ZipInfo(info.filename, info.date_time)
    copy.compress_type, copy.external_attr, copy.create_system = (
        info.compress_type,
        info.external_attr,
        info.create_system,
    )
    copy.comment, copy.file_size = info.comment, info.file_size
    return copy
