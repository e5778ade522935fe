"""Attention of one step's queries, against torch's own attention on one sentence at a time."""

from __future__ import annotations

import pytest
import torch
from torch import nn


@torch.inference_mode()
@pytest.mark.parametrize("k", [1, 3])
def test_hypotheses_attend_to_the_real_source_positions(device: torch.device, k: int) -> None:
    """Two query heads to a key head; one source fills more than a block, one is empty, and one is done with."""
    from dragoman.engines.cuda.kernels.attention import cross_attention
    from dragoman.engines.cuda.packed_weights import AttentionShape

    lengths, done = (torch.tensor(x, device=device) for x in ([37, 5, 0, 3], [0, 0, 0, 1]))
    q, out = torch.randn(4 * k, 4 * 8, device=device), torch.zeros(4 * k, 4 * 5, device=device)
    keys, values = torch.randn(4, 40, 3, 2 * 8, device=device), torch.randn(4, 40, 3, 2 * 5, device=device)
    cross_attention(q, keys[:, :, 1], values[:, :, 1], lengths, done, AttentionShape(4, 2, 8, 5, 0.3), k, out)
    queries = q.view(4, k, 4, 8).transpose(1, 2)  # (B, H, k, d)
    for b, n in enumerate([37, 5, 0, 0]):
        want = torch.zeros(4, k, 5, device=device)
        if n:
            K, W = (x[b, :n, 1].view(n, 2, -1).transpose(0, 1).repeat_interleave(2, 0) for x in (keys, values))
            want = nn.functional.scaled_dot_product_attention(queries[b], K, W, scale=0.3)
        torch.testing.assert_close(out.view(4, k, 4, 5)[b].transpose(0, 1), want, atol=1e-5, rtol=1e-5)
