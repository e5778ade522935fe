"""Plain text: every line is a segment; white space and line breaks stay."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO

from dragoman.core.errors import DataError
from dragoman.data.documents.languages import Languages
from dragoman.data.documents.segments import Segment, Translation, is_translatable


@dataclass
class PlainText:
    """The lines of a text file with their ends."""

    encoding: str
    lines: list[str]
    numbers: list[int]  # of the lines that are segments
    segments: list[Segment]
    languages: Languages

    def write(self, translations: Sequence[Translation | None], stream: IO[bytes]) -> None:
        """Write all lines, those with a translation translated."""
        lines = list(self.lines)
        for number, translation in zip(self.numbers, translations, strict=True):
            if translation is not None:
                line = lines[number]
                lines[number] = translation.text + line[len(line.rstrip("\r\n")) :]
        stream.write("".join(lines).encode(self.encoding))


def parse(data: bytes, file: str, languages: Languages) -> PlainText:
    """Parse a text file."""
    text, encoding = decode_text(data, file)
    lines = split_lines(text)
    numbers = [number for number, line in enumerate(lines) if is_translatable(line)]
    segments = [Segment(lines[number].rstrip("\r\n"), (), number + 1) for number in numbers]
    return PlainText(encoding, lines, numbers, segments, languages)


def decode_text(data: bytes, file: str) -> tuple[str, str]:
    """Decode UTF-8, or UTF-16 with a byte order mark; return the text, and the encoding that gives the bytes again."""
    encoding = "utf-8"
    for mark, name in ((codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be")):
        if data.startswith(mark):
            encoding = name  # the mark itself is the first character
    try:
        return data.decode(encoding), encoding
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DataError("the text is not UTF-8. Save the file in UTF-8", file, line) from None


def split_lines(text: str) -> list[str]:
    r"""Split a text into lines with their ends: \n, \r\n, or \r in a text without \n."""
    end = "\n" if "\n" in text else "\r"
    lines = [line + end for line in text.split(end)]
    lines[-1] = lines[-1][: -len(end)]
    return lines if lines[-1] else lines[:-1]
