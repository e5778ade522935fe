"""Batch sources of similar length, the longest first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

CPU_BATCH_TOKENS, GPU_BATCH_TOKENS = 4096, 65536  # source tokens in a batch, padding included


def pad_ids(sources: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Ids padded with <pad>, (B, S), and their lengths (B,)."""
    rows = [torch.tensor(ids, dtype=torch.long) for ids in sources]
    return pad_sequence(rows, batch_first=True), torch.tensor([len(ids) for ids in sources])


def round_up(n: int, multiple: int, parts: int) -> int:
    """n rounded up to a multiple of `multiple`, or if larger of the power of two below n divided by `parts`."""
    unit = max(multiple, (1 << max(n - 1, 1).bit_length() - 1) // parts)
    return n + -n % unit


def batch_by_length(lengths: Sequence[int], max_tokens: int, max_size: int | None = None) -> Iterator[list[int]]:
    """The indices of the sources of each batch, longest first: at most so many padded tokens, and so many sources."""
    ordered = sorted(range(len(lengths)), key=lambda i: lengths[i], reverse=True)
    while ordered:
        count = max(min(max_size or len(ordered), max_tokens // max(lengths[ordered[0]], 1)), 1)
        yield ordered[:count]
        ordered = ordered[count:]
