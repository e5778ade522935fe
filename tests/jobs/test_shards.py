"""Shards are whole windows of the lines that plain commands read, wherever reading begins."""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dragoman.core.errors import DataError
from dragoman.data.lines import LINE_LIMIT, ReadReport, read_lines
from dragoman.jobs import shards
from dragoman.jobs.shards import Shard, count_shards, cut_shards, read_shards, scan_lines

PIECES = st.sampled_from(
    [b"a b", b"", b"\xef\xbb\xbf", b"\r", b"\xc3\xa9", b"\xe2\x80\xa8", b"\x1f\x8b", b"\xff", b"x"]
)
CONTENTS = st.lists(st.one_of(PIECES, st.just(b"\n")), max_size=60).map(b"".join)


@pytest.mark.parametrize("suffix", ["txt", "txt.gz"])
@given(content=CONTENTS, size=st.integers(1, 7), chunk=st.integers(1, 9), data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
def test_shards_have_the_lines_of_the_file(
    content: bytes, size: int, chunk: int, data: st.DataObject, suffix: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("lines") / f"lines.{suffix}"
    if content.startswith(b"\x1f\x8b"):  # which no plain text does
        content = content[2:]
    path.write_bytes(gzip.compress(content) if suffix.endswith("gz") else content)
    lines = list(read_lines(path, on_error="skip"))
    before, shards.CHUNK_SIZE = shards.CHUNK_SIZE, chunk
    try:
        file = scan_lines(path, size)
    finally:
        shards.CHUNK_SIZE = before
    assert file.lines == len(lines)
    assert file.identity.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert file.identity.size == path.stat().st_size
    count = count_shards(file.lines, size)
    wanted = sorted(data.draw(st.sets(st.integers(0, count - 1))))
    read = list(read_shards(file, str(path), wanted, "skip", ReadReport()))
    assert [shard.number for shard in read] == wanted
    for shard in read:
        first = shard.number * size
        assert shard.first_index == first
        mine = lines[first : first + size]
        assert [row.cells for row, _ in shard.inputs] == [[line.text] for line in mine]
        assert [(e.source, e.line, e.file) for _, e in shard.inputs] == [(l.text, l.number, str(path)) for l in mine]
    stopping = list(read_shards(file, str(path), range(count), "stop", ReadReport()))
    bad = [any(line.error for line in lines[i * size : (i + 1) * size]) for i in range(count)]
    assert [bool(shard.error) for shard in stopping] == bad


def test_a_line_without_an_end_is_cut_where_plain_reading_cuts_it(tmp_path: Path) -> None:
    path = tmp_path / "long.txt"
    path.write_bytes(b"a\n" + b"x" * (LINE_LIMIT + 100) + b"\nb\nc")
    file = scan_lines(path, 2)
    first, second = read_shards(file, "long.txt", [0, 1], "stop", ReadReport())
    assert [len(example.source) for _, example in first.inputs] == [1, LINE_LIMIT]
    assert [example.source for _, example in second.inputs] == ["b", "c"]
    assert first.inputs[1][1].source_truncated


@given(count=st.integers(0, 40), size=st.integers(1, 9))
def test_inputs_of_any_kind_are_cut_as_they_come(count: int, size: int) -> None:
    every = list(cut_shards(range(count), size, lambda number: True))
    assert len(every) == count_shards(count, size)
    assert [value for shard in every for value in shard.inputs] == list(range(count))
    assert all(shard.first_index == shard.number * size for shard in every)
    assert list(cut_shards(range(count), size, lambda number: number % 2 == 1)) == every[1::2]


def test_a_missing_or_damaged_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no such file"):
        scan_lines(tmp_path / "none.txt", 4)
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"a\n" * 1000)[:-9])
    with pytest.raises(DataError, match="cannot be read to its end"):
        scan_lines(tmp_path / "cut.gz", 4)


def test_a_shard_says_its_lines() -> None:
    assert str(Shard(2, 8192, [0] * 4096)) == "shard 2 (lines 8,193 to 12,288)"
