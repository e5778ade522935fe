"""Positions, norms and feed-forward against their formulas and the worked numbers of the lectures."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from dragoman.core.errors import PartError
from dragoman.core.registry import Part
from dragoman.nn.layers import FeedForward, linear, norms, positions

ROWS = torch.tensor([[0.31, 0.14, 0.93], [0.14, 0.88, 0.98], [0.85, 0.20, 0.14], [0.46, 0.61, 0.49]])


def table(n: int, d: int, **options: Any) -> Tensor:
    return positions.build(Part("sinusoidal", options), d)(torch.zeros(1, n, d), torch.arange(n))[0]


# -- SPEC D4 -------------------------------------------------------------------------------------------------------


def test_the_worked_numbers_of_sinusoids() -> None:
    assert table(5, 4)[1].tolist() == pytest.approx([0.8415, 0.5403, 0.0100, 1.0000], abs=6e-5)


@pytest.mark.parametrize("layout", ["interleaved", "halves"])
def test_similarity_of_sinusoids_is_toeplitz(layout: str) -> None:
    similar = table(5, 4, layout=layout) @ table(5, 4, layout=layout).T
    assert similar[0].tolist() == pytest.approx([2, 1.5403, 0.5837, 0.0096, 0.3456], abs=5e-5)
    for i in range(5):
        for j in range(5):
            assert similar[i, j].item() == pytest.approx(similar[0, abs(i - j)].item(), abs=1e-5)


def test_sinusoids_are_their_formula_far_past_any_training_length() -> None:
    d, places = 6, [0, 1, 7, 4999]
    interleaved = [[f(t / 10000 ** (2 * i / d)) for i in range(d // 2) for f in (math.sin, math.cos)] for t in places]
    halves = [[f(t / 10000 ** (2 * i / d)) for f in (math.sin, math.cos) for i in range(d // 2)] for t in places]
    for layout, expected in {"interleaved": interleaved, "halves": halves}.items():
        part = positions.build(Part("sinusoidal", {"layout": layout}), d)
        found = part(torch.ones(1, len(places), d), torch.tensor(places))[0] - 1
        assert_close(found, torch.tensor(expected), atol=1e-3, rtol=0)  # float32 angles near 5000


def test_sinusoids_refuse_an_odd_width() -> None:
    with pytest.raises(PartError, match="even width, not 5"):
        positions.build(Part("sinusoidal"), 5)


# -- what all positions keep ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", positions.names)
def test_a_position_is_the_same_alone_and_among_others(name: str) -> None:
    part, x = positions.build(Part(name), 8), torch.randn(2, 5, 8)
    together = part(x, torch.arange(5))
    assert together.shape == x.shape
    for t in range(5):
        assert_close(part(x[:, t : t + 1], torch.full((2, 1), t)), together[:, t : t + 1])


@pytest.mark.parametrize("name", positions.names)
def test_positions_tell_places_apart_unless_there_are_none(name: str) -> None:
    same = torch.ones(1, 2, 8)
    first, second = positions.build(Part(name), 8)(same, torch.arange(2))[0]
    assert torch.equal(first, second) == (name == "none")


def test_learned_positions_reach_as_far_as_they_say() -> None:
    part = positions.build(Part("learned", {"length": 3}), 4)
    assert part.length == 3
    assert_close(part(torch.zeros(1, 3, 4), torch.arange(3))[0], part.table.weight)  # type: ignore[attr-defined]
    assert positions.build(Part("sinusoidal"), 4).length is None


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


# -- feed-forward --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "f"),
    [("relu", lambda x: max(x, 0.0)), ("gelu", lambda x: x * (1 + math.erf(x / math.sqrt(2))) / 2)],
)
def test_feed_forward_is_its_formula(name: Any, f: Any) -> None:
    feed, x = FeedForward(3, 5, name, 0.5).eval(), torch.randn(2, 4, 3)
    torch.nn.init.normal_(feed.W1.bias)
    torch.nn.init.normal_(feed.W2.bias)
    inner = feed.W1(x).detach().apply_(f)
    assert_close(feed(x), inner @ feed.W2.weight.T + feed.W2.bias, atol=1e-5, rtol=1e-5)


def test_linear_begins_with_glorot_and_no_bias() -> None:
    layer = linear(300, 100)
    assert layer.bias.abs().sum() == 0
    bound = math.sqrt(6 / 400)
    assert layer.weight.abs().max() <= bound
    assert layer.weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.05)
    assert linear(3, 2, bias=False).bias is None
