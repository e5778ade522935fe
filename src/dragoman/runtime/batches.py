"""Which sources are decoded together on a CPU: those of like lengths, the longest first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

TOKENS = 4096  # source tokens at a time


def padded(sources: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Ids (B, S) and their lengths (B,)."""
    rows = [torch.tensor(ids, dtype=torch.long) for ids in sources]
    return pad_sequence(rows, batch_first=True), torch.tensor([len(ids) for ids in sources])


def batches(sources: Sequence[Sequence[int]], most: int) -> Iterator[list[int]]:
    """Places of sources that are decoded together: at most so many, of like lengths, the longest first."""
    ordered = sorted(range(len(sources)), key=lambda i: len(sources[i]), reverse=True)
    while ordered:
        count = max(min(most, TOKENS // max(len(sources[ordered[0]]), 1)), 1)
        yield ordered[:count]
        ordered = ordered[count:]
