"""Which sources are computed together: those of like lengths, the longest first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

ON_CPU, ON_GPU = 4096, 65536  # source tokens at a time, padding counted


def padded(sources: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Ids (B, S) and their lengths (B,)."""
    rows = [torch.tensor(ids, dtype=torch.long) for ids in sources]
    return pad_sequence(rows, batch_first=True), torch.tensor([len(ids) for ids in sources])


def batches(lengths: Sequence[int], tokens: int, most: int | None = None) -> Iterator[list[int]]:
    """Places of sources that are computed together: at most so many tokens and, if said, so many sources."""
    ordered = sorted(range(len(lengths)), key=lambda i: lengths[i], reverse=True)
    while ordered:
        count = max(min(most or len(ordered), tokens // max(lengths[ordered[0]], 1)), 1)
        yield ordered[:count]
        ordered = ordered[count:]
