"""Files → clean lines: what is mended, what stops, and how much memory it takes."""

from __future__ import annotations

import errno
import gzip
import io
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.core.errors import DataError
from dragoman.data.lines import LINE_LIMIT, Line, ReadReport, count_lines, read_lines, replace_separators

from .conftest import count_issues


def write(folder: Path, content: bytes, name: str = "a.txt") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def texts(path: Path | io.IOBase, report: ReadReport | None = None) -> list[str]:
    return [line.text for line in read_lines(path, report=report)]


def from_bytes(content: bytes) -> list[Line]:
    return list(read_lines(io.BytesIO(content)))


# -- lines as they should be --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"a", ["a"]),
        (b"a\n", ["a"]),
        (b"a\nb", ["a", "b"]),
        (b"a\n\nb\n", ["a", "", "b"]),
        (b"\n\n\n", ["", "", ""]),
        (b" a \n", [" a "]),
    ],
)
def test_lines_end_with_a_line_feed_and_the_last_may_do_without(content, expected):
    assert [line.text for line in from_bytes(content)] == expected
    assert [line.number for line in from_bytes(content)] == list(range(1, len(expected) + 1))


@pytest.mark.parametrize(
    ("content", "expected", "kind"),
    [
        (b"\xef\xbb\xbfa\nb\n", ["a", "b"], "bom"),
        (b"\xef\xbb\xbf", [], "bom"),
        (b"\xef\xbb\xbf\n", [""], "bom"),
        (b"a\r\nb\r\n", ["a", "b"], "crlf"),
        (b"a\r\nb\r", ["a", "b"], "crlf"),
        (b"a\rb\n", ["a b"], "separators"),
        (b"a\r\r\n", ["a "], "separators"),
        ("a\u2028b\nc".encode(), ["a b", "c"], "separators"),
        ("a\u2029b\nc".encode(), ["a b", "c"], "separators"),
        ("a\u0085b\nc".encode(), ["a b", "c"], "separators"),
        (b"a\x0bb\x0cc\n", ["a b c"], "separators"),
    ],
)
def test_byte_order_marks_and_foreign_line_ends_never_split_a_line_and_are_counted(tmp_path, content, expected, kind):
    report = ReadReport()
    assert texts(write(tmp_path, content), report) == expected
    assert count_issues(report, kind) == (2 if content.count(b"\r") == 2 and kind == "crlf" else 1)


def test_clean_replaces_exactly_what_splitlines_would_split_on():
    for code in range(sys.maxunicode + 1):
        character = chr(code)
        assert (replace_separators(character) == " ") == (
            len(f"a{character}b".splitlines()) == 2 or character == " "
        ), hex(code)
    assert replace_separators("a\r\nb") == "a b"


def test_a_byte_order_mark_later_in_the_file_is_text():
    assert [line.text for line in from_bytes("a\n\ufeffb\n".encode())] == ["a", "\ufeffb"]


plain = st.text(st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp")), max_size=40)


@settings(deadline=None, max_examples=80)
@given(st.lists(plain, max_size=30), st.sampled_from(["\n", "\r\n"]), st.booleans(), st.booleans())
def test_lines_that_were_written_are_read_back(lines, end, zipped, mark):
    content = "".join(line + end for line in lines).encode("utf-8-sig" if mark else "utf-8")
    if not mark and content.startswith(b"\xef\xbb\xbf"):
        lines = [lines[0][1:], *lines[1:]]  # a text cannot be told from a mark there
    found = list(read_lines(io.BytesIO(gzip.compress(content, 1) if zipped else content)))
    assert found == [Line(text, number) for number, text in enumerate(lines, 1)]


# -- bytes that are no text ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "line", "says"),
    [
        (b"ok\ncaf\xe9\n", 2, "byte 0xE9 at offset 3"),
        (b"ok\nok\n\xff\n", 3, "byte 0xFF at offset 0"),
        (b"\xef\xbb\xbfcaf\xe9\n", 1, "byte 0xE9 at offset 6"),
        (b"ok\nab\xe2\x82\n", 2, "byte 0xE2 at offset 2"),
        (b"a\xc0\xaf\n", 1, "byte 0xC0 at offset 1"),
        (b"a\x00b\n", 1, "byte 0x00 (NUL) at offset 1"),
        (b"\xef\xbb\xbfa\0\n", 1, "byte 0x00 (NUL) at offset 4"),
        ("\u00e9\0\n".encode(), 1, "byte 0x00 (NUL) at offset 2"),
        (b"ok\nx\xed\xa0\x80y\n", 2, "offset 1 of the line is not valid UTF-8: it begins the lone surrogate U+D800"),
        (b"x\xed\xbf\xbf\n", 1, "lone surrogate U+DFFF"),
    ],
)
def test_bytes_that_are_not_text_are_named_with_file_and_line(tmp_path, content, line, says):
    path = write(tmp_path, content)
    with pytest.raises(DataError) as caught:
        texts(path)
    assert str(caught.value).startswith(f"{path}:{line}: ")
    assert says in str(caught.value)
    assert "UTF-8" in str(caught.value)
    assert "--on-error skip" in str(caught.value)
    assert (caught.value.file, caught.value.line) == (str(path), line)


def test_skipped_lines_keep_their_number_and_are_counted_exactly(tmp_path):
    good, bad = b"fine\n", [b"caf\xe9\n", b"nul\0\n", b"\xed\xa0\x80\n"]
    content = b"".join(bad[i // 3 % 3] if i % 3 == 0 else good for i in range(90))
    path, report = write(tmp_path, content), ReadReport()
    lines = list(read_lines(path, on_error="skip", report=report))
    assert len(lines) == 90
    assert [line.number for line in lines if line.error] == list(range(1, 91, 3))
    assert all(line.text == ("" if line.error else "fine") for line in lines)
    assert (count_issues(report, "encoding"), count_issues(report, "nul")) == (20, 10)
    assert f"{path}: NUL characters in 10 lines (the first is line 4); skipped" in report.notices()


def test_a_read_report_has_one_sentence_for_each_file_and_kind(tmp_path):
    report = ReadReport()
    texts(write(tmp_path, b"x\r\n" * 1204, "pairs.tsv"), report)
    texts(write(tmp_path, b"x\r\n", "other.tsv"), report)
    assert report.notices() == [
        f"{tmp_path}/pairs.tsv: CRLF line ends in 1,204 lines; read as plain line ends",
        f"{tmp_path}/other.tsv: CRLF line ends in 1 line; read as plain line ends",
    ]
    first = next(iter(report))
    assert first.locations == [f"{tmp_path}/pairs.tsv:{line}" for line in range(1, 6)]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("a\tb\n".encode("utf-16"), "UTF-16"),
        (b"\xfe\xff" + "a".encode("utf-16-be"), "UTF-16"),
        ("a\tb\n".encode("utf-32"), "UTF-32"),
        (b"PK\x03\x04rest", "zip"),
        (b"\xfd7zXZ\0rest", "xz"),
    ],
)
@pytest.mark.parametrize("on_error", ["stop", "skip"])
def test_a_file_in_another_format_is_called_by_its_name(tmp_path, content, says, on_error):
    path = write(tmp_path, content)
    with pytest.raises(DataError, match=says) as caught:
        list(read_lines(path, on_error=on_error))
    assert caught.value.file == str(path)


# -- gzip ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.txt.gz", "named-otherwise.txt"])
def test_gzip_is_known_by_its_bytes(tmp_path, name):
    assert texts(write(tmp_path, gzip.compress(b"a\r\n") + gzip.compress(b"b"), name)) == ["a", "b"]


def test_every_truncation_of_a_gzip_file_is_an_error_that_names_it(tmp_path):
    whole = gzip.compress(os.urandom(300).hex().encode() + b"\nlast\n")
    for size in range(len(whole)):
        path = write(tmp_path, whole[:size], "a.gz")
        with pytest.raises(DataError) as caught:
            texts(path)
        assert caught.value.file == str(path), size


def test_damaged_and_misnamed_gzip_files_are_errors_that_name_them(tmp_path):
    damaged = bytearray(gzip.compress(os.urandom(5000).hex().encode()))
    damaged[1000] ^= 0xFF
    for content in (bytes(damaged), b"plain text\n", b"", gzip.compress(b"a\n") + b"garbage"):
        path = write(tmp_path, content, "a.gz")
        with pytest.raises(DataError) as caught:
            texts(path)
        assert caught.value.file == str(path)


# -- lines that are too long --------------------------------------------------------------------------------------


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
@pytest.mark.parametrize("more", [-1, 0, 1, 2, 3, 4, 5, 70_000])
def test_a_line_is_truncated_only_if_it_is_longer_than_the_limit(mark, end, more):
    lines = from_bytes(mark + b"x" * (LINE_LIMIT + more) + end + (b"next" if end else b""))
    assert len(lines) == (2 if end else 1)
    assert len(lines[0].text) == LINE_LIMIT + min(more, 0)
    assert lines[0].is_truncated == (more > 0)
    assert not end or lines[1] == Line("next", 2)


@pytest.mark.parametrize("character", ["é", "€", "😀"])
@pytest.mark.parametrize("shift", range(4))
def test_truncation_never_splits_a_character(character, shift):
    text = "x" * shift + character * (LINE_LIMIT // len(character.encode()) + 10)
    (line,) = from_bytes(text.encode())
    assert line.is_truncated
    assert text.startswith(line.text)
    assert LINE_LIMIT - len(character.encode()) < len(line.text.encode()) <= LINE_LIMIT


class Endless(io.RawIOBase):
    """Bytes without a newline, made as they are read, with one short line behind them."""

    def __init__(self, size: int, last: bytes) -> None:
        self.left, self.last, self.chunk = size, last, b"word " * 20_000

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        source = self.chunk[: min(len(buffer), self.left)] if self.left else self.last[: len(buffer)]
        if self.left:
            self.left -= len(source)
        else:
            self.last = self.last[len(source) :]
        buffer[: len(source)] = source
        return len(source)


def test_a_hundred_megabytes_without_a_newline_take_little_memory():
    report = ReadReport()
    tracemalloc.start()
    try:
        lines = [
            (line.number, len(line.text), line.is_truncated)
            for line in read_lines(Endless(100 << 20, b"\nend"), report=report)
        ]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert lines == [(1, LINE_LIMIT, True), (2, 3, False)]
    assert count_issues(report, "truncated") == 1
    assert peak < 16 << 20


def test_a_zipped_endless_line_is_read_under_a_hard_memory_limit(tmp_path):
    path = tmp_path / "bomb.gz"
    with gzip.open(path, "wb", 1) as file:
        for _ in range(100):
            file.write(bytes([97]) * (1 << 20))
    program = """
import resource, sys
from dragoman.data.lines import read_lines
now = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize() if sys.platform == "linux" else 1 << 31
resource.setrlimit(resource.RLIMIT_AS, (now + (48 << 20),) * 2)
print([(len(line.text), line.is_truncated) for line in read_lines(sys.argv[1])])
"""
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, timeout=60)
    assert done.stdout == f"[({LINE_LIMIT}, True)]\n", done.stderr


# -- files that are not there -------------------------------------------------------------------------------------


def test_a_missing_file_is_an_error_that_names_a_near_one(tmp_path):
    write(tmp_path, b"", "train.tsv")
    with pytest.raises(DataError, match=r"trian\.tsv: there is no such file; did you mean 'train\.tsv'\?"):
        texts(tmp_path / "trian.tsv")
    with pytest.raises(DataError, match="there is no folder"):
        texts(tmp_path / "nowhere" / "train.tsv")


def test_folders_dead_links_and_impossible_names_are_errors_with_a_reason(tmp_path):
    write(tmp_path, b"", "inside.txt")
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    with pytest.raises(DataError, match=r"this is a folder.*inside\.txt"):
        texts(tmp_path)
    with pytest.raises(DataError, match="link to a file that does not exist"):
        texts(tmp_path / "link")
    for name in ("a\0b", "x" * 5000, "inside.txt/a"):
        with pytest.raises(DataError, match=r"cannot be opened|no folder"):
            texts(tmp_path / name)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_forbidden_file_is_an_error_with_a_reason(tmp_path):
    path = write(tmp_path, b"a")
    path.chmod(0)
    with pytest.raises(DataError, match="permission denied"):
        texts(path)


# -- streams ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reads", [0, 1])
def test_a_disk_that_fails_is_an_error_that_names_the_file(reads):
    """The first read looks for gzip."""

    class FailingDisk(io.RawIOBase):
        left = reads

        def readable(self) -> bool:
            return True

        def readinto(self, buffer) -> int:
            if self.left == 0:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            self.left -= 1
            buffer[:3] = b"a\nb"
            return 3

    with pytest.raises(DataError, match=r"pairs\.tsv.*Input/output error"):
        list(read_lines(io.BufferedReader(FailingDisk()), name="pairs.tsv"))


def test_a_stream_is_left_open_and_called_by_its_name():
    stream = io.BytesIO(b"\xff\n")
    with pytest.raises(DataError, match=r"^the sentences:1: byte 0xFF"):
        list(read_lines(stream, name="the sentences"))
    assert not stream.closed


def test_a_dash_is_the_standard_input():
    program = "from dragoman.data.lines import read_lines; print([line.text for line in read_lines('-')])"
    for content in (b"a\nb", gzip.compress(b"a\nb")):
        done = subprocess.run([sys.executable, "-c", program], input=content, capture_output=True, timeout=60)
        assert done.stdout == b"['a', 'b']\n", done.stderr


any_bytes = st.binary(max_size=60).map(lambda content: content.replace(b"x", b"\n").replace(b"y", b"\r\n"))


@settings(deadline=None, max_examples=60)
@given(any_bytes)
def test_any_bytes_make_as_many_lines_as_they_have_line_feeds(tmp_path_factory, content):
    path = write(tmp_path_factory.mktemp("any"), b"#" + content)  # no mark and no magic bytes
    lines = list(read_lines(path, on_error="skip"))
    assert len(lines) == count_lines(path) == len((b"#" + content).removesuffix(b"\n").split(b"\n"))
    assert all(len(line.text.splitlines()) <= 1 for line in lines)


@pytest.mark.parametrize(
    "content", [b"", b"\n", b"a", b"a\nb", b"\xef\xbb\xbf", b"\xef\xbb\xbfa", gzip.compress(b"a\nb\nc", mtime=0)]
)
def test_lines_are_counted_as_they_are_read(tmp_path, content):
    path = write(tmp_path, content)
    assert count_lines(path) == len(texts(path))
