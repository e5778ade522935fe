"""Read the lines of a text file; only this module turns bytes into text.

    bytes ─gunzip→ ─split on \\n→ ─truncate to LINE_LIMIT→ ─strict UTF-8→ ─other separators become spaces→ Line

Lines end with \\n and nothing else: str.splitlines also splits on U+2028, U+0085 and others, and
one such character on one side of a parallel corpus shifts every pair after it. What can be repaired
without guessing (a byte order mark, CRLF, separators inside a line, a line that never ends) is
repaired and counted in a ReadReport. What cannot (bytes that are not UTF-8, NUL) is a BadLine: it
stops the reading with file and line, or is skipped and counted. Only one line is in memory at a
time, and at most LINE_LIMIT bytes of it.
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

from dragoman.core.errors import DataError, did_you_mean

OnError = Literal["stop", "skip"]

LINE_LIMIT = 1 << 20  # bytes; the rest of a longer line is dropped
READ_LIMIT = LINE_LIMIT + 5  # with a byte order mark and CRLF
CHUNK_SIZE = 1 << 16
MAX_LOCATIONS = 5  # file:line of the first occurrences of an issue

# Everything that str.splitlines treats as the end of a line. A line of a file has no \n, but a text in JSON may.
SEPARATORS = re.compile("[\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029]")

UTF8_BOM = b"\xef\xbb\xbf"
GZIP_MAGIC = b"\x1f\x8b"
# The longer mark first: UTF-32's begins with UTF-16's.
OTHER_ENCODINGS = {
    b"\xff\xfe\0\0": "UTF-32",
    b"\0\0\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}
UNPACK = "Unpack it; plain text and gzip are read"
OTHER_ARCHIVES = {
    b"PK\x03\x04": ("a zip archive (or an office document)", f"{UNPACK}, and spreadsheets by the name .xlsx"),
    b"PAR1\x15": ("a Parquet file", "Give it a name that ends with .parquet"),
    b"\xd0\xcf\x11\xe0": ("an old office document", "Save it as .xlsx, or as CSV in UTF-8"),
    b"\xfd7zXZ\0": ("compressed with xz", UNPACK),
    b"\x28\xb5\x2f\xfd": ("compressed with zstd", UNPACK),
    b"BZh91AY&SY": ("compressed with bzip2", UNPACK),
}


class Line(NamedTuple):
    """One line of a file, numbered from 1. A skipped line has the reason in `error`, and an empty text."""

    text: str
    number: int
    is_truncated: bool = False  # longer than LINE_LIMIT; `text` has its beginning
    error: str = ""


class BadLine(ValueError):
    """A line that cannot be used: the kind of issue, what is wrong, and the remedy."""

    def __init__(self, kind: str, problem: str, remedy: str) -> None:
        super().__init__(problem)
        self.kind, self.problem, self.remedy = kind, problem, remedy


# -- issues of files ---------------------------------------------------------------------------------------------------


def format_count(count: int, what: str, total: int = 0) -> str:
    """`1 pair`, `1,200 pairs`, followed by their share of a total if one is given."""
    share = f" ({count / total:.1%})" if total else ""
    return f"{count:,} {what}{'' if count == 1 else 's'}{share}"


# kind → (description, what was done about it); readers may add kinds of their own without a sentence here.
ISSUE_SENTENCES = {
    "bom": ("a byte order mark at the start", "removed"),
    "crlf": ("CRLF line ends in {lines}", "read as plain line ends"),
    "separators": ("carriage returns or Unicode line separators inside {lines}", "read as spaces"),
    "truncated": ("{lines} longer than 1 MiB", "only the beginning is read"),
    "encoding": ("text that is not valid UTF-8 in {lines}", "skipped"),
    "nul": ("NUL characters in {lines}", "skipped"),
    "header": ("a header row", "left out"),
    "columns": ("the wrong number of columns in {lines}", "skipped"),
    "formula": ("formulas without a stored value in {lines}", "read as blank: save the file in a spreadsheet program"),
    "quote": ("quotes that do not match in {lines}", "skipped"),
    "cell": ("cells that hold no text in {lines}", "skipped"),
    "json": ("no usable JSON object in {lines}", "skipped"),
}


@dataclass
class Issue:
    """One kind of issue: its count, `file:line` of the first occurrences, and details and remedy of the first one."""

    kind: str
    file: str = ""  # "" if it may occur in several
    count: int = 0
    first_line: int = 0
    locations: list[str] = field(default_factory=list)
    detail: str = ""
    remedy: str = ""

    def add(self, file: str, line: int) -> None:
        """Count the issue in a line."""
        self.count += 1
        self.first_line = self.first_line or line
        if len(self.locations) < MAX_LOCATIONS:
            self.locations.append(f"{file}:{line}")

    @property
    def description(self) -> str:
        """The issue as a clause, such as "NUL characters in 2 lines"."""
        description, _ = ISSUE_SENTENCES.get(self.kind, (f"{self.kind} in {{lines}}", ""))
        return description.format(lines=format_count(self.count, "line"))


class ReadReport:
    """The issues found while reading files, by file and kind: exact counts and first lines."""

    def __init__(self) -> None:
        self._issues: dict[tuple[str, str], Issue] = {}

    def add(self, kind: str, file: str, line: int, detail: str = "", remedy: str = "") -> None:
        """Count one issue in a line; of each file and kind the first lines, and the first detail, are kept."""
        issue = self._issues.get((file, kind))
        if issue is None:
            issue = self._issues[file, kind] = Issue(kind, file, detail=detail, remedy=remedy)
        issue.add(file, line)

    def __iter__(self) -> Iterator[Issue]:
        return iter(self._issues.values())

    def notices(self) -> list[str]:
        """One sentence for each file and kind of issue, with what was done about it."""
        sentences = []
        for issue in self:
            _, action = ISSUE_SENTENCES.get(issue.kind, ("", "skipped"))
            first = "" if issue.kind in ("bom", "crlf") else f" (the first is line {issue.first_line:,})"
            first = f" ({issue.detail})" if issue.kind == "header" else first
            sentences.append(f"{issue.file}: {issue.description}{first}; {action}")
        return sentences


def reject_line(bad: BadLine, file: str, line: int, on_error: OnError, report: ReadReport) -> None:
    """Raise DataError for a line that cannot be used or, with on_error="skip", count it."""
    if on_error == "stop":
        skip = "or pass --on-error skip to leave such lines out"
        raise DataError(f"{bad.problem}. {bad.remedy}, {skip}.", file, line) from None
    report.add(bad.kind, file, line, bad.problem, bad.remedy)


# -- bytes → text --------------------------------------------------------------------------------------------------


def decode_utf8(body: bytes, offset: int = 0) -> str:
    """Decode strict UTF-8 without NUL; BadLine names the byte. `offset` is the start of the body in its line."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        at, three = error.start, body[error.start : error.start + 3]
        problem = f"byte 0x{body[at]:02X} at offset {offset + at} of the line is not valid UTF-8"
        if len(three) == 3 and three[0] == 0xED and three[1] >= 0xA0:  # U+D800 to U+DFFF, encoded one by one
            code = 0xD000 | (three[1] & 0x3F) << 6 | three[2] & 0x3F
            problem += f": it begins the lone surrogate U+{code:04X}"
        raise BadLine("encoding", problem, "Save the file as UTF-8") from None
    if "\0" in text:
        at = offset + body.index(b"\0")
        problem = f"byte 0x00 (NUL) at offset {at} of the line is not text"
        raise BadLine("nul", problem, "Save the file as UTF-8 text (NUL bytes often mean UTF-16, or no text at all)")
    return text


def replace_separators(text: str) -> str:
    """Replace every character that may be taken for the end of a line by a space, CRLF by one."""
    return SEPARATORS.sub(" ", text.replace("\r\n", "\n"))


def _truncate_utf8(body: bytes, limit: int) -> bytes:
    """At most `limit` bytes, never ending inside a character."""
    end = limit
    while end > limit - 4 and body[end] & 0xC0 == 0x80:  # the first dropped byte continues a character
        end -= 1
    return body[:end]


# -- files → bytes -------------------------------------------------------------------------------------------------


def read_blocker(path: Path) -> str:
    """Why a path cannot be read as a file, with a hint; '' if it can."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        if path.is_symlink():
            return "this is a link to a file that does not exist"
        if not path.parent.is_dir():
            return (
                f"there is no folder '{path.parent}'{did_you_mean(path.parent.name, _list_names(path.parent.parent))}"
            )
        return f"there is no such file{did_you_mean(path.name, _list_names(path.parent))}"
    except (OSError, ValueError) as error:
        return f"the file cannot be opened: {getattr(error, 'strerror', None) or error}"
    if stat.S_ISDIR(mode):
        names = ", ".join(sorted(_list_names(path))[:MAX_LOCATIONS])
        return "this is a folder; name a file in it" + (f" (there is {names})" if names else " (it is empty)")
    if not os.access(path, os.R_OK):
        return "the file may not be read: permission denied. Change its permissions, or copy it"
    return ""


def _list_names(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in islice(entries, 10_000)]
    except OSError:
        return []


def _make_peekable(stream: IO[bytes], stack: ExitStack) -> io.BufferedReader:
    """A buffered reader on a stream; closing it leaves the stream open."""
    if isinstance(stream, io.BufferedReader):
        return stream
    buffered: io.BufferedReader = io.BufferedReader(cast(io.RawIOBase, stream), CHUNK_SIZE)
    stack.callback(buffered.detach)
    return buffered


def _decompress(stream: io.BufferedReader, name: str) -> io.BufferedReader:
    try:
        is_gzip = stream.peek(2)[:2] == GZIP_MAGIC
    except OSError as error:
        raise DataError(f"the file cannot be read: {error.strerror or error}", name) from None
    if not is_gzip and name.endswith(".gz"):
        raise DataError(
            "the file is named .gz but does not begin like gzip. It is damaged, or needs another name", name
        )
    return io.BufferedReader(gzip.GzipFile(fileobj=stream, mode="rb"), CHUNK_SIZE) if is_gzip else stream


def open_binary(path: str | Path) -> IO[bytes]:
    """Open a file that is no text; DataError explains why it cannot be."""
    try:
        return open(path, "rb")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(read_blocker(Path(path)) or f"the file cannot be opened: {reason}", path) from None


def _open_stream(path: str | Path | IO[bytes], name: str | None, stack: ExitStack) -> tuple[io.BufferedReader, str]:
    """Open a path, "-" for standard input, or a stream: the decompressed bytes, and a name for messages."""
    if path == "-":
        path = sys.stdin.buffer
    if isinstance(path, (str, Path)):
        name, stream = name or str(path), _make_peekable(stack.enter_context(open_binary(path)), stack)
    else:
        name = name or "<stdin>"
        stream = _make_peekable(path, stack)
    return _decompress(stream, name), name


def _read_raw_line(stream: io.BufferedReader, name: str, number: int) -> bytes:
    """The next line with its end, b"" at the end of the file; of a very long line the first READ_LIMIT bytes."""
    try:
        raw = stream.readline(READ_LIMIT)
        if len(raw) == READ_LIMIT and not raw.endswith(b"\n"):
            while (rest := stream.readline(CHUNK_SIZE)) and not rest.endswith(b"\n"):
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


def _bom_length(raw: bytes, name: str) -> int:
    for mark, encoding in OTHER_ENCODINGS.items():
        if raw.startswith(mark):
            raise DataError(
                f"the file is {encoding}, not UTF-8. Save it as UTF-8 (in a spreadsheet: CSV UTF-8)", name, 1
            )
    for magic, (what, remedy) in OTHER_ARCHIVES.items():
        if raw.startswith(magic):
            raise DataError(f"the file is {what}. {remedy}", name, 1)
    return len(UTF8_BOM) if raw.startswith(UTF8_BOM) else 0


# -- lines ---------------------------------------------------------------------------------------------------------


def read_lines(
    path: str | Path | IO[bytes],
    *,
    name: str | None = None,
    on_error: OnError = "stop",
    report: ReadReport | None = None,
    has_crlf: bool = False,
    first_number: int = 1,
) -> Iterator[Line]:
    """The lines of a file, of the standard input ("-"), or of a binary stream that messages call `name`.

    In a format that `has_crlf`, CRLF line ends are not reported. A `first_number` other than 1 is that of the line at
    which a stream of plain text stands.

    With on_error="skip" a bad line is yielded, too, empty and with its `error`: parallel files must stay aligned.
    """
    report = ReadReport() if report is None else report
    with ExitStack() as stack:
        if first_number > 1 and not isinstance(path, str | Path):
            stream, name = _make_peekable(path, stack), name or "<stdin>"
        else:
            stream, name = _open_stream(path, name, stack)
        number = first_number - 1
        while raw := _read_raw_line(stream, name, number + 1):
            number += 1
            offset = 0  # where the text of the line begins
            if number == 1:
                offset = _bom_length(raw, name)
                if offset:
                    report.add("bom", name, 1)
                if offset == len(raw):
                    return  # a file with only the mark is an empty file
            yield _parse_line(raw, offset, name, number, on_error, report, has_crlf)


def _parse_line(
    raw: bytes, offset: int, name: str, number: int, on_error: OnError, report: ReadReport, has_crlf: bool
) -> Line:
    body = raw[offset:].removesuffix(b"\n")
    stripped = body.removesuffix(b"\r")
    is_truncated = len(stripped) > LINE_LIMIT
    if is_truncated:
        stripped = _truncate_utf8(stripped, LINE_LIMIT)
        report.add("truncated", name, number)
    elif len(stripped) < len(body) and not has_crlf:
        report.add("crlf", name, number)
    try:
        text = decode_utf8(stripped, offset)
    except BadLine as bad:
        reject_line(bad, name, number, on_error, report)
        return Line("", number, is_truncated, bad.problem)
    if SEPARATORS.search(text):
        text = replace_separators(text)
        report.add("separators", name, number)
    return Line(text, number, is_truncated)


def count_lines(path: str | Path) -> int:
    """The number of lines of a file, as `read_lines` yields them, without decoding."""
    count, last = 0, b"\n"
    with ExitStack() as stack:
        stream, name = _open_stream(path, None, stack)
        try:
            while chunk := stream.read(LINE_LIMIT):
                count, last = count + chunk.count(b"\n"), chunk
        except (EOFError, zlib.error, OSError) as error:
            raise DataError(f"the file cannot be read to its end: {error}", name, count + 1) from None
    if count == 0 and last == UTF8_BOM:
        return 0
    return count + (not last.endswith(b"\n"))
