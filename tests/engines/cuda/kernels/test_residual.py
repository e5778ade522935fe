"""What the residual stream begins with, and sums and norms of it, against torch's own operations."""

from __future__ import annotations

import pytest
import torch
from torch import nn

D = 20  # no power of two


@pytest.mark.parametrize("has_positions", [True, False])
def test_tokens_enter_the_stream_at_the_position_of_their_sentence(device: torch.device, has_positions: bool) -> None:
    from dragoman.engines.cuda.kernels.residual import embed

    tokens = torch.tensor([[3, 0], [8, 3], [5, 5]], dtype=torch.int32, device=device)
    t = torch.tensor([4, 0, 6], dtype=torch.int32, device=device)
    table, positions = torch.randn(9, D, device=device), torch.randn(7, D, device=device)
    x = torch.full((6, D), torch.nan, device=device)
    embed(tokens, t, table, 2.5, positions if has_positions else None, x)
    want = 2.5 * table[tokens.long()] + (positions[t.long()][:, None] if has_positions else 0.0)
    torch.testing.assert_close(x.view(3, 2, D), want)


@pytest.mark.parametrize("rms", [True, False])
@pytest.mark.parametrize("post", [True, False])
@pytest.mark.parametrize("adds", [True, False])
def test_a_sum_and_its_norm_are_torchs(device: torch.device, rms: bool, post: bool, adds: bool) -> None:
    """The norm goes out; the stream keeps the sum or, after a sub-layer, the norm as well."""
    from dragoman.engines.cuda.kernels.residual import NormWeights, add_norm

    x, y = torch.randn(3, D, device=device), torch.randn(3, D, device=device).bfloat16()
    weight, bias = (
        torch.randn(D, device=device),
        torch.zeros(D, device=device) if rms else torch.randn(D, device=device),
    )
    total = x + y.float() if adds else x.clone()
    want = nn.functional.rms_norm(total, (D,), weight, 0.1)
    if not rms:
        want = nn.functional.layer_norm(total, (D,), weight, bias, 0.1)
    h = torch.full((3, D), torch.nan, device=device)
    add_norm(x, y if adds else None, NormWeights(weight, bias, 0.1, rms, post), h)
    torch.testing.assert_close(h, want)
    torch.testing.assert_close(x, want if post else total)
