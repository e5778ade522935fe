"""Pack the rows of a batch end to end, so that almost no padding is computed.

    padded (B, S)     1 2 3 ·      packed (1, N)     1 2 3 4 5 6 7 8 9 ·         starts  0 3 4 9 10
                      4 · · ·                        the rows, then rows of padding up to N
                      5 6 7 8 9

N is rounded up, so that few different shapes come up: a step is compiled and captured once for each. The rest is filled
with short rows of padding, which no other row attends to and which add nothing to the loss.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from dragoman.core.errors import PartError
from dragoman.core.types import PAD, Batch, PackedBatch, Segments

FILLER_LENGTH = 32  # positions in a row of padding


class PackedShape(NamedTuple):
    """Source positions, target positions and rows of a packed batch, padding included."""

    N: int
    M: int
    rows: int


def packed_shape(batch: Batch, multiple: int = 1) -> PackedShape:
    """A batch's positions rounded up to a multiple of `multiple`, and its rows, fillers included, to a power of two."""
    N, M = (-(-int(n.sum()) // multiple) * multiple for n in (batch.source_lengths, batch.target_lengths - 1))
    rows = len(batch) + count_fillers(batch, N, M)
    return PackedShape(N, M, 1 << (rows - 1).bit_length() if multiple > 1 else rows)


def count_fillers(batch: Batch, N: int, M: int) -> int:
    """How many rows of padding fill N source and M target positions."""
    source, target = int(batch.source_lengths.sum()), int(batch.target_lengths.sum()) - len(batch)
    return max(-(-(N - source) // FILLER_LENGTH), -(-(M - target) // FILLER_LENGTH))


def can_hold(shape: PackedShape, batch: Batch, own: PackedShape) -> bool:
    """Whether a batch whose own shape is `own` fits into `shape`, filler rows included."""
    return shape.N >= own.N and shape.M >= own.M and shape.rows >= len(batch) + count_fillers(batch, shape.N, shape.M)


def pack(batch: Batch, multiple: int = 1, into: PackedShape | None = None) -> PackedBatch:
    """Pack sources, decoder inputs and gold tokens end to end, in the batch's own shape or in a larger one."""
    if batch.token_labels is not None:
        raise PartError("packed rows have no token labels; an objective with labels must set has_token_labels = True")
    N, M, rows = into or packed_shape(batch, multiple)
    source, first = _concatenate(batch.source, batch.source_lengths, N, rows)
    target, second = _concatenate(batch.target[:, :-1], batch.target_lengths - 1, M, rows)
    gold, _ = _concatenate(batch.target[:, 1:], batch.target_lengths - 1, M, rows)
    return PackedBatch(source, first, target, gold, second)


def _concatenate(ids: Tensor, lengths: Tensor, size: int, rows: int) -> tuple[Tensor, Segments]:
    """ids (B, S) end to end as (1, size), and the segments of `rows` rows: real, filler and empty ones."""
    real = torch.arange(ids.shape[1]) < lengths[:, None]
    total = int(lengths.sum())
    flat = torch.full((1, size), PAD)
    flat[0, :total] = ids[real]
    all_lengths = torch.zeros(rows, dtype=torch.long)
    all_lengths[: len(lengths)] = lengths
    missing = size - total  # in rows of FILLER_LENGTH positions each, the last one shorter
    for i in range(-(-missing // FILLER_LENGTH)):
        all_lengths[len(lengths) + i] = min(FILLER_LENGTH, missing - i * FILLER_LENGTH)
    starts = torch.zeros(rows + 1, dtype=torch.int32)
    starts[1:] = all_lengths.cumsum(0)
    positions = torch.arange(size) - starts[:-1].long().repeat_interleave(all_lengths)
    longest = max(int(all_lengths.max()) if rows else 0, 1)
    return flat, Segments(all_lengths, starts, positions[None], longest)


def packed_tensors(batch: PackedBatch) -> list[Tensor]:
    """Every tensor of a packed batch, in a fixed order."""
    tensors = [batch.source, batch.target, batch.gold]
    for side in (batch.sources, batch.targets):
        assert side.starts is not None
        assert side.positions is not None
        tensors += [side.lengths, side.starts, side.positions]
    return tensors
