"""Every scheme of positions against its formula in plain Python, and the worked numbers of the lectures."""

from __future__ import annotations

import cmath
import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from dragoman.core.errors import PartError
from dragoman.core.registry import Part
from dragoman.nn.positions import HeadSpec, positions

B, H, D_HEAD = 2, 4, 6
D = H * D_HEAD
IN_ATTENTION = ["alibi", "rotary", "shaw", "t5", "xl"]


def build(name: str, causal: bool = False, heads: int = H, **options: Any) -> Any:
    return positions.build(Part(name, options), D, HeadSpec(heads, D_HEAD, causal))


def table(n: int, d: int, **options: Any) -> Tensor:
    return positions.build(Part("sinusoidal", options), d, None)(torch.zeros(1, n, d), torch.arange(n)[None])[0]


def positions_from(n: int, start: int = 0) -> Tensor:
    return torch.arange(start, start + n)[None]


# -- SPEC D4: sinusoids ----------------------------------------------------------------------------------------------


def test_the_worked_numbers_of_sinusoids() -> None:
    assert table(5, 4)[1].tolist() == pytest.approx([0.8415, 0.5403, 0.0100, 1.0000], abs=6e-5)


@pytest.mark.parametrize("layout", ["interleaved", "halves"])
def test_similarity_of_sinusoids_is_toeplitz_and_not_monotone(layout: str) -> None:
    similar = table(5, 4, layout=layout) @ table(5, 4, layout=layout).T
    assert similar[0].tolist() == pytest.approx([2, 1.5403, 0.5837, 0.0096, 0.3456], abs=6e-5)
    for i in range(5):
        for j in range(5):
            assert similar[i, j].item() == pytest.approx(similar[0, abs(i - j)].item(), abs=1e-5)
    assert similar[0, 4] > similar[0, 3]  # farther, yet more alike


def test_sinusoids_are_their_formula_far_past_any_training_length() -> None:
    d, far = 6, [0, 1, 7, 4999]
    interleaved = [[f(t / 10000 ** (2 * i / d)) for i in range(d // 2) for f in (math.sin, math.cos)] for t in far]
    halves = [[f(t / 10000 ** (2 * i / d)) for f in (math.sin, math.cos) for i in range(d // 2)] for t in far]
    for layout, expected in {"interleaved": interleaved, "halves": halves}.items():
        part = positions.build(Part("sinusoidal", {"layout": layout}), d, None)
        found = part(torch.ones(1, len(far), d), torch.tensor([far]))[0] - 1
        assert_close(found, torch.tensor(expected), atol=1e-3, rtol=0)  # float32 angles near 5000


def test_learned_positions_reach_as_far_as_they_say() -> None:
    part: Any = positions.build(Part("learned", {"length": 3}), 4, None)
    assert part.max_positions == 3
    assert_close(part(torch.zeros(1, 3, 4), positions_from(3))[0], part.table.weight)
    assert all(build(name).max_positions is None for name in [*IN_ATTENTION, "sinusoidal", "none"])


# -- relative positions ----------------------------------------------------------------------------------------------


def test_shaw_adds_a_vector_of_the_clipped_distance_to_keys_and_values() -> None:
    k, T, S = 2, 4, 6
    part = build("shaw", distance=k, values=True)
    q, a, t, s = torch.randn(B, H, T, D_HEAD), torch.rand(B, H, T, S), positions_from(T, 3), positions_from(S)
    bias, mix = part.score_bias(q, t, s), part.value_bias(a, t, s)
    for b in range(B):
        for h in range(H):
            for i in range(T):
                expected = torch.zeros(D_HEAD)
                for j in range(S):
                    row = max(-k, min(k, j - (i + 3))) + k
                    expected += a[b, h, i, j] * part.values[row]
                    assert_close(bias[b, h, i, j], q[b, h, i] @ part.keys[row] / math.sqrt(D_HEAD))
                assert_close(mix[b, h, i], expected)
    assert (part.needs_weights, part.per_layer, build("shaw").needs_weights) == (True, True, False)
    assert build("shaw").value_bias(a, t, s) is None


def test_xl_asks_queries_and_a_vector_of_each_head_for_the_sinusoids_of_the_distance() -> None:
    k, T, S = 3, 3, 8
    part = build("xl", distance=k)
    torch.nn.init.normal_(part.v)
    q, t, s = torch.randn(B, H, T, D_HEAD), positions_from(T, 4), positions_from(S)
    bias = part.score_bias(q, t, s)
    W = part.W.T.reshape(H, D_HEAD, D)
    for i in range(T):
        for j in range(S):
            far = max(-k, min(k, j - (i + 4)))
            wave = torch.tensor([f(far / 10000 ** (2 * m / D)) for m in range(D // 2) for f in (math.sin, math.cos)])
            for h in range(H):
                expected = (q[:, h, i] + part.v[h]) @ (W[h] @ wave) / math.sqrt(D_HEAD)
                assert_close(bias[:, h, i, j], expected)


def bucket_of_the_paper(later: int, buckets: int, distance: int, causal: bool) -> int:
    """`later` is how far the key stands after the query. Powers instead of logarithms, so that edges are exact."""
    first = 0
    if causal:
        far = max(-later, 0)
    else:
        buckets //= 2
        first, far = (buckets if later > 0 else 0), abs(later)
    m = buckets // 2
    if far < m:
        return first + far
    steps = 0  # the largest j with log(far / m) / log(distance / m) · (buckets − m) ≥ j
    while steps < buckets - m - 1 and far ** (buckets - m) >= distance ** (steps + 1) * m ** (buckets - m - steps - 1):
        steps += 1
    return first + m + steps


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("buckets", "distance"), [(32, 128), (8, 20)])
def test_t5_gives_each_head_a_number_for_the_bucket_of_the_paper(buckets: int, distance: int, causal: bool) -> None:
    part = build("t5", causal, buckets=buckets, distance=distance)
    t = torch.tensor([[150]])
    bias = part.score_bias(torch.randn(1, H, 1, D_HEAD), t, positions_from(301))
    found = [bucket_of_the_paper(j - 150, buckets, distance, causal) for j in range(301)]
    assert_close(bias[0, :, 0], part.table.weight[found].T)
    assert set(found) == set(range(buckets)) - (set() if causal else {buckets // 2})  # 0 is never "later"


def test_t5_refuses_buckets_it_cannot_share_out() -> None:
    for buckets, distance in [(2, 128), (7, 128), (32, 8)]:
        with pytest.raises(PartError, match="even number of buckets"):
            build("t5", buckets=buckets, distance=distance)


def test_alibi_has_the_slopes_of_the_paper() -> None:
    def slopes(heads: int) -> list[float]:
        bias = build("alibi", heads=heads).score_bias(
            torch.zeros(1, heads, 1, D_HEAD), positions_from(1, 1), positions_from(1)
        )
        return [-x for x in bias[0, :, 0, 0].tolist()]

    assert slopes(8) == [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]
    assert slopes(4) == [1 / 4, 1 / 16, 1 / 64, 1 / 256]
    assert slopes(6) == [*slopes(4), 1 / 2, 1 / 8]  # every other one of eight
    bias = build("alibi").score_bias(torch.zeros(1, H, 3, D_HEAD), positions_from(3), positions_from(3))
    assert_close(bias[0, 0] * -4, torch.tensor([[0.0, 1, 2], [1, 0, 1], [2, 1, 0]]))


@pytest.mark.parametrize("layout", ["interleaved", "halves"])
def test_rotary_is_a_rotation_of_complex_numbers_and_scores_see_only_the_distance(layout: str) -> None:
    base, half = 100.0, D_HEAD // 2
    part = build("rotary", base=base, layout=layout)
    q, k = torch.randn(1, H, 1, D_HEAD), torch.randn(1, H, 1, D_HEAD)
    turned = part.rotate(q, torch.tensor([[7]]))
    for h in range(H):
        for i in range(half):
            first, second = (2 * i, 2 * i + 1) if layout == "interleaved" else (i, half + i)
            z = complex(q[0, h, 0, first], q[0, h, 0, second]) * cmath.exp(1j * 7 / base ** (2 * i / D_HEAD))
            found = [turned[0, h, 0, first].item(), turned[0, h, 0, second].item()]
            assert found == pytest.approx([z.real, z.imag], abs=1e-5)

    def score(t: int, s: int) -> Tensor:
        return (part.rotate(q, torch.tensor([[t]])) * part.rotate(k, torch.tensor([[s]]))).sum(-1)

    assert_close(score(9, 4), score(1005, 1000), atol=1e-3, rtol=0)
    assert (score(9, 4) - score(9, 5)).abs().max() > 1e-2


# -- what all of them keep -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", positions.names)
def test_one_position_at_a_time_equals_all_at_once(name: str, causal: bool) -> None:
    part = build(name, causal, **({"values": True} if name == "shaw" else {}))
    T, t = 5, torch.stack([torch.arange(5), torch.arange(20, 25)])  # rows at different places
    x, q, a = torch.randn(B, T, D), torch.randn(B, H, T, D_HEAD), torch.rand(B, H, T, T)
    together = [part(x, t), part.rotate(q, t), part.score_bias(q, t, t), part.value_bias(a, t, t)]
    for i in range(T):
        one = slice(i, i + 1)
        alone = [
            part(x[:, one], t[:, one]),
            part.rotate(q[:, :, one], t[:, one]),
            part.score_bias(q[:, :, one], t[:, one], t),
            part.value_bias(a[:, :, one], t[:, one], t),
        ]
        for some, every in zip(alone, together, strict=True):
            assert (some is None) == (every is None)
            if every is not None and some is not None:
                assert_close(some, every.narrow(-2, i, 1))


@pytest.mark.parametrize("name", positions.names)
def test_every_scheme_distinguishes_positions_except_none(name: str) -> None:
    part, T = build(name), 2
    x, q = torch.ones(1, T, D), torch.ones(1, H, T, D_HEAD)
    said = [
        part(x, positions_from(T))[0],
        part.rotate(q, positions_from(T))[0, 0],
        part.score_bias(q, positions_from(T), positions_from(T)),
    ]
    said[2] = torch.zeros(T, T) if said[2] is None else said[2][0, 0]
    assert any(not torch.equal(first, second) for first, second in said) == (name != "none")


def test_schemes_say_where_they_cannot_work() -> None:
    for name in IN_ATTENTION:
        with pytest.raises(PartError, match=f"{name} positions need multi-head attention.*use sinusoidal or learned"):
            positions.build(Part(name), D, None)
    with pytest.raises(PartError, match="even width, not 5"):
        positions.build(Part("sinusoidal"), 5, None)
    with pytest.raises(PartError, match="even width, not 3"):
        positions.build(Part("rotary"), 6, HeadSpec(2, 3, causal=False))
