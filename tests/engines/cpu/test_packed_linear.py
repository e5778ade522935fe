"""Repacked projections are the projections."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from dragoman.engines.cpu.packed_linear import UNPACKED_WEIGHTS, pack_linears


@pytest.mark.parametrize("width", [24, UNPACKED_WEIGHTS // 24 + 8], ids=["few weights", "many"])
@pytest.mark.parametrize("rows", [1, 5, 64])
@pytest.mark.parametrize("bias", [True, False])
def test_projections_side_by_side_are_the_projections(rows: int, width: int, bias: bool) -> None:
    linears, x = [nn.Linear(width, n, bias=bias) for n in (8, 16, 4)], torch.randn(rows, width)
    expected = torch.cat([linear(x) for linear in linears], 1).detach()
    assert_close(pack_linears(linears)(x), expected, atol=1e-5, rtol=1e-5)
