"""A padded batch laid end to end: no position is computed that nobody asked for.

    padded (B, S)     1 2 3 ·      packed (1, N)     1 2 3 4 5 6 7 8 9 ·         starts  0 3 4 9 10
                      4 · · ·                        the rows, then rows of padding up to N
                      5 6 7 8 9

N is rounded up, so that few different shapes come up: a compiled step is made once for each. What is left over is
filled with rows of padding, short ones, which nobody looks at and which count for nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from dragoman.core.errors import PartError
from dragoman.core.types import PAD, Batch, PackedBatch, Segments

FILLER = 32  # positions in a row of padding


class Shape(NamedTuple):
    """Positions of the sources and of the targets, and rows, padding included."""

    N: int
    M: int
    rows: int


def shape(batch: Batch, multiple: int = 1) -> Shape:
    """The sides of a batch rounded up to a multiple of `multiple`, its rows to a power of two."""
    N, M = (rounded(int(lengths.sum()), multiple) for lengths in (batch.source_lengths, batch.target_lengths - 1))
    rows = len(batch) + fillers(batch, N, M)
    return Shape(N, M, 1 << (rows - 1).bit_length() if multiple > 1 else rows)


def fillers(batch: Batch, N: int, M: int) -> int:
    """How many rows of padding fill both sides."""
    source, target = int(batch.source_lengths.sum()), int(batch.target_lengths.sum()) - len(batch)
    return max(-(-(N - source) // FILLER), -(-(M - target) // FILLER))


def holds(room: Shape, batch: Batch, least: Shape) -> bool:
    """Whether a batch whose own shape is `least` fits into another."""
    return room.N >= least.N and room.M >= least.M and room.rows >= len(batch) + fillers(batch, room.N, room.M)


def pack(batch: Batch, multiple: int = 1, into: Shape | None = None) -> PackedBatch:
    """The same pairs end to end, in their own shape or a given one that holds them."""
    if batch.token_labels is not None:
        raise PartError(
            "rows that lie end to end have no marks; an objective that makes marks must say so: marks = True"
        )
    N, M, rows = into or shape(batch, multiple)
    source, first = _laid(batch.source, batch.source_lengths, N, rows)
    target, second = _laid(batch.target[:, :-1], batch.target_lengths - 1, M, rows)
    gold, _ = _laid(batch.target[:, 1:], batch.target_lengths - 1, M, rows)
    return PackedBatch(source, first, target, gold, second)


def rounded(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple


def _laid(ids: Tensor, lengths: Tensor, size: int, rows: int) -> tuple[Tensor, Segments]:
    """(B, S) ids as (1, size), and where the rows lie; there are `rows` of them, padding and empty ones included."""
    real = torch.arange(ids.shape[1]) < lengths[:, None]
    total = int(lengths.sum())
    flat = torch.full((1, size), PAD)
    flat[0, :total] = ids[real]
    every = torch.zeros(rows, dtype=torch.long)
    every[: len(lengths)] = lengths
    short = size - total  # in fillers of FILLER positions each, the last one shorter
    for i in range(-(-short // FILLER)):
        every[len(lengths) + i] = min(FILLER, short - i * FILLER)
    starts = torch.zeros(rows + 1, dtype=torch.int32)
    starts[1:] = every.cumsum(0)
    places = torch.arange(size) - starts[:-1].long().repeat_interleave(every)
    longest = max(int(every.max()) if rows else 0, 1)
    return flat, Segments(every, starts, places[None], longest)


def tensors(batch: PackedBatch) -> list[Tensor]:
    """Every tensor of a packed batch, in one order."""
    found = [batch.source, batch.target, batch.gold]
    for side in (batch.sources, batch.targets):
        assert side.starts is not None
        assert side.places is not None
        found += [side.lengths, side.starts, side.places]
    return found


def with_tensors(batch: PackedBatch, new: list[Tensor], longest: tuple[int, int]) -> PackedBatch:
    """The same with other tensors, in the order of `tensors`."""
    source, target, gold, a, b, c, d, e, f = new
    return PackedBatch(source, Segments(a, b, c, longest[0]), target, gold, Segments(d, e, f, longest[1]))
