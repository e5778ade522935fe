"""Shards: whole windows of an input, numbered from its start; what plain commands sort and batch together, too.

    file of lines   ─scan→ size, SHA-256, number of lines, where each shard begins   ─read_shards→ Shard, Shard, …
    any other       read from its start, and cut as it comes                         ─cut_shards→  Shard, Shard, …

A plain file is read from where a shard begins, so a worker that needs a few shards reads no others. A gzip file has no
such places: it is read from its start. A line that cannot be read spoils its shard, and no other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from dragoman.core.errors import DataError
from dragoman.core.types import Example
from dragoman.data.lines import (
    GZIP_MAGIC,
    UTF8_BOM,
    Line,
    OnError,
    ReadReport,
    count_lines,
    open_binary,
    read_lines,
)
from dragoman.data.readers import Row

CHUNK_SIZE = 1 << 22  # bytes


@dataclass(frozen=True)
class Shard:
    """One shard: its number, the index of its first input, and its inputs; or the reason why they cannot be read."""

    number: int
    first_index: int
    inputs: list[Any]
    error: str = ""

    def __str__(self) -> str:
        return f"shard {self.number} (lines {self.first_index + 1:,} to {self.first_index + len(self.inputs):,})"


@dataclass(frozen=True)
class InputFile:
    """What identifies a file, wherever it is: its content. `name` is only for messages."""

    name: str
    size: int
    sha256: str

    def as_json(self) -> dict[str, str | int]:
        """The file for job.json."""
        return {"name": self.name, "bytes": self.size, "sha256": self.sha256}


@dataclass(frozen=True)
class LineFile:
    """A file of lines, and the offset of the first byte of each shard; a gzip file has no offsets."""

    path: Path
    identity: InputFile
    lines: int
    shard_size: int
    offsets: list[int] = field(repr=False)


def identify_file(path: Path, *, visit: Callable[[bytes], None] = lambda chunk: None) -> InputFile:
    """Read a file once for its size and SHA-256; `visit` is called with each piece."""
    digest, size = hashlib.sha256(), 0
    with open_binary(path) as file:
        try:
            while chunk := file.read(CHUNK_SIZE):
                digest.update(chunk)
                size += len(chunk)
                visit(chunk)
        except OSError as error:
            raise DataError(f"the file cannot be read: {error.strerror or error}", path) from None
    return InputFile(path.name, size, digest.hexdigest())


def scan_lines(path: Path, shard_size: int) -> LineFile:
    """Read a file of lines once: what identifies it, how many lines it has, and where its shards begin."""
    with open_binary(path) as file:
        is_gzip = file.read(2) == GZIP_MAGIC
    if is_gzip or path.name.endswith(".gz"):
        return LineFile(path, identify_file(path), count_lines(path), shard_size, [])
    offsets, lines, position, tail = [0], 0, 0, b""

    def visit(chunk: bytes) -> None:
        nonlocal lines, position, tail
        ends = np.flatnonzero(np.frombuffer(chunk, np.uint8) == ord("\n"))
        first = -lines % shard_size or shard_size  # so many line ends before the next shard
        offsets.extend((position + ends[first - 1 :: shard_size] + 1).tolist())
        lines, position, tail = lines + len(ends), position + len(chunk), (tail + chunk)[-len(UTF8_BOM) :]

    identity = identify_file(path, visit=visit)
    has_open_end = identity.size > 0 and not tail.endswith(b"\n")
    is_blank = identity.size == len(UTF8_BOM) and tail == UTF8_BOM
    return LineFile(path, identity, lines + (has_open_end and not is_blank), shard_size, offsets)


def count_shards(inputs: int, shard_size: int) -> int:
    """The number of shards of so many inputs; an empty input has one, which is empty."""
    return max(1, -(-inputs // shard_size))


def read_shards(
    file: LineFile, name: str, wanted: Iterable[int], on_error: OnError, report: ReadReport
) -> Iterator[Shard]:
    """Read the wanted shards, which are in order; each line is a row and a source."""
    size = file.shard_size
    with open_binary(file.path) as stream:
        all_lines: Iterator[Line] | None = None
        at = 0  # lines that were read
        for number in wanted:
            first = number * size
            if file.offsets:
                stream.seek(file.offsets[number])
                lines = read_lines(stream, name=name, on_error="skip", report=report, first_number=first + 1)
            else:
                if all_lines is None:
                    all_lines = read_lines(stream, name=name, on_error="skip", report=report)
                next(islice(all_lines, first - at - 1, first - at), None) if first > at else None
                lines, at = all_lines, first + size
            yield _parse_shard(number, first, islice(lines, size), name, on_error)


def _parse_shard(number: int, first: int, lines: Iterator[Line], name: str, on_error: OnError) -> Shard:
    inputs, error = [], ""
    for line in lines:
        if line.error and on_error == "stop" and not error:
            error = str(DataError(line.error, name, line.number))
        example = Example(line.text, file=name, line=line.number, source_truncated=line.is_truncated)
        inputs.append((Row([line.text], line.number, line.is_truncated), example))
    return Shard(number, first, inputs, error)


def cut_shards(inputs: Iterable[Any], shard_size: int, is_wanted: Callable[[int], bool]) -> Iterator[Shard]:
    """Cut inputs of any kind into shards as they come, and keep the wanted ones; an empty input has one shard."""
    iterator = iter(inputs)
    number = 0
    while True:
        shard = list(islice(iterator, shard_size))
        if not shard and number > 0:
            return
        if is_wanted(number):
            yield Shard(number, number * shard_size, shard)
        number += 1
        if len(shard) < shard_size:
            return
