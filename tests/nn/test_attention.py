"""Scores, masks and heads against plain loops, torch's own modules and the worked numbers of the lectures."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from dragoman.core.errors import PartError
from dragoman.core.registry import Part
from dragoman.nn.attention import Attention, MultiHead, normalizers, noted, scores, watched, watching

B, T, S = 2, 3, 4
Rows = list[list[float]]


def score_of(name: str, d_q: int, d_k: int, **options: Any) -> Any:
    return scores.build(Part(name, options), d_q, d_k)


def scored(score: Any, q: Tensor, k: Tensor) -> Tensor:
    return score(q, score.prepare(k))[0]  # type: ignore[no-any-return]


def times(W: Rows, x: list[float]) -> list[float]:
    return [sum(w * a for w, a in zip(row, x, strict=True)) for row in W]


def dot(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def in_loops(name: str, score: Any, q: list[float], k: list[float]) -> float:
    """The equation of each score, for one query and one key, in plain Python."""
    if name == "dot":
        return dot(q, k)
    if name == "scaled_dot":
        return dot(q, k) / math.sqrt(len(q))
    if name == "general":
        return dot(q, times(score.W.weight.tolist(), k))
    left, right = times(score.W1.weight.tolist(), q), times(score.W2.weight.tolist(), k)
    sums = [a + b + c for a, b, c in zip(left, right, score.W2.bias.tolist(), strict=True)]
    return dot(score.v.weight[0].tolist(), [math.tanh(s) for s in sums])


@pytest.mark.parametrize(
    ("name", "d_q", "d_k", "options"),
    [
        ("dot", 5, 5, {}),
        ("scaled_dot", 5, 5, {}),
        ("general", 5, 3, {}),
        ("additive", 5, 3, {}),
        ("additive", 3, 5, {"width": 7}),
    ],
)
def test_a_score_is_its_equation(name: str, d_q: int, d_k: int, options: dict[str, Any]) -> None:
    score, q, k = score_of(name, d_q, d_k, **options), torch.randn(B, T, d_q), torch.randn(B, S, d_k)
    for p in score.parameters():
        nn.init.normal_(p)
    expected = [
        [[in_loops(name, score, q[b, i].tolist(), k[b, j].tolist()) for j in range(S)] for i in range(T)]
        for b in range(B)
    ]
    assert_close(scored(score, q, k), torch.tensor(expected), atol=1e-5, rtol=1e-5)


def test_every_score_has_been_written_out_above() -> None:
    assert set(scores.names) == {"dot", "scaled_dot", "general", "additive"}


@pytest.mark.parametrize("name", scores.names)
def test_heads_are_just_more_leading_dimensions(name: str) -> None:
    score, q, k = score_of(name, 4, 4), torch.randn(B, 2, T, 4), torch.randn(B, 2, S, 4)
    for h in range(2):
        assert_close(scored(score, q, k)[:, h], scored(score, q[:, h], k[:, h]))


def test_general_with_the_identity_is_dot() -> None:
    q, k, general = torch.randn(B, T, 5), torch.randn(B, S, 5), score_of("general", 5, 5)
    nn.init.eye_(general.W.weight)
    assert_close(scored(general, q, k), scored(score_of("dot", 5, 5), q, k))


def test_scaled_is_dot_by_the_root_of_the_width() -> None:
    q, k = torch.randn(B, T, 9), torch.randn(B, S, 9)
    assert_close(scored(score_of("scaled_dot", 9, 9), q, k), scored(score_of("dot", 9, 9), q, k) / 3)


def test_the_variance_of_dot_is_the_width_and_of_scaled_dot_is_one() -> None:
    q, k = torch.randn(20_000, 1, 16), torch.randn(20_000, 1, 16)
    assert scored(score_of("dot", 16, 16), q, k).var().item() == pytest.approx(16, rel=0.1)
    assert scored(score_of("scaled_dot", 16, 16), q, k).var().item() == pytest.approx(1, rel=0.1)


@pytest.mark.parametrize("name", ["dot", "scaled_dot"])
def test_dot_refuses_two_widths(name: str) -> None:
    with pytest.raises(PartError, match="one width, not 3 and 4"):
        score_of(name, 3, 4)


# -- normalizers and masks -----------------------------------------------------------------------------------------


def normalized(e: Tensor, mask: Tensor | None, name: str = "softmax") -> Tensor:
    return normalizers.build(Part(name))(e, mask, e)[0]


@pytest.mark.parametrize("name", normalizers.names)
def test_weights_sum_to_one_over_the_keys_a_query_may_see(name: str) -> None:
    e, mask = 5 * torch.randn(B, T, S), torch.rand(B, T, S) > 0.5
    mask[..., 0] = True
    a = normalized(e, mask, name)
    assert_close(a.sum(-1), torch.ones(B, T))
    assert (a >= 0).all()
    assert a[~mask].abs().sum() == 0
    assert_close(normalized(e, None, name).sum(-1), torch.ones(B, T))


def test_softmax_over_the_seen_keys_is_softmax_without_the_others() -> None:
    e, mask = 5 * torch.randn(B, T, S), torch.rand(B, T, S) > 0.4
    mask[..., 1] = True
    a = normalized(e, mask)
    for b in range(B):
        for t in range(T):
            seen = [j for j in range(S) if mask[b, t, j]]
            total = sum(math.exp(e[b, t, j].item()) for j in seen)
            for j in seen:
                assert a[b, t, j].item() == pytest.approx(math.exp(e[b, t, j].item()) / total, abs=1e-5)


@pytest.mark.parametrize("name", normalizers.names)
def test_a_query_that_may_see_nothing_gets_zeros_and_no_nan_even_backwards(name: str) -> None:
    e = torch.randn(1, 2, S, requires_grad=True)
    mask = torch.tensor([[[False] * S, [True] * S]])
    a = normalized(e, mask, name)
    assert a[0, 0].tolist() == [0.0] * S
    (a * torch.randn(S)).sum().backward()
    assert e.grad is not None
    assert torch.isfinite(e.grad).all()
    assert e.grad[0, 0].abs().sum() == 0
    assert e.grad[0, 1].abs().sum() > 0


@pytest.mark.parametrize("look", [False, True], ids=["fused", "watched"])
def test_a_head_that_may_see_nothing_gives_zeros_and_no_nan_even_backwards(look: bool) -> None:
    heads, x, h = multi_head(), torch.randn(1, 2, 8), torch.randn(1, S, 8, requires_grad=True)
    mask = torch.ones(1, 1, 2, S, dtype=torch.bool)
    mask[..., 0, :] = False
    q, (k, v) = heads.queries(x), heads.keys_values(h)
    if look:
        with watching():
            out = heads.attend(q, k, v, mask)
    else:
        out = heads.attend(q, k, v, mask)
    assert out[:, :, 0].abs().sum() == 0
    out.sin().sum().backward()
    assert h.grad is not None
    assert torch.isfinite(h.grad).all()
    assert h.grad.abs().sum() > 0


# -- SPEC C6: the worked numbers -----------------------------------------------------------------------------------


def test_the_worked_numbers_of_a_dot_product() -> None:
    q, k = torch.tensor([[[0.6, 0.3, 0.8]]]), torch.tensor([[[0.5, 0.1, 0.9]]])
    assert scored(score_of("dot", 3, 3), q, k).item() == pytest.approx(1.05, abs=1e-6)
    assert scored(score_of("scaled_dot", 3, 3), q, k).item() == pytest.approx(0.606, abs=5e-4)
    a = normalized(torch.tensor([[[0.606, 0.2, -0.8]]]), None)[0, 0]
    assert a.tolist() == pytest.approx([0.523, 0.349, 0.128], abs=5e-4)
    assert (0.523 * k[0, 0]).tolist() == pytest.approx([0.262, 0.052, 0.471], abs=6e-4)


def test_the_worked_numbers_of_two_scores() -> None:
    q = torch.zeros(1, 1, 64)
    q[..., 0] = 1.0
    k, v = torch.zeros(1, 2, 64), torch.randn(1, 2, 5)
    k[0, :, 0] = torch.tensor([112.0, 96.0])
    score = score_of("scaled_dot", 64, 64)
    assert scored(score, q, k)[0, 0].tolist() == pytest.approx([14, 12])
    z, a = Attention(64, 64, Part("scaled_dot"), Part("softmax"))(q, k, v, torch.ones(1, 1, 2, dtype=torch.bool))
    assert a[0, 0].tolist() == pytest.approx([0.8808, 0.1192], abs=5e-5)
    assert_close(z[0, 0], 0.8808 * v[0, 0] + 0.1192 * v[0, 1], atol=1e-3, rtol=1e-3)


def test_a_sharp_query_returns_the_value_of_its_key() -> None:
    keys = torch.eye(4)[[0, 1, 2, 2, 3]][None]  # subject, verb, filler, filler, location
    values = torch.randn(1, 5, 3)  # she, to-go, –, –, beach
    c, _ = Attention(4, 4, Part("dot"), Part("softmax"))(50 * keys[:, -1:], keys, values, torch.ones(1, 1, 5).bool())
    assert_close(c[0, 0], values[0, -1])


def test_without_parameters_orthogonal_words_cannot_be_favored_but_with_them_they_can() -> None:
    words = torch.eye(3)[None]  # bank, river, the
    bank = words[:, :1]
    plain = normalized(scored(score_of("dot", 3, 3), bank, words), None)[0, 0]
    assert plain[1] == plain[2]
    general = score_of("general", 3, 3)
    with torch.no_grad():
        general.W.weight.zero_()[0, 1] = 5.0
    learned = normalized(scored(general, bank, words), None)[0, 0]
    assert learned.argmax() == 1


def test_attention_is_a_weighted_mean_of_its_values() -> None:
    attention = Attention(5, 3, Part("additive"), Part("softmax"))
    q, h, mask = torch.randn(B, T, 5), torch.randn(B, S, 3), torch.ones(B, 1, S, dtype=torch.bool)
    mask[1, 0, 2:] = False
    c, a = attention(q, attention.prepare(h), h, mask)
    for b in range(B):
        for t in range(T):
            e = [in_loops("additive", attention.score, q[b, t].tolist(), h[b, j].tolist()) for j in range(S)]
            weights = [math.exp(x) * mask[b, 0, j].item() for j, x in enumerate(e)]
            weights = [w / sum(weights) for w in weights]
            assert a[b, t].tolist() == pytest.approx(weights, abs=1e-5)
            assert_close(c[b, t], sum(w * h[b, j] for j, w in enumerate(weights)), atol=1e-5, rtol=1e-5)


# -- heads ---------------------------------------------------------------------------------------------------------


def multi_head(d: int = 8, d_memory: int = 8, heads: int = 2, score: str = "scaled_dot") -> MultiHead:
    module = MultiHead(d, d_memory, heads, Part(score), Part("softmax"), 0.0)
    for p in module.parameters():
        nn.init.normal_(p, std=0.5)
    return module.eval()


@pytest.mark.parametrize("d_memory", [8, 6])
@pytest.mark.parametrize("look", [False, True], ids=["fused", "watched"])
def test_multi_head_is_torch_s_multi_head(d_memory: int, look: bool) -> None:
    ours = multi_head(8, d_memory)
    theirs = nn.MultiheadAttention(8, 2, kdim=d_memory, vdim=d_memory, batch_first=True).eval()
    with torch.no_grad():
        if d_memory == 8:
            theirs.in_proj_weight.copy_(torch.cat([ours.Wq.weight, ours.Wk.weight, ours.Wv.weight]))
        else:
            theirs.q_proj_weight.copy_(ours.Wq.weight)
            theirs.k_proj_weight.copy_(ours.Wk.weight)
            theirs.v_proj_weight.copy_(ours.Wv.weight)
        theirs.in_proj_bias.copy_(torch.cat([ours.Wq.bias, ours.Wk.bias, ours.Wv.bias]))
        theirs.out_proj.weight.copy_(ours.Wo.weight)
        theirs.out_proj.bias.copy_(ours.Wo.bias)
    x, h, real = (
        torch.randn(B, T, 8),
        torch.randn(B, S, d_memory),
        torch.tensor([[True] * S, [True, True, False, False]]),
    )
    expected, weights = theirs(x, h, h, key_padding_mask=~real, average_attn_weights=False)
    k, v = ours.keys_values(h)
    if look:
        with watching() as seen:
            found = ours(x, k, v, real[:, None, None])
        assert_close(seen[ours][0], weights, atol=1e-5, rtol=1e-5)
    else:
        found = ours(x, k, v, real[:, None, None])
    assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
def test_the_fused_kernel_equals_the_watched_path_forwards_and_backwards(causal: bool) -> None:
    heads, x = multi_head(), torch.randn(B, T, 8, requires_grad=True)
    mask = None if causal else torch.tensor([[True] * T, [True, False, False]])[:, None, None]

    def run() -> tuple[Tensor, Tensor]:
        out = heads(x, *heads.keys_values(x), mask, causal)
        return out, torch.autograd.grad(out.sin().sum(), x)[0]

    fused = run()
    with watching() as seen:
        slow = run()
    assert len(seen[heads]) == 1
    for a, b in zip(fused, slow, strict=True):
        assert_close(a, b, atol=1e-5, rtol=1e-5)
    if causal:
        assert seen[heads][0].triu(1).abs().sum() == 0


@pytest.mark.parametrize("name", scores.names)
def test_any_score_runs_under_heads(name: str) -> None:
    heads, x, h = multi_head(8, 6, 4, name), torch.randn(B, T, 8), torch.randn(B, S, 6)
    k, v = heads.keys_values(h)
    q = heads.queries(x)
    found = heads(x, k, v, None)
    each = []
    raw = heads.Wk(h).unflatten(-1, (4, 2))
    for i in range(4):
        e = scored(heads.score, q[:, i], raw[:, :, i])
        each.append(e.softmax(-1) @ heads.Wv(h)[..., 2 * i : 2 * i + 2])
    assert_close(found, heads.Wo(torch.cat(each, -1)), atol=1e-5, rtol=1e-5)


def test_a_width_that_heads_cannot_share_is_refused() -> None:
    with pytest.raises(PartError, match="width 8 cannot be shared evenly by 3 heads"):
        multi_head(8, 8, 3)


def test_attention_dropout_works_in_training_only() -> None:
    heads, x = MultiHead(8, 8, 2, Part("scaled_dot"), Part("softmax"), 0.5), torch.randn(1, 20, 8)
    k, v = heads.keys_values(x)
    for look in (False, True):
        with watching() if look else torch.no_grad():
            assert not torch.equal(heads.train()(x, k, v, None), heads(x, k, v, None))
            assert torch.equal(heads.eval()(x, k, v, None), heads(x, k, v, None))


# -- watching ------------------------------------------------------------------------------------------------------


def test_watching_notes_the_weights_of_every_call_and_ends() -> None:
    heads, x = multi_head(), torch.randn(B, T, 8)
    k, v = heads.keys_values(x)
    assert not watched()
    with watching() as seen:
        assert watched()
        assert noted(heads) is None
        heads(x, k, v, None)
        heads(x[:, :1], k, v, None)
        assert [a.shape for a in seen[heads]] == [(B, 2, T, T), (B, 2, 1, T)]
        assert noted(heads) is seen[heads][-1]
        assert not seen[heads][0].requires_grad
    assert not watched()
    assert noted(heads) is None
    heads(x, k, v, None)
    assert len(seen[heads]) == 2


def test_watching_ends_when_something_fails_inside() -> None:
    with pytest.raises(ZeroDivisionError), watching():
        _ = 1 / 0
    assert not watched()
