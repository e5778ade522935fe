"""Norms and feed-forward against their formulas and the worked numbers of the lectures."""

from __future__ import annotations

import math
from typing import Any, get_args

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from dragoman.core.registry import Part
from dragoman.nn.layers import Activation, FeedForward, linear, norms

ROWS = torch.tensor([[0.31, 0.14, 0.93], [0.14, 0.88, 0.98], [0.85, 0.20, 0.14], [0.46, 0.61, 0.49]])


# -- SPEC D3 -------------------------------------------------------------------------------------------------------


def test_the_worked_numbers_of_layer_norm() -> None:
    expected = [[-0.442, -0.943, 1.384], [-1.406, 0.569, 0.836], [1.410, -0.612, -0.798], [-0.926, 1.389, -0.463]]
    assert_close(norms.build(Part("layer", {"eps": 0.0}), 3)(ROWS), torch.tensor(expected), atol=6e-4, rtol=0)


def test_norms_are_their_formulas() -> None:
    x, a, b = torch.randn(4, 6), torch.randn(6), torch.randn(6)
    layer, rms = norms.build(Part("layer", {"eps": 0.1}), 6), norms.build(Part("rms", {"eps": 0.1}), 6)
    with torch.no_grad():
        layer.weight.copy_(a)
        layer.bias.copy_(b)
        rms.weight.copy_(a)
    for row, of_layer, of_rms in zip(x.tolist(), layer(x), rms(x), strict=True):
        mean = sum(row) / 6
        spread = math.sqrt(sum((v - mean) ** 2 for v in row) / 6 + 0.1)
        assert_close(of_layer, (torch.tensor(row) - mean) / spread * a + b, atol=1e-5, rtol=1e-5)
        size = math.sqrt(sum(v * v for v in row) / 6 + 0.1)
        assert_close(of_rms, torch.tensor(row) / size * a, atol=1e-5, rtol=1e-5)


def test_the_default_epsilon_of_layer_norm_is_the_lectures() -> None:
    assert norms.parse("layer").options["eps"] == 1e-5


def test_the_worked_numbers_of_batch_norm() -> None:
    expected = [[-0.495, -1.046, 0.859], [-1.143, 1.391, 1.004], [1.563, -0.848, -1.441], [0.076, 0.502, -0.422]]
    norm = norms.build(Part("batch", {"eps": 0.0}), 3)
    assert_close(norm(ROWS.view(2, 2, 3)).view(4, 3), torch.tensor(expected), atol=6e-4, rtol=0)


def test_batch_norm_is_that_of_torch_on_the_real_positions() -> None:
    """Results, gradients and running averages, over several batches; what padding holds does not matter."""
    ours, theirs = norms.build(Part("batch", {"eps": 0.1}), 3), nn.BatchNorm1d(3, eps=0.1)
    real = torch.tensor([[True, True, False], [True, False, False], [True, True, True]])
    for _ in range(3):
        x = torch.randn(3, 3, 3, requires_grad=True)
        y = x.detach().masked_fill(~real[..., None], 1e3).requires_grad_()
        out, expected = ours(y, real)[real], theirs(x[real])
        assert_close(out, expected)
        (grad,) = torch.autograd.grad((out**3).sum(), y)
        (expected_grad,) = torch.autograd.grad((expected**3).sum(), x)
        assert_close(grad[real], expected_grad[real], atol=1e-4, rtol=1e-4)
    assert_close(ours(x), theirs(x.view(9, 3)).view(3, 3, 3))  # all positions are real where nothing is said
    ours.eval(), theirs.eval()
    assert_close(ours(x, real), theirs(x.view(9, 3)).view(3, 3, 3))
    assert {"running_mean", "running_var"} <= ours.state_dict().keys()


def test_a_batch_without_positions_leaves_the_running_averages_alone() -> None:
    norm: Any = norms.build(Part("batch"), 3)
    assert norm(torch.zeros(2, 0, 3)).shape == (2, 0, 3)
    assert (norm.running_mean.tolist(), norm.running_var.tolist()) == ([0, 0, 0], [1, 1, 1])


@pytest.mark.parametrize("name", norms.names)
def test_a_norm_declares_whether_it_uses_batch_statistics(name: str) -> None:
    norm, x, real = norms.build(Part(name), 4), torch.randn(2, 3, 4), torch.ones(2, 3, dtype=torch.bool)
    before = norm(x, real)[0, 0]
    x[1, 2] += 5
    assert torch.allclose(norm(x, real)[0, 0], before) == (not norm.uses_batch_statistics)


# -- feed-forward --------------------------------------------------------------------------------------------------


def gelu(x: float) -> float:
    return x * (1 + math.erf(x / math.sqrt(2))) / 2


def gelu_tanh(x: float) -> float:
    return x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


def swish(x: float) -> float:
    return x / (1 + math.exp(-x))


FORMULAS = {"relu": lambda x: max(x, 0.0), "gelu": gelu, "gelu_tanh": gelu_tanh, "swish": swish}


@pytest.mark.parametrize("name", get_args(Activation))
@pytest.mark.parametrize("bias", [True, False])
def test_feed_forward_is_its_formula(name: Any, bias: bool) -> None:
    f = FORMULAS.get(name) or {"swiglu": swish, "geglu": gelu, "geglu_tanh": gelu_tanh}[name]
    feed, x = FeedForward(3, 5, name, 0.5, bias).eval(), torch.randn(2, 4, 3)

    def affine(layer: Any, x: Tensor) -> Tensor:
        if bias:
            nn.init.normal_(layer.bias)
        return (x @ layer.weight.T + (layer.bias if bias else 0)).detach()

    inner = affine(feed.W1, x).apply_(f)
    if name not in FORMULAS:
        inner = inner * affine(feed.W3, x)
    expected = affine(feed.W2, inner)
    assert_close(feed(x), expected, atol=1e-5, rtol=1e-5)
    assert any("bias" in key for key in feed.state_dict()) == bias


def test_linear_begins_with_glorot_and_no_bias() -> None:
    layer = linear(300, 100)
    assert layer.bias.abs().sum() == 0
    bound = math.sqrt(6 / 400)
    assert layer.weight.abs().max() <= bound
    assert layer.weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.05)
    assert linear(3, 2, bias=False).bias is None
