"""Files of data sets as they may come: whole, or with something wrong that is said in one sentence."""

from __future__ import annotations

import gzip
import zipfile
from pathlib import Path

import pytest

from dragoman.core.errors import DataError
from dragoman.recipes import tables


def test_lines_end_at_a_line_feed_alone_gzipped_or_not(tmp_path: Path) -> None:
    data = "one\ttwo\nth\u00a0ree\t\u00e9\u0301\n".encode()
    (tmp_path / "plain.tsv").write_bytes(data)
    (tmp_path / "packed.tsv.gz").write_bytes(gzip.compress(data))
    wanted = [["one", "two"], ["th\u00a0ree", "\u00e9\u0301"]]
    assert list(tables.rows(tmp_path / "plain.tsv", 2)) == wanted
    assert list(tables.rows(tmp_path / "packed.tsv", 2)) == wanted


@pytest.mark.parametrize(
    ("name", "data", "problem"),
    [
        ("set.tsv", b"one\ttwo\nthree\xff\tfour\n", r"set\.tsv:2: .*UTF-8"),
        ("set.tsv.gz", gzip.compress(b"one\ttwo\n" * 1000)[:-20], r"set\.tsv\.gz.*gzip"),
        ("set.tsv", b"one\ttwo\nthree\n", r"set\.tsv:2: has 1 columns"),
        ("other.tsv", b"", "lacks this file"),
    ],
    ids=["not UTF-8", "cut off", "a column short", "not there"],
)
def test_what_is_wrong_with_a_file_is_said_with_its_name(tmp_path: Path, name: str, data: bytes, problem: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(DataError, match=problem):
        list(tables.rows(tmp_path / "set.tsv", 2))


def test_an_archive_that_is_missing_or_damaged_or_lacks_a_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.zip: the data set lacks this file"):
        tables.archive(tmp_path / "none.zip")
    (tmp_path / "half.zip").write_bytes(b"PK\x03\x04 and no more")
    with pytest.raises(DataError, match=r"half\.zip: cannot be opened as a \.zip"):
        tables.archive(tmp_path / "half.zip")
    with zipfile.ZipFile(tmp_path / "whole.zip", "w") as made:
        made.writestr("a.wav", b"sound")
    with tables.archive(tmp_path / "whole.zip") as opened:
        assert tables.member(opened, "a.wav") == b"sound"
        with pytest.raises(DataError, match=r"whole\.zip: has no whole 'b\.wav'"):
            tables.member(opened, "b.wav")
