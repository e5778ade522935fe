"""Translators' files: text to translate within structure to keep. One file for each format; the ending decides.

    subtitles  .srt      gettext catalogs   .po .pot      exchange formats  .xlf .xliff .tmx      documents  .docx

A document has segments (segments.py), which translation.py cuts into sentences for a model, and writes itself with
their translations. What is no text to be translated stays as it was: bytes in SRT and PO, nodes in XML.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Protocol

from dragoman.core import files
from dragoman.core.errors import DataError
from dragoman.data.documents import docx, plain_text, po, srt, tmx, xliff
from dragoman.data.documents.languages import Languages
from dragoman.data.documents.segments import Segment, Translation

MAX_BYTES = 256 << 20  # of a file; all formats are held in memory


class Document(Protocol):
    """A file whose segments can be replaced."""

    @property
    def languages(self) -> Languages:
        """The languages that were asked for, else those that the file names."""

    @property
    def segments(self) -> Sequence[Segment]:
        """What is to be translated, in the order of the file."""

    def write(self, translations: Sequence[Translation | None], stream: IO[bytes]) -> None:
        """Write the document with the translations of its segments; None leaves a segment as it is."""


Parse = Callable[[bytes, str, Languages], Document]

FORMATS: dict[str, Parse] = {
    ".srt": srt.parse,
    ".po": po.parse,
    ".pot": po.parse,
    ".xlf": xliff.parse,
    ".xliff": xliff.parse,
    ".tmx": tmx.parse,
    ".docx": docx.parse,
}
SERVER_FORMATS: dict[str, Parse] = {".txt": plain_text.parse, **FORMATS}  # `predict` reads .txt as a list of sources


def is_document(name: str) -> bool:
    """Whether a file's ending is that of a translators' file."""
    return Path(name).suffix.lower() in FORMATS


def open_document(path: Path, languages: Languages | None = None) -> Document:
    """Read a translators' file; DataError says what is wrong with it."""
    try:
        data = files.read_file(path, MAX_BYTES)
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}. Check the name and the permissions", path) from None
    return parse_document(data, str(path), languages, FORMATS)


def parse_document(data: bytes, name: str, languages: Languages | None, formats: dict[str, Parse]) -> Document:
    """Parse the bytes of a file by the ending of its name; DataError says what is wrong with them."""
    parse = formats.get(Path(name).suffix.lower())
    if parse is None:
        raise DataError(f"this ending is not one of {', '.join(formats)}. Rename the file, or convert it", name)
    return parse(data, name, languages or Languages())
