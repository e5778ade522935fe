"""Products in fewer bits: as close as their bits allow, and every row for itself."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

from dragoman.engines.cpu.packed_linear import (
    UNPACKED_WEIGHTS,
    BFloat16Linear,
    Int8Linear,
    pack_linears,
    precision_blocker,
)

needs_int8 = pytest.mark.skipif(precision_blocker("int8") is not None, reason="this CPU has no instructions for int8")
needs_bfloat16 = pytest.mark.skipif(
    precision_blocker("bfloat16") is not None, reason="this CPU has no instructions for bfloat16"
)


def int8(linear: nn.Linear) -> Int8Linear:
    """Whatever its size: a product of few weights is otherwise left in float32."""
    return Int8Linear(linear.weight.detach(), None if linear.bias is None else linear.bias.detach())


@needs_int8
@given(st.integers(1, 70), st.sampled_from([16, 33, 96]), st.sampled_from([8, 65]), st.floats(1e-3, 1e3), st.booleans())
def test_a_row_in_int8_is_the_same_whatever_stands_beside_it(
    M: int, K: int, N: int, loudness: float, bias: bool
) -> None:
    product = int8(nn.Linear(K, N, bias=bias))
    x = torch.randn(M, K)
    x[M // 2] *= loudness
    together = product(x)
    for i in {0, M // 2, M - 1}:
        assert product(x[i : i + 1]).equal(together[i : i + 1])


@needs_int8
def test_int8_is_within_what_rounding_to_8_bits_allows() -> None:
    """Each product of a sum errs by at most half a step of x times |w| and half a step of w times |x|."""
    linear = nn.Linear(64, 40)
    x = torch.randn(9, 64) * torch.logspace(-2, 2, 9)[:, None]
    w, step_x = linear.weight.detach(), x.abs().amax(1, keepdim=True) * 2 / 255
    step_w = w.abs().amax(1, keepdim=True) / 127
    bound = step_x * w.abs().sum(1) + (x.abs().sum(1)[:, None] + 64 * step_x) * (step_w / 2).T
    error = (int8(linear)(x) - linear(x)).detach().abs()
    assert (error <= bound + 1e-5).all()
    assert (error.norm(dim=1) <= 0.02 * linear(x).detach().norm(dim=1)).all()


@needs_int8
def test_a_row_of_zeros_gives_the_bias() -> None:
    linear = nn.Linear(16, 8)
    x = torch.randn(3, 16)
    x[1] = 0.0
    assert_close(int8(linear)(x)[1], linear.bias.detach())


@needs_bfloat16
def test_bfloat16_is_within_its_8_bits() -> None:
    linear, x = nn.Linear(64, 40), torch.randn(5, 64)
    error = (BFloat16Linear(linear.weight.detach(), linear.bias.detach())(x) - linear(x)).detach().norm()
    assert error <= 0.01 * linear(x).detach().norm()


@pytest.mark.parametrize("width", [24, UNPACKED_WEIGHTS // 24 + 8], ids=["few weights", "many"])
@pytest.mark.parametrize("rows", [1, 5, 64])
@pytest.mark.parametrize("bias", [True, False])
def test_projections_side_by_side_are_the_projections(rows: int, width: int, bias: bool) -> None:
    linears, x = [nn.Linear(width, n, bias=bias) for n in (8, 16, 4)], torch.randn(rows, width)
    expected = torch.cat([linear(x) for linear in linears], 1).detach()
    assert_close(pack_linears(linears, "float32")(x), expected, atol=1e-5, rtol=1e-5)
