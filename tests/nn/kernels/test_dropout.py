"""Dropout leaves out the share it says, keeps the mean, and is drawn from torch's seed."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.nn.kernels.dropout import Dropout, dropout


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5])
def test_the_share_of_dropped_numbers_is_p(p):
    n = 1_000_000
    found = float((dropout(torch.ones(n), p) == 0).double().mean())
    assert abs(found - p) < 5 * (p * (1 - p) / n) ** 0.5  # five standard errors


@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.bfloat16])
def test_what_is_kept_is_scaled_so_that_the_mean_stays(kind):
    x = torch.randn(200, 7, dtype=kind)
    y = dropout(x, 0.25)
    kept = y != 0
    torch.testing.assert_close(y[kept], (x / 0.75)[kept])
    assert y.dtype == kind


def test_neighbors_fall_out_independently():
    m = (dropout(torch.ones(400_000, 4), 0.5) == 0).double() - 0.5  # the four numbers of one draw of 64 bits
    correlation = m.T @ m / len(m) * 4
    assert (correlation - torch.eye(4)).abs().max() < 5 / len(m) ** 0.5


def test_the_gradient_passes_where_numbers_were_kept():
    x = torch.randn(50, 6, requires_grad=True)
    y = dropout(x, 0.5)
    y.sum().backward()
    torch.testing.assert_close(x.grad, (y != 0) * 2.0)


def test_one_seed_leaves_out_the_same_and_another_does_not():
    x = torch.ones(1000)
    torch.manual_seed(3)
    first, second = dropout(x, 0.5), dropout(x, 0.5)
    torch.manual_seed(3)
    assert torch.equal(dropout(x, 0.5), first)
    assert not torch.equal(first, second)


@settings(max_examples=20, deadline=None)
@given(shape=st.lists(st.integers(0, 5), max_size=3))
def test_any_shape_is_served(shape):
    assert dropout(torch.ones(shape), 0.5).shape == tuple(shape)


def test_evaluation_and_a_share_of_none_leave_everything():
    x = torch.randn(10)
    assert torch.equal(Dropout(0.5).eval()(x), x)
    assert torch.equal(Dropout(0.0)(x), x)
