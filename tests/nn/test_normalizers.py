"""Normalizers against sums in plain loops, thresholds found by bisection, sampling statistics and worked numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close

from dragoman.core.registry import Part
from dragoman.nn.normalizers import normalizers
from dragoman.nn.scores import scores

B, T, S, D = 2, 3, 5, 4
RULES = ["softmax", "sparsemax", "entmax15"]


def normalizer_of(name: str, **options: Any) -> Any:
    normalizer: Any = normalizers.build(Part(name, options), D)
    for p in normalizer.parameters():
        nn.init.normal_(p)
    return normalizer.eval()


def normalized(name: str, e: Tensor, mask: Tensor | None = None) -> Tensor:
    return normalizer_of(name)(e, mask, torch.zeros(*e.shape[:-1], D, dtype=e.dtype))[0]  # type: ignore[no-any-return]


# -- each rule, worked out another way -------------------------------------------------------------------------------


def bisected(power: Callable[[float], float], e: list[float]) -> list[float]:
    """Weights power([e − τ]₊) for the threshold τ at which they sum to 1."""
    low, high = max(e) - 1, max(e)  # the best key alone weighs 1 at `low` and 0 at `high`
    for _ in range(60):
        tau = (low + high) / 2
        if sum(power(max(x - tau, 0.0)) for x in e) > 1:
            low = tau
        else:
            high = tau
    return [power(max(x - low, 0.0)) for x in e]


def worked_out(name: str, e: list[float]) -> list[float]:
    if name == "sparsemax":
        return bisected(lambda x: x, e)
    if name == "entmax15":
        return bisected(lambda x: x * x, [x / 2 for x in e])
    total = sum(math.exp(x) for x in e)
    return [math.exp(x) / total for x in e]


@pytest.mark.parametrize("name", RULES)
@given(row=st.lists(st.tuples(st.floats(-4, 4), st.booleans()), min_size=1, max_size=9))
def test_masked_keys_do_not_change_the_weights_of_the_others(name: str, row: list[tuple[float, bool]]) -> None:
    e, mask = torch.tensor([x for x, _ in row], dtype=torch.float64), torch.tensor([see for _, see in row])
    a = normalized(name, e[None], mask[None])[0]
    assert a[~mask].abs().sum() == 0
    if mask.any():
        expected = worked_out(name, e[mask].tolist())
        assert a[mask].tolist() == pytest.approx(expected, abs=1e-9)
        assert normalized(name, e[mask][None])[0].tolist() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("name", RULES)
def test_the_gradient_is_that_of_the_weights(name: str) -> None:
    e = torch.randn(B, T, S, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[[True] * S], [[True, False, True, True, False]]])
    assert torch.autograd.gradcheck(lambda x: normalized(name, x), e)
    assert torch.autograd.gradcheck(lambda x: normalized(name, x, mask), e)


def test_far_keys_get_exactly_nothing_from_sparsemax_and_entmax() -> None:
    e = torch.tensor([[1.0, 0.2, -3.0]])
    assert normalized("sparsemax", e)[0].tolist() == pytest.approx([0.9, 0.1, 0.0])
    assert normalized("entmax15", e)[0, 2] == 0
    assert normalized("entmax15", e)[0, 1] > normalized("sparsemax", e)[0, 1]
    assert (normalized("softmax", e) > 0).all()
    alone = torch.eye(1, 1000) * 9
    assert normalized("sparsemax", alone).equal(alone / 9)
    assert normalized("entmax15", alone).equal(alone / 9)


@pytest.mark.parametrize("name", RULES)
def test_scores_that_are_no_numbers_give_weights_that_are_none(name: str) -> None:
    e = torch.tensor([[0.0, math.nan, 1.0], [0.0, 0.0, 0.0]])
    a = normalized(name, e)
    assert a[0].isnan().any()
    assert a[1].tolist() == pytest.approx([1 / 3] * 3)


# -- what all of them promise ----------------------------------------------------------------------------------------

MASKS = {
    "causal": torch.ones(T, S, dtype=torch.bool).tril(),
    "strict": torch.ones(T, S, dtype=torch.bool).tril(-1),  # the first query sees nothing
    "padding": torch.tensor([[[True] * S], [[True, True, False, False, False]]]),
    "scattered": torch.arange(B * T * S).view(B, T, S) % 3 == 1,
}


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
@pytest.mark.parametrize("name", normalizers.names)
def test_masked_keys_have_weight_zero_and_the_weights_sum_to_one(name: str, training: bool, kind: str) -> None:
    e, mask = 5 * torch.randn(B, T, S), MASKS[kind].expand(B, T, S)
    a, _ = normalizer_of(name, **({"window": 1} if "local" in name else {})).train(training)(
        e, MASKS[kind], torch.randn(B, T, D)
    )
    assert (a >= 0).all()
    assert a[~mask].abs().sum() == 0
    if name == "local_p":
        assert (a.sum(-1) < 1 + 1e-5).all()
        assert (a.sum(-1) > 0).equal(mask.any(-1))
    else:
        assert_close(a.sum(-1), mask.any(-1).float())


@pytest.mark.parametrize("name", normalizers.names)
def test_a_query_that_may_see_nothing_gets_zeros_and_no_nan_even_backwards(name: str) -> None:
    options = {"entropy": 0.5} if name == "hard" else {}
    e = (0.1 * torch.randn(1, 2, S)).requires_grad_()  # close enough that no key takes all
    q = torch.randn(1, 2, D, requires_grad=True)
    mask = torch.tensor([[[False] * S, [True] * S]])
    a, extras = normalizer_of(name, **options).train()(e, mask, q)
    assert a[0, 0].tolist() == [0.0] * S
    assert all(extra[0, 0] == 0 for extra in extras.values())
    sum([(a * torch.randn(S)).sum(), *(extra.sum() for extra in extras.values())]).backward()  # type: ignore[union-attr]
    assert e.grad is not None
    assert torch.isfinite(e.grad).all()
    assert e.grad[0, 0].abs().sum() == 0
    assert e.grad[0, 1].abs().sum() > 0
    assert q.grad is None or (torch.isfinite(q.grad).all() and q.grad[0, 0].abs().sum() == 0)


@pytest.mark.parametrize("name", normalizers.names)
def test_only_differences_of_scores_matter(name: str) -> None:
    e = torch.randn(B, T, S, dtype=torch.float64)
    normalizer, q = normalizer_of(name).double(), torch.randn(B, T, D, dtype=torch.float64)
    assert_close(normalizer(e + 100 * torch.randn(B, T, 1), None, q)[0], normalizer(e, None, q)[0])


@pytest.mark.parametrize("name", normalizers.names)
def test_keys_are_a_set_unless_a_normalizer_says_that_their_order_matters(name: str) -> None:
    normalizer = normalizer_of(name, **({"window": 1} if "local" in name else {}))
    e, q, order = torch.randn(B, T, S), torch.randn(B, T, D), torch.arange(S).flip(0)
    same = torch.allclose(normalizer(e[..., order], None, q)[0], normalizer(e, None, q)[0][..., order])
    assert same is not normalizer.depends_on_positions


@pytest.mark.parametrize("name", normalizers.names)
def test_small_types_are_computed_wide_and_autocast_keeps_them_wide(name: str) -> None:
    normalizer, e, q = normalizer_of(name), torch.randn(B, T, S).bfloat16(), torch.zeros(B, T, D)
    truth, _ = normalizer(e.float(), None, q)
    with torch.autocast("cpu", torch.bfloat16):
        assert_close(normalizer(e, None, q)[0], truth)
    assert_close(normalizer.bfloat16()(e, None, q.bfloat16())[0], truth.bfloat16())


@pytest.mark.parametrize("name", normalizers.names)
def test_no_queries_get_no_weights_and_no_keys_give_none(name: str) -> None:
    normalizer = normalizer_of(name).train()
    for queries, keys in [(0, S)] if normalizer.is_stochastic else [(0, S), (0, 0), (T, 0)]:
        e, mask = torch.zeros(B, queries, keys), torch.ones(B, 1, keys, dtype=torch.bool)
        assert normalizer(e, mask, torch.zeros(B, queries, D))[0].shape == e.shape


# -- one key ---------------------------------------------------------------------------------------------------------


def test_hard_attention_draws_keys_as_often_as_softmax_says() -> None:
    n, e, mask = 20_000, torch.tensor([1.0, 3.0, 0.0, 0.3]), torch.tensor([True, False, True, True])
    a, extras = normalizer_of("hard", reward=2.0, entropy=0.5).train()(e.expand(n, 1, 4), mask, torch.zeros(n, 1, D))
    assert set(a.unique().tolist()) == {0.0, 1.0}
    p = [math.exp(x) * see for x, see in zip(e.tolist(), mask.tolist(), strict=True)]
    p = [x / sum(p) for x in p]
    counts = a.sum((0, 1)).tolist()
    assert counts[1] == 0
    assert sum((c - n * x) ** 2 / (n * x) for c, x in zip(counts, p, strict=True) if x) < 30  # χ² of 2 degrees: 3e-7
    assert_close(extras["choice"], 2 * (a @ torch.tensor([math.log(x) if x else 0.0 for x in p])))
    entropy = -sum(x * math.log(x) for x in p if x)
    assert_close(extras["penalty"], torch.full((n, 1), -0.5 * entropy))


def test_choice_times_advantage_has_the_gradient_of_the_expected_loss() -> None:
    n, e, loss, baseline = 40_000, torch.tensor([0.4, -0.2], requires_grad=True), torch.tensor([1.0, 3.0]), 2.0
    (truth,) = torch.autograd.grad((e.softmax(-1) * loss).sum(), e)
    a, extras = normalizer_of("hard").train()(e.expand(n, 1, 2), None, torch.zeros(n, 1, D))
    (estimate,) = torch.autograd.grad(((a @ loss - baseline) * extras["choice"]).mean(), e)
    assert_close(estimate, truth, atol=6 / math.sqrt(n), rtol=0)  # no single term exceeds 1
    assert truth.abs().min() > 10 / math.sqrt(n)


def test_a_share_of_hard_attention_is_soft_and_has_no_choice() -> None:
    torch.manual_seed(0)
    e, n = torch.tensor([0.0, 1.0, -0.5]), 20_000
    a, extras = normalizer_of("hard", soft=0.3).train()(e.expand(n, 1, 3), None, torch.zeros(n, 1, D))
    softly = (a < 1).all(-1)[:, 0]
    assert softly.float().mean().item() == pytest.approx(0.3, abs=0.015)
    torch.testing.assert_close(a[softly], e.softmax(-1).expand(int(softly.sum()), 1, 3))
    assert (extras["choice"][softly] == 0).all()
    assert (extras["choice"][~softly] < 0).all()


def test_the_gradient_of_mixed_soft_and_hard_attention_is_that_of_their_mean() -> None:
    """L(a) = (v·a)²: its mean over both ways of looking, draws enumerated, against the estimator over many draws."""
    torch.manual_seed(0)
    e = torch.tensor([0.2, -0.7, 1.1], dtype=torch.float64, requires_grad=True)
    v, share, n = torch.tensor([1.0, 3.0, -2.0], dtype=torch.float64), 0.4, 400_000
    p = e.softmax(-1)
    truth = share * (v @ p) ** 2 + (1 - share) * (p * v**2).sum()
    [wanted] = torch.autograd.grad(truth, e)
    a, extras = normalizer_of("hard", soft=share).train()(e.expand(n, 1, 3), None, torch.zeros(n, 1, D))
    loss = (a.double() @ v)[:, 0] ** 2
    estimate = (loss + loss.detach() * extras["choice"][:, 0]).mean()
    [found] = torch.autograd.grad(estimate, e)
    torch.testing.assert_close(found, wanted, atol=0.05, rtol=0.0)


def test_hard_attention_takes_the_best_key_it_may_see_in_evaluation() -> None:
    e, mask = torch.tensor([[0.1, 2.0, 0.3, 9.0]]), torch.tensor([[True, True, True, False]])
    a, extras = normalizer_of("hard")(e, mask, torch.zeros(1, D))
    assert a.tolist() == [[0.0, 1.0, 0.0, 0.0]]
    assert extras == {}


def test_without_sampling_or_entropy_there_are_no_extras() -> None:
    for name in normalizers.names:
        _, extras = normalizer_of(name).train()(torch.randn(B, T, S), None, torch.randn(B, T, D))
        assert set(extras) == ({"choice"} if normalizers[name].is_stochastic else set())  # type: ignore[attr-defined]


# -- near keys -------------------------------------------------------------------------------------------------------


def windowed(e: list[float], length: int, p: float, window: int) -> list[float]:
    """softmax over those of the first `length` keys within the window, or around the last of them if there are none."""
    inside = [s for s in range(length) if abs(s - p) <= window]
    inside = inside or [s for s in range(length) if abs(s - (length - 1)) <= window]
    total = sum(math.exp(e[s]) for s in inside)
    return [math.exp(x) / total if s in inside else 0.0 for s, x in enumerate(e)]


def padding(lengths: Tensor, size: int) -> Tensor:
    return (torch.arange(size) < lengths[:, None])[:, None]  # (B, 1, S)


@pytest.mark.parametrize("window", [1, 3, 10])
def test_local_m_is_softmax_around_the_position_of_the_query(window: int) -> None:
    queries, size, lengths = 9, 7, torch.tensor([7, 3])
    e, q, t = torch.randn(2, queries, size), torch.zeros(2, queries, D), torch.arange(queries)[None]
    local_m = normalizer_of("local_m", window=window)
    expected = [[windowed(e[b, i].tolist(), int(lengths[b]), i, window) for i in range(queries)] for b in range(2)]
    a, _ = local_m(e, padding(lengths, size), q, t, lengths[:, None])
    assert_close(a, torch.tensor(expected))
    assert_close(local_m(e, padding(lengths, size), q)[0], a)  # t and lengths are found in e and the mask
    assert_close(local_m(e, None, q, None, lengths[:, None])[0], a)
    assert_close(local_m(e[:, 5:6], padding(lengths, size), q[:, 5:6], torch.tensor([[5]]))[0], a[:, 5:6])  # one step


@pytest.mark.parametrize("window", [1, 3])
def test_local_p_is_softmax_around_a_predicted_position_times_a_gaussian(window: int) -> None:
    size, lengths = 7, torch.tensor([7, 3])
    local_p, e, q = normalizer_of("local_p", window=window), torch.randn(2, T, size), torch.randn(2, T, D)
    expected = torch.zeros(2, T, size)
    for b in range(2):
        for i in range(T):
            hidden = [
                math.tanh(sum(w * x for w, x in zip(row, q[b, i].tolist(), strict=True)))
                for row in local_p.W.weight.tolist()
            ]
            share = 1 / (1 + math.exp(-sum(v * x for v, x in zip(local_p.v.weight[0].tolist(), hidden, strict=True))))
            p, sigma = int(lengths[b]) * share, window / 2
            a = windowed(e[b, i].tolist(), int(lengths[b]), p, window)
            for s in range(size):
                expected[b, i, s] = a[s] * math.exp(-((s - p) ** 2) / (2 * sigma**2))
    found, _ = local_p(e, padding(lengths, size), q, None, lengths[:, None])
    assert_close(found, expected, atol=1e-5, rtol=1e-4)
    assert_close(local_p(e, padding(lengths, size), q)[0], found)
    assert_close(local_p(e, None, q, None, lengths[:, None])[0], found)
    found.square().sum().backward()
    assert all(w.grad.abs().sum() > 0 for w in local_p.parameters())


def test_local_attention_never_sees_the_future_through_a_causal_mask() -> None:
    e, q, causal = torch.randn(B, S, S), torch.randn(B, S, D), torch.ones(S, S, dtype=torch.bool).tril()
    for name in ("local_m", "local_p"):
        a, _ = normalizer_of(name, window=1)(e, causal, q, None, torch.full((B, 1), S))
        assert a.triu(1).abs().sum() == 0
        assert (a.sum(-1) > 0).all()


# -- SPEC C6: the worked numbers -------------------------------------------------------------------------------------


def test_the_worked_numbers_of_a_softmax() -> None:
    a = normalized("softmax", torch.tensor([[0.606, 0.2, -0.8]]))[0]
    assert a.tolist() == pytest.approx([0.523, 0.349, 0.128], abs=5e-4)
    assert (a[0] * torch.tensor([0.5, 0.1, 0.9])).tolist() == pytest.approx([0.262, 0.052, 0.471], abs=6e-4)


def test_the_worked_numbers_of_two_scores() -> None:
    a, v = normalized("softmax", torch.tensor([[14.0, 12.0]])), torch.randn(2, 5)
    assert a[0].tolist() == pytest.approx([0.8808, 0.1192], abs=5e-5)
    assert_close((a @ v)[0], 0.8808 * v[0] + 0.1192 * v[1], atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("name", [*RULES, "hard"])
def test_a_sharp_query_returns_the_value_of_its_key(name: str) -> None:
    keys = torch.eye(4)[[0, 1, 2, 2, 3]]  # subject, verb, filler, filler, location
    values = torch.randn(5, 3)  # she, to-go, –, –, beach
    e = scores.build(Part("dot"), 4, 4)(50 * keys[-1:], keys)
    assert_close((normalized(name, e) @ values)[0], values[-1])
