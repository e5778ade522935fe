"""Files → clean lines: the one place where bytes become text.

    bytes ─gunzip→ ─split on \\n→ ─cut at LINE_LIMIT→ ─strict UTF-8→ ─other separators become spaces→ Line

Lines end with \\n and nothing else: str.splitlines also splits on U+2028, U+0085 and others, and one such character on
one side of a parallel corpus shifts every pair after it. What can be mended without guessing (a byte order mark, CRLF,
separators inside a line, a line that never ends) is mended and noted in a Tally. What cannot (bytes that are not UTF-8,
NUL) is a BadLine: it stops the reading with its place, or is skipped and counted. One line is held at a time, and never
more than LINE_LIMIT bytes of it.
"""

from __future__ import annotations

import gzip
import io
import os
import re
import stat
import sys
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import IO, Literal, NamedTuple, cast

from dragoman.core.errors import DataError, nearest

OnError = Literal["stop", "skip"]

LINE_LIMIT = 1 << 20  # bytes of a line that are kept
ROOM = LINE_LIMIT + 5  # and a byte order mark before it, CRLF behind
CHUNK = 1 << 16
PLACES = 5  # first places remembered for each kind of thing noticed

# All that str.splitlines takes for the end of a line. A line of a file holds no \n, but a text in JSON may.
SEPARATORS = re.compile("[\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029]")
SURROGATES = re.compile("[\ud800-\udfff]")

UTF8_MARK = b"\xef\xbb\xbf"
GZIP_MAGIC = b"\x1f\x8b"
# The longer mark first: UTF-32's begins with UTF-16's.
OTHER_ENCODINGS = {
    b"\xff\xfe\0\0": "UTF-32",
    b"\0\0\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}
OTHER_ARCHIVES = {
    b"PK\x03\x04": "a zip archive (or an office document)",
    b"\xfd7zXZ\0": "compressed with xz",
    b"\x28\xb5\x2f\xfd": "compressed with zstd",
    b"BZh91AY&SY": "compressed with bzip2",
}


class Line(NamedTuple):
    """One line of a file, counted from 1. A skipped line says why in `bad`, and its text is empty."""

    text: str
    number: int
    cut: bool = False  # longer than LINE_LIMIT; only the beginning is here
    bad: str = ""


class BadLine(ValueError):
    """A line that cannot be used: what kind of trouble, what was found, and the remedy."""

    def __init__(self, kind: str, problem: str, remedy: str) -> None:
        super().__init__(problem)
        self.kind, self.problem, self.remedy = kind, problem, remedy


# -- what was noticed on the way ---------------------------------------------------------------------------------------


def _lines(count: int) -> str:
    return "1 line" if count == 1 else f"{count:,} lines"


# kind → (what was found, what was done about it); a reader may add kinds of its own without a sentence here.
SENTENCES = {
    "bom": ("a byte order mark at the start", "removed"),
    "crlf": ("CRLF line ends in {lines}", "read as plain line ends"),
    "separators": ("carriage returns or Unicode line separators inside {lines}", "read as spaces"),
    "cut": ("{lines} longer than 1 MiB", "only the beginning is read"),
    "encoding": ("text that is not valid UTF-8 in {lines}", "skipped"),
    "nul": ("NUL characters in {lines}", "skipped"),
    "columns": ("the wrong number of columns in {lines}", "skipped"),
    "json": ("no usable JSON object in {lines}", "skipped"),
}


@dataclass
class Noted:
    """One kind of thing in one file: how often, the first places, and the first one's details and remedy."""

    kind: str
    file: str
    count: int = 0
    lines: list[int] = field(default_factory=list)
    detail: str = ""
    remedy: str = ""

    @property
    def found(self) -> str:
        """What was found, as a clause."""
        found, _ = SENTENCES.get(self.kind, (f"{self.kind} in {{lines}}", ""))
        return found.format(lines=_lines(self.count))

    @property
    def places(self) -> list[str]:
        return [f"{self.file}:{line}" for line in self.lines]


class Tally:
    """What was noticed, mended or skipped while files were read: exact counts and first places, by file and kind."""

    def __init__(self) -> None:
        self._noted: dict[tuple[str, str], Noted] = {}

    def add(self, kind: str, file: str, line: int, detail: str = "", remedy: str = "") -> None:
        noted = self._noted.get((file, kind))
        if noted is None:
            noted = self._noted[file, kind] = Noted(kind, file, detail=detail, remedy=remedy)
        noted.count += 1
        if len(noted.lines) < PLACES:
            noted.lines.append(line)

    def __iter__(self) -> Iterator[Noted]:
        return iter(self._noted.values())

    def count(self, kind: str) -> int:
        """How often a kind was noticed, over all files."""
        return sum(noted.count for noted in self if noted.kind == kind)

    def notices(self) -> list[str]:
        """One sentence for each file and kind."""
        sentences = []
        for noted in self:
            _, done = SENTENCES.get(noted.kind, ("", "skipped"))
            first = "" if noted.kind in ("bom", "crlf") else f" (the first is line {noted.lines[0]:,})"
            sentences.append(f"{noted.file}: {noted.found}{first}; {done}")
        return sentences


def reject(bad: BadLine, file: str, line: int, on_error: OnError, tally: Tally) -> None:
    """Stop at a line that cannot be used, or count it and go on."""
    if on_error == "stop":
        skip = "or pass --on-error skip to leave such lines out"
        raise DataError(f"{bad.problem}. {bad.remedy}, {skip}.", file, line) from None
    tally.add(bad.kind, file, line, bad.problem, bad.remedy)


# -- bytes → text --------------------------------------------------------------------------------------------------


def decode(body: bytes, offset: int = 0) -> str:
    """Strict UTF-8 without NUL, or a BadLine that names the byte; `offset` is where the body begins in its line."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _not_utf8(body, error.start, offset) from None
    if "\0" in text:
        at = offset + body.index(b"\0")
        problem = f"byte 0x00 (NUL) at offset {at} of the line is not text"
        raise BadLine("nul", problem, "Save the file as UTF-8 text (NUL bytes often mean UTF-16, or no text at all)")
    return text


def _not_utf8(body: bytes, at: int, offset: int) -> BadLine:
    three = body[at : at + 3]
    problem = f"byte 0x{body[at]:02X} at offset {offset + at} of the line is not valid UTF-8"
    if len(three) == 3 and three[0] == 0xED and three[1] >= 0xA0:  # U+D800 to U+DFFF, encoded one by one
        code = 0xD000 | (three[1] & 0x3F) << 6 | three[2] & 0x3F
        problem += f": it begins the lone surrogate U+{code:04X}"
    return BadLine("encoding", problem, "Save the file as UTF-8")


def clean(text: str) -> str:
    """Every separator that could be taken for the end of a line becomes a space."""
    return SEPARATORS.sub(" ", text.replace("\r\n", "\n"))


def _whole_characters(body: bytes, limit: int) -> bytes:
    """At most `limit` bytes, not ending within a character."""
    end = limit
    while end > limit - 4 and body[end] & 0xC0 == 0x80:  # the first byte left out continues a character
        end -= 1
    return body[:end]


# -- files → bytes -------------------------------------------------------------------------------------------------


def unreadable(path: Path) -> str:
    """Why a path cannot be read as a file, as a sentence with a hint; '' where nothing speaks against it."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        if path.is_symlink():
            return "this is a link to a file that does not exist"
        if not path.parent.is_dir():
            return f"there is no folder '{path.parent}'{nearest(path.parent.name, _names(path.parent.parent))}"
        return f"there is no such file{nearest(path.name, _names(path.parent))}"
    except (OSError, ValueError) as error:
        return f"the file cannot be opened: {getattr(error, 'strerror', None) or error}"
    if stat.S_ISDIR(mode):
        inside = ", ".join(sorted(_names(path))[:PLACES])
        return "this is a folder; name a file in it" + (f" (there is {inside})" if inside else " (it is empty)")
    if not os.access(path, os.R_OK):
        return "the file may not be read: permission denied. Change its permissions, or copy it"
    return ""


def _names(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in islice(entries, 10_000)]
    except OSError:
        return []


def _open(path: Path) -> io.BufferedReader:
    try:
        return path.open("rb")
    except (OSError, ValueError) as error:
        reason = unreadable(path) or f"the file cannot be opened: {getattr(error, 'strerror', None) or error}"
        raise DataError(reason, path) from None


def _peekable(stream: IO[bytes], stack: ExitStack) -> io.BufferedReader:
    """The stream itself, or a buffer before it that leaves it open in the end."""
    if isinstance(stream, io.BufferedReader):
        return stream
    buffered: io.BufferedReader = io.BufferedReader(cast(io.RawIOBase, stream), CHUNK)
    stack.callback(buffered.detach)
    return buffered


def _unzipped(stream: io.BufferedReader, name: str) -> io.BufferedReader:
    """The stream, through gzip where its first bytes say so."""
    zipped = stream.peek(2)[:2] == GZIP_MAGIC
    if not zipped and name.endswith(".gz"):
        raise DataError(
            "the file is named .gz but does not begin like gzip. It is damaged, or needs another name", name
        )
    return io.BufferedReader(gzip.GzipFile(fileobj=stream, mode="rb"), CHUNK) if zipped else stream


def _open_any(path: str | Path | IO[bytes], name: str | None, stack: ExitStack) -> tuple[io.BufferedReader, str]:
    """A path, "-" for the standard input, or an open stream → its bytes, unzipped, and what to call it in messages."""
    if path == "-":
        path = sys.stdin.buffer
    if isinstance(path, (str, Path)):
        name = name or str(path)
        stream = stack.enter_context(_open(Path(path)))
    else:
        name = name or "<stdin>"
        stream = _peekable(path, stack)
    return _unzipped(stream, name), name


def _raw_line(stream: io.BufferedReader, name: str, number: int) -> bytes:
    """The next line with its end; of a very long one, the first ROOM bytes."""
    try:
        raw = stream.readline(ROOM)
        if len(raw) == ROOM and not raw.endswith(b"\n"):
            while (rest := stream.readline(CHUNK)) and not rest.endswith(b"\n"):
                pass
        return raw
    except EOFError:
        raise DataError(
            "the gzip file ends too early: it is truncated. Copy or download it again", name, number
        ) from None
    except (zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"the gzip file is damaged ({error}). Copy or download it again", name, number) from None
    except OSError as error:
        raise DataError(f"the file cannot be read: {error.strerror or error}", name, number) from None


def _mark(raw: bytes, name: str) -> int:
    """How long the byte order mark before the first line is; other formats are refused by their first bytes."""
    for mark, encoding in OTHER_ENCODINGS.items():
        if raw.startswith(mark):
            raise DataError(f"the file is {encoding}, not UTF-8. Save it as UTF-8", name, 1)
    for magic, what in OTHER_ARCHIVES.items():
        if raw.startswith(magic):
            raise DataError(f"the file is {what}. Unpack it; plain text and gzip are read", name, 1)
    return len(UTF8_MARK) if raw.startswith(UTF8_MARK) else 0


# -- lines ---------------------------------------------------------------------------------------------------------


def read_lines(
    path: str | Path | IO[bytes], *, name: str | None = None, on_error: OnError = "stop", tally: Tally | None = None
) -> Iterator[Line]:
    """The clean lines of a file, of an open binary stream called `name` in messages, or of the standard input ("-").

    With on_error="skip" a line that cannot be decoded is still yielded, empty and with its reason in `bad`, so that
    whoever must keep lines in step can.
    """
    tally = Tally() if tally is None else tally
    with ExitStack() as stack:
        stream, name = _open_any(path, name, stack)
        number = 0
        while raw := _raw_line(stream, name, number + 1):
            number += 1
            offset = 0  # where the text of the line begins
            if number == 1:
                offset = _mark(raw, name)
                if offset:
                    tally.add("bom", name, 1)
                if offset == len(raw):
                    return  # a file of nothing but the mark is an empty file
            yield _line(raw, offset, name, number, on_error, tally)


def _line(raw: bytes, offset: int, name: str, number: int, on_error: OnError, tally: Tally) -> Line:
    body = raw[offset:].removesuffix(b"\n")
    stripped = body.removesuffix(b"\r")
    cut = len(stripped) > LINE_LIMIT
    if cut:
        stripped = _whole_characters(stripped, LINE_LIMIT)
        tally.add("cut", name, number)
    elif len(stripped) < len(body):
        tally.add("crlf", name, number)
    try:
        text = decode(stripped, offset)
    except BadLine as bad:
        reject(bad, name, number, on_error, tally)
        return Line("", number, cut, bad.problem)
    if SEPARATORS.search(text):
        text = clean(text)
        tally.add("separators", name, number)
    return Line(text, number, cut)


def count_lines(path: str | Path) -> int:
    """How many lines `read_lines` would give, without decoding them."""
    count, last = 0, b"\n"
    with ExitStack() as stack:
        stream, name = _open_any(path, None, stack)
        try:
            while chunk := stream.read(LINE_LIMIT):
                count, last = count + chunk.count(b"\n"), chunk
        except (EOFError, zlib.error, OSError) as error:
            raise DataError(f"the file cannot be read to its end: {error}", name, count + 1) from None
    if count == 0 and last == UTF8_MARK:
        return 0
    return count + (not last.endswith(b"\n"))
