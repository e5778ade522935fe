"""Source and target as one sequence for decoder-only models, without padding between them.

    row b:   x_1 … x_{n_b}  y_1 … y_T  (padding)          index n_b + t is target position t

B sentences, S source and T target positions, D width; n_b are the source's real lengths.
"""

from __future__ import annotations

import torch
from torch import Tensor


def append_after_lengths(x: Tensor, lengths: Tensor, y: Tensor) -> Tensor:
    """x (B, S, D) and y (B, T, D) → (B, S + T, D): in each row y follows the first `lengths` positions of x."""
    S, T = x.shape[1], y.shape[1]
    j = torch.arange(S + T, device=x.device)  # (S + T,)
    n = lengths[:, None]
    index = torch.where(j < n, j, S + (j - n).clamp(max=max(T - 1, 0)))  # in [x; y]
    index = index.clamp(max=max(S + T - 1, 0))
    return torch.cat([x, y], 1).gather(1, index[..., None].expand(-1, -1, x.shape[-1]))


def slice_after_lengths(o: Tensor, lengths: Tensor, size: int) -> Tensor:
    """(B, S + T, D) → (B, size, D): in each row the `size` positions after the first `lengths`."""
    index = lengths[:, None] + torch.arange(size, device=o.device)  # (B, T)
    return o.gather(1, index[..., None].expand(-1, -1, o.shape[-1]))
