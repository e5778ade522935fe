"""Source and target as one sequence, without a gap where the source was padded.

    row b:   x_1 … x_{n_b}  y_1 … y_T  (nothing)          place n_b + t is target position t

B sentences, S source and T target positions, D width; n_b are the source's real lengths.
"""

from __future__ import annotations

import torch
from torch import Tensor


def joined(x: Tensor, lengths: Tensor, y: Tensor) -> Tensor:
    """x (B, S, D) and y (B, T, D) → (B, S + T, D), y where the row's x ends."""
    S, T = x.shape[1], y.shape[1]
    place = torch.arange(S + T, device=x.device)  # (S + T,)
    n = lengths[:, None]
    index = torch.where(place < n, place, S + (place - n).clamp(max=max(T - 1, 0)))  # where to find it in [x; y]
    index = index.clamp(max=max(S + T - 1, 0))
    return torch.cat([x, y], 1).gather(1, index[..., None].expand(-1, -1, x.shape[-1]))


def behind(o: Tensor, lengths: Tensor, size: int) -> Tensor:
    """(B, S + T, D) → (B, T, D): what stands behind the source of each row."""
    place = lengths[:, None] + torch.arange(size, device=o.device)  # (B, T)
    return o.gather(1, place[..., None].expand(-1, -1, o.shape[-1]))
