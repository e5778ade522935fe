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
    assert list(tables.read_rows(tmp_path / "plain.tsv", 2)) == wanted
    assert list(tables.read_rows(tmp_path / "packed.tsv", 2)) == wanted


@pytest.mark.parametrize(
    ("name", "data", "problem"),
    [
        ("set.tsv", b"one\ttwo\nthree\xff\tfour\n", r"set\.tsv:2: .*UTF-8, or copy or download it again$"),
        ("set.tsv.gz", gzip.compress(b"one\ttwo\nthree\n"), r"set\.tsv\.gz:2: has 1 column, "),
        ("set.tsv.gz", gzip.compress(b"one\ttwo\n" * 1000)[:-20], r"set\.tsv\.gz.*gzip"),
        ("set.tsv", b"one\ttwo\nthree\n", r"set\.tsv:2: has 1 column, not 2 or more"),
        ("other.tsv", b"", "lacks this file"),
    ],
    ids=["not UTF-8", "a column short in .gz", "cut off", "a column short", "not there"],
)
def test_what_is_wrong_with_a_file_is_said_with_its_name(tmp_path: Path, name: str, data: bytes, problem: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(DataError, match=problem):
        list(tables.read_rows(tmp_path / "set.tsv", 2))


def test_an_archive_that_is_missing_or_damaged_or_lacks_a_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.zip: the data set lacks this file"):
        tables.open_archive(tmp_path / "none.zip")
    (tmp_path / "half.zip").write_bytes(b"PK\x03\x04 and no more")
    with pytest.raises(DataError, match=r"half\.zip: cannot be opened as a \.zip"):
        tables.open_archive(tmp_path / "half.zip")
    with zipfile.ZipFile(tmp_path / "whole.zip", "w") as made:
        made.writestr("a.wav", b"sound")
    with tables.open_archive(tmp_path / "whole.zip") as opened:
        assert tables.read_member(opened, "a.wav") == b"sound"
        with pytest.raises(DataError, match=r"whole\.zip: has no intact 'b\.wav'"):
            tables.read_member(opened, "b.wav")


def test_a_row_of_a_fixed_form_has_no_column_more(tmp_path: Path) -> None:
    (tmp_path / "set.tsv").write_text("one\ttwo\none\ttwo\tthree\n")
    with pytest.raises(DataError, match=r"set\.tsv:2: has 3 columns, not 2;"):
        list(tables.read_rows(tmp_path / "set.tsv", num_columns=2))


@pytest.mark.parametrize("text", ["", "x", "-1", "1.5", "nan", "inf"])
def test_what_is_no_number_is_said_with_its_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "set.tsv").write_text(f"7\t0.5\n{text}\t{text}\n")
    good, bad = tables.read_rows(tmp_path / "set.tsv", 2)
    assert (good.integer(0), good.number(1)) == (7, 0.5)
    with pytest.raises(DataError, match=r"set\.tsv:2: column 1 is .*whole number"):
        bad.integer(0)
    if text != "1.5":
        with pytest.raises(DataError, match=r"set\.tsv:2: column 2 is "):
            bad.number(1)


def test_two_files_are_pairs_line_by_line_and_the_shorter_one_is_named(tmp_path: Path) -> None:
    for name, data in {"a.en": b"1\n2\n", "a.de.gz": gzip.compress(b"eins\nzwei\n"), "a.fr": b"un\n"}.items():
        (tmp_path / name).write_bytes(data)
    assert list(tables.read_parallel(tmp_path / "a.en", tmp_path / "a.de")) == [("1", "eins"), ("2", "zwei")]
    for sides in (("a.fr", "a.de"), ("a.de", "a.fr")):
        with pytest.raises(DataError, match=r"a\.fr: ends after line 1, and .*a\.de\.gz has more lines"):
            list(tables.read_parallel(*(tmp_path / side for side in sides)))


def test_texts_lose_their_runs_of_spaces_and_names_of_files_keep_them(tmp_path: Path) -> None:
    tables.write_rows(tmp_path / "texts.tsv", [["a  b", "c  d"]])
    assert (tmp_path / "texts.tsv").read_text() == "a b\tc d\n"
    tables.write_rows(tmp_path / "named.tsv", [["a  b", "c  d"]], has_file_name=True)
    assert (tmp_path / "named.tsv").read_text() == "a  b\tc d\n"


def test_what_was_read_is_noted_with_its_lines(tmp_path: Path) -> None:
    (tmp_path / "set.tsv.gz").write_bytes(gzip.compress(b"one\ntwo\n"))
    (tmp_path / "none.tsv").touch()
    with tables.record_files_read() as read:
        assert len(list(tables.read_rows(tmp_path / "set.tsv"))) == 2
        assert not list(tables.text_lines(tmp_path / "none.tsv"))
    assert read == {tmp_path / "set.tsv.gz": 2, tmp_path / "none.tsv": 0}
