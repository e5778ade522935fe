"""Attention and heads against plain loops, torch's own module and the worked numbers of the lectures.

The loops know nothing of tensors: one query, one key, one number at a time, in double precision.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from dragoman.core.errors import PartError
from dragoman.core.registry import Part
from dragoman.core.types import Memory
from dragoman.nn.attention import (
    Attention,
    AttentionMask,
    MultiHeadAttention,
    MultiHeadConfig,
    is_recording,
    record_attention,
    recorded_weights,
)
from dragoman.nn.normalizers import normalizers
from dragoman.nn.positions import HeadSpec, positions
from dragoman.nn.scores import ScaledDotScore, scores

B, T, S, H, D = 2, 3, 4, 2, 8
SOFTMAX, SCALED_DOT = Part("softmax"), Part("scaled_dot")
BOTH_PATHS = pytest.mark.parametrize("look", [False, True], ids=["fused", "watched"])

Vector = list[float]


def path(look: bool) -> Any:
    return record_attention() if look else nullcontext()


def close(a: Tensor, b: Tensor) -> None:
    assert_close(a, b, atol=1e-5, rtol=1e-5)


# -- in plain loops --------------------------------------------------------------------------------------------------


def times(W: list[Vector], x: Vector) -> Vector:
    return [dot(row, x) for row in W]


def plus(*vectors: Vector) -> Vector:
    return [sum(xs) for xs in zip(*vectors, strict=True)]


def dot(a: Vector, b: Vector) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def scored(name: str, score: Any, q: Vector, k: Vector) -> float:
    """The equation of each score, for one query and one key."""
    if name == "dot":
        return dot(q, k)
    if name == "scaled_dot":
        return dot(q, k) / math.sqrt(len(q))
    if name == "general":
        return dot(q, times(score.W.weight.tolist(), k))
    if name == "concat":
        inner = plus(times(score.W.weight.tolist(), q + k), score.W.bias.tolist())
    else:
        inner = plus(times(score.W1.weight.tolist(), q), times(score.W2.weight.tolist(), k), score.W2.bias.tolist())
    return dot(score.v.weight[0].tolist(), [math.tanh(x) for x in inner])


def exponentials(e: Vector, seen: list[bool]) -> Vector:
    powers = [math.exp(x) if see else 0.0 for x, see in zip(e, seen, strict=True)]
    return [x / sum(powers) for x in powers] if any(seen) else powers


def threshold(e: Vector, seen: list[bool], rule: Callable[[float], float]) -> Vector:
    """rule(e_j − τ) for the keys seen, with the τ, found by halving, for which they sum to 1."""
    low, high = min(e) - 2, max(e)
    for _ in range(100):
        tau = (low + high) / 2
        a = [rule(max(x - tau, 0.0)) if see else 0.0 for x, see in zip(e, seen, strict=True)]
        low, high = (tau, high) if sum(a) > 1 else (low, tau)
    return a


def around(p: float, seen: list[bool], window: int) -> list[bool]:
    near = [see and abs(s - p) <= window for s, see in enumerate(seen)]
    last = max((s for s, see in enumerate(seen) if see), default=0)
    return near if any(near) else [see and abs(s - last) <= window for s, see in enumerate(seen)]


def normalized(name: str, normalizer: Any, e: Vector, seen: list[bool], q: Vector, t: int) -> Vector:
    """The equation of each normalizer, for one query at place t that may look at `seen`; all keys are real."""
    if name == "softmax":
        return exponentials(e, seen)
    if name == "sparsemax":
        return threshold(e, seen, lambda x: x)
    if name == "entmax15":
        return threshold([x / 2 for x in e], seen, lambda x: x * x)
    window = normalizer.window
    if name == "local_m":
        return exponentials(e, around(t, seen, window))
    inner = [math.tanh(x) for x in times(normalizer.W.weight.tolist(), q)]
    p = len(e) / (1 + math.exp(-dot(normalizer.v.weight[0].tolist(), inner)))
    weights = exponentials(e, around(p, seen, window))
    return [a * math.exp(-((s - p) ** 2) / (2 * (window / 2) ** 2)) for s, a in enumerate(weights)]


def in_loops(
    heads: MultiHeadAttention,
    names: tuple[str, str],
    x: Tensor,
    h: Tensor,
    attention_mask: AttentionMask,
    bias: Tensor | None = None,
) -> Tensor:
    """W_O [head_1; …; head_H] of queries x (B, T, D) and keys h (B, S, D), place by place."""
    shape = (len(x), heads.heads, x.shape[1], h.shape[1])
    seen = (
        torch.ones(shape, dtype=torch.bool) if attention_mask.allowed is None else attention_mask.allowed.expand(shape)
    )
    if attention_mask.causal:
        seen = seen & torch.ones(shape[2:], dtype=torch.bool).tril()
    added = torch.zeros(shape) if bias is None else bias.expand(shape)
    rows = []
    for b, t in ((b, t) for b in range(len(x)) for t in range(x.shape[1])):
        joined: Vector = []
        for i in range(heads.heads):
            group = i // (heads.heads // heads.key_heads)
            q = part_of(heads.Wq(x[b, t]), i, heads.heads)
            k = [part_of(heads.Wk(h_j), group, heads.key_heads) for h_j in h[b]]
            v = [part_of(heads.Wv(h_j), group, heads.key_heads) for h_j in h[b]]
            e = plus([scored(names[0], heads.score, q, k_j) for k_j in k], added[b, i, t].tolist())
            place = int(attention_mask.t.expand(len(x), -1)[b, t])
            a = normalized(names[1], heads.normalizer, e, seen[b, i, t].tolist(), q, place)
            joined += [dot(a, list(column)) for column in zip(*v, strict=True)]
        rows.append(heads.Wo(torch.tensor(joined, dtype=x.dtype)))
    return torch.stack(rows).view(len(x), x.shape[1], -1)


def part_of(x: Tensor, i: int, parts: int) -> Vector:
    return x.view(parts, -1)[i].tolist()  # type: ignore[no-any-return]


# -- one head --------------------------------------------------------------------------------------------------------


def test_attention_is_a_weighted_mean_of_its_values_whatever_they_are() -> None:
    attention = Attention(5, 3, Part("additive"), SOFTMAX)
    q, h, v, mask = torch.randn(B, T, 5), torch.randn(B, S, 3), torch.randn(B, S, 2), torch.ones(B, 1, S).bool()
    mask[1, 0, 2:] = False
    memory = Memory(h, mask.sum(-1)[:, 0], h[:, 0], values=v)
    look = attention(q, attention.prepare_source(memory))
    assert look.past_weights is None
    assert look.extras == {}
    for b in range(B):
        for t in range(T):
            e = [scored("additive", attention.score, q[b, t].tolist(), h[b, j].tolist()) for j in range(S)]
            weights = exponentials(e, mask[b, 0].tolist())
            assert look.a[b, t].tolist() == pytest.approx(weights, abs=1e-5)
            close(look.c[b, t], sum(w * v[b, j] for j, w in enumerate(weights)))  # type: ignore[arg-type]


def test_past_weights_are_kept_and_repeated_attention_is_penalized() -> None:
    attention = Attention(5, 3, Part("coverage", {"penalty": 2.0}), Part("hard", {"entropy": 0.5})).train()
    assert attention.score.uses_past_weights
    h = torch.randn(B, S, 3)
    past_weights, source = torch.zeros(B, 1, S), attention.prepare_source(Memory(h, torch.full((B,), S), h[:, 0]))
    for _ in range(3):
        q = torch.randn(B, 1, 5)
        look = attention(q, source, None, past_weights)
        p = attention.score(q, source.keys[:, 0], past_weights).softmax(-1)
        again = [sum(min(a, seen) for a, seen in zip(look.a[b, 0], past_weights[b, 0], strict=True)) for b in range(B)]
        close(look.extras["penalty"][:, 0], 2.0 * torch.stack(again) + 0.5 * (p * p.log()).sum(-1)[:, 0])  # type: ignore[arg-type]
        assert_close(look.past_weights, past_weights + look.a)
        past_weights = look.past_weights


def test_pooling_gives_one_vector_for_a_set_of_any_size() -> None:
    attention, q = Attention(D, D, Part("dot"), SOFTMAX), torch.randn(1, 1, D)
    for size in (1, 2, 9):
        h = torch.randn(1, size, D)
        c = attention(q, attention.prepare_source(Memory(h, torch.tensor([size]), h[:, 0]))).c
        a = exponentials([dot(q[0, 0].tolist(), h_j.tolist()) for h_j in h[0]], [True] * size)
        close(c[0, 0], torch.tensor(a) @ h[0])


# -- heads -----------------------------------------------------------------------------------------------------------


def heads_of(
    d: int = D, d_memory: int = D, heads: int = H, score: Part = SCALED_DOT, normalizer: Part = SOFTMAX, **options: Any
) -> MultiHeadAttention:
    module = MultiHeadAttention(d, d_memory, MultiHeadConfig(heads, score, normalizer, **options))
    for p in module.parameters():
        nn.init.normal_(p, std=0.5)
    return module.eval()


def anywhere(size: int = T, mask: Tensor | None = None, causal: bool = False) -> AttentionMask:
    return AttentionMask(torch.arange(size)[None], mask, causal)


@pytest.mark.parametrize("d_memory", [8, 6])
@BOTH_PATHS
def test_multi_head_is_torch_s_multi_head(d_memory: int, look: bool) -> None:
    ours = heads_of(8, d_memory)
    theirs = nn.MultiheadAttention(8, 2, kdim=d_memory, vdim=d_memory, batch_first=True).eval()
    with torch.no_grad():
        if d_memory == 8:
            theirs.in_proj_weight.copy_(torch.cat([ours.Wq.weight, ours.Wk.weight, ours.Wv.weight]))
        else:
            theirs.q_proj_weight.copy_(ours.Wq.weight)
            theirs.k_proj_weight.copy_(ours.Wk.weight)
            theirs.v_proj_weight.copy_(ours.Wv.weight)
        theirs.in_proj_bias.copy_(torch.cat([ours.Wq.bias, ours.Wk.bias, ours.Wv.bias]))
        theirs.out_proj.load_state_dict(ours.Wo.state_dict())
    x, h = torch.randn(B, T, 8), torch.randn(B, S, d_memory)
    real = torch.tensor([[True] * S, [True, True, False, False]])
    expected, weights = theirs(x, h, h, key_padding_mask=~real, average_attn_weights=False)
    with path(look):
        found = ours(x, *ours.project_keys_values(h), anywhere(mask=real[:, None, None]))
        if look:
            close(recorded_weights(ours, 1)[0], weights)
    close(found, expected)


@torch.no_grad()
@pytest.mark.parametrize("normalizer", [name for name in normalizers.names if name != "hard"])
@pytest.mark.parametrize("score", ["dot", "scaled_dot", "general", "concat", "additive"])
def test_every_score_with_every_normalizer_is_its_equation_in_every_head(score: str, normalizer: str) -> None:
    options = {"window": 1} if normalizer.startswith("local") else {}
    heads = heads_of(4, 6, 2, Part(score), Part(normalizer, options)).double()
    x, h, t = torch.randn(B, 2, 4).double(), torch.randn(B, S, 6).double(), torch.tensor([[0, 2], [3, 7]])
    mask = torch.rand(B, 1, 2, S) < 0.7
    mask[..., 1] = True
    attention_mask = AttentionMask(t, mask, lengths=torch.full((B, 1, 1), S))
    expected = in_loops(heads, (score, normalizer), x, h, attention_mask)
    for look in (False, True):
        with path(look):
            close(heads(x, *heads.project_keys_values(h), attention_mask), expected)


def test_every_score_that_heads_take_has_been_written_out_above() -> None:
    taken = [name for name in scores.names if not scores[name].uses_past_weights]  # type: ignore[attr-defined]
    assert taken == ["additive", "concat", "dot", "general", "scaled_dot"]


@torch.no_grad()
@pytest.mark.parametrize("score", ["scaled_dot", "additive"])
@pytest.mark.parametrize("key_heads", [None, 2, 1])
@pytest.mark.parametrize(("key_width", "value_width"), [(None, None), (3, 5), (1, 2)])
def test_heads_of_any_width_may_share_keys_and_values(
    score: str, key_heads: int | None, key_width: int | None, value_width: int | None
) -> None:
    widths = {"key_heads": key_heads, "key_width": key_width, "value_width": value_width}
    heads = heads_of(8, 6, 4, Part(score), **widths).double()  # type: ignore[arg-type]
    x, h, attention_mask = torch.randn(1, 2, 8).double(), torch.randn(1, S, 6).double(), anywhere(2)
    expected = in_loops(heads, (score, "softmax"), x, h, attention_mask)
    for look in (False, True):
        with path(look):
            close(heads(x, *heads.project_keys_values(h), attention_mask), expected)


@torch.no_grad()
@pytest.mark.parametrize("key_heads", [1, 2])
def test_grouped_keys_are_full_heads_with_repeated_weights(key_heads: int) -> None:
    grouped, full = heads_of(heads=4, key_heads=key_heads), heads_of(heads=4)
    full.Wq.load_state_dict(grouped.Wq.state_dict())
    full.Wo.load_state_dict(grouped.Wo.state_dict())
    for ours, theirs in ((grouped.Wk, full.Wk), (grouped.Wv, full.Wv)):
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            b.copy_(a.unflatten(0, (key_heads, 2)).repeat_interleave(4 // key_heads, 0).flatten(0, 1))
    x, h, mask = torch.randn(B, T, D), torch.randn(B, S, D), torch.tensor([S, 2])[:, None] > torch.arange(S)
    attention_mask = anywhere(mask=mask[:, None, None])
    for look in (False, True):
        with path(look):
            close(
                grouped(x, *grouped.project_keys_values(h), attention_mask),
                full(x, *full.project_keys_values(h), attention_mask),
            )
    assert grouped.project_keys_values(h)[0].shape == (B, key_heads, S, 2)  # what a decoder keeps is that much smaller


# -- who may look at whom ----------------------------------------------------------------------------------------------

N = 5
query, key = torch.arange(N)[:, None], torch.arange(N)
MASKS = {
    "causal": key <= query,
    "strict": key < query,  # whose first row sees nothing
    "padding": (key < 3).expand(N, N),
    "prefix": (key <= query) | (key < 2),
    "window": (key - query).abs() <= 1,
    "nothing": (key < 0).expand(N, N),
    "arbitrary": torch.tensor([[(3 * i + j * j) % 4 == 1 for j in range(N)] for i in range(N)]),
}
SCHEMES = [
    Part("none"),
    Part("alibi"),
    Part("t5", {"buckets": 4, "distance": 3}),
    Part("shaw", {"distance": 2}),
    Part("xl", {"distance": 2}),
]


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda part: part.name)
@pytest.mark.parametrize("name", MASKS)
@BOTH_PATHS
def test_a_mask_hides_what_it_should_with_a_bias_and_without(name: str, scheme: Part, look: bool) -> None:
    """The weights of what is seen sum to 1, and a query that sees nothing gets zeros; no NaN, not even backwards."""
    heads, position = heads_of(heads=2).double(), positions.build(scheme, D, HeadSpec(2, 4, False)).double()  # type: ignore[attr-defined]
    x = torch.randn(1, N, D).double().requires_grad_()
    attention_mask = anywhere(N, MASKS[name][None, None])
    bias = position.score_bias(heads.project_queries(x), attention_mask.t, attention_mask.t)
    with torch.no_grad():
        expected = in_loops(heads, ("scaled_dot", "softmax"), x, x, attention_mask, bias)
    k, v = heads.project_keys_values(x)
    with path(look):
        found = heads.attend(heads.project_queries(x), k, v, attention_mask, position)
    close(heads.merge_heads(found), expected)
    sees = MASKS[name].any(-1)
    assert found[:, :, ~sees].abs().sum() == 0
    found.sin().sum().backward()
    assert x.grad is not None
    assert torch.isfinite(x.grad).all()
    assert (x.grad.abs().sum() > 0) == bool(sees.any())
    for p in position.parameters():
        assert p.grad is not None
        assert torch.isfinite(p.grad).all()


@pytest.mark.parametrize("scheme", [*SCHEMES, Part("shaw", {"distance": 2, "values": True}), Part("rotary")], ids=str)
@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
def test_causal_heads_are_heads_under_a_triangle_forwards_and_backwards(scheme: Part, padded: bool) -> None:
    """Fused and watched, asked to look back only, or given the mask that says so."""
    heads, position = heads_of(), positions.build(scheme, D, HeadSpec(2, 4, True))
    x, triangle = torch.randn(B, N, D, requires_grad=True), MASKS["causal"][None, None]
    real = (key < torch.tensor([[N], [2]]))[:, None, None] if padded else None

    def run(attention_mask: AttentionMask) -> tuple[Tensor, Tensor]:
        k, v = heads.project_keys_values(x, position, attention_mask.t)
        out = heads(x, k, v, attention_mask, position)
        return out, torch.autograd.grad(out.sin().sum(), x)[0]

    runs = [run(anywhere(N, real, True)), run(anywhere(N, triangle if real is None else real & triangle))]
    with record_attention() as recorded:
        runs.append(run(anywhere(N, real, True)))
    assert recorded[heads][0].triu(1).abs().sum() == 0
    for other in runs[1:]:
        for a, b in zip(runs[0], other, strict=True):
            close(a, b)


def test_rotary_heads_know_distances_and_nothing_else() -> None:
    heads, x, h = heads_of(), torch.randn(B, T, D), torch.randn(B, S, D)
    position, t, s = positions.build(Part("rotary"), D, HeadSpec(2, 4, False)), torch.arange(T)[None], torch.arange(S)

    def at(t: Tensor, s: Tensor) -> Tensor:
        return heads(x, *heads.project_keys_values(h, position, s), AttentionMask(t, None), position)  # type: ignore[no-any-return]

    here = at(t, s[None])
    close(at(t + 50, s[None] + 50), here)
    rows = torch.tensor([[3], [90]])  # rows that stand at different places
    close(at(t + rows, s + rows), here)
    assert (at(t + 1, s[None]) - here).abs().max() > 1e-3
    assert (at(t, 2 * s[None]) - here).abs().max() > 1e-3


@torch.no_grad()
def test_a_scheme_may_add_to_what_the_weights_average() -> None:
    """Shaw's values: one vector for all distances is added once by weights that sum to 1, by others not at all."""
    heads, x, attention_mask = heads_of(), torch.randn(1, N, D), anywhere(N, MASKS["strict"][None, None])
    position: Any = positions.build(Part("shaw", {"distance": 2, "values": True}), D, HeadSpec(2, 4, False))
    q, (k, v) = heads.project_queries(x), heads.project_keys_values(x)
    position.values.zero_()
    before, u = heads.attend(q, k, v, attention_mask, position), torch.randn(4)
    position.values.copy_(u.expand(5, 4))
    added = heads.attend(q, k, v, attention_mask, position) - before
    close(added[:, :, 1:], u.expand(1, 2, N - 1, 4))
    assert added[:, :, 0].abs().sum() == 0


# -- the worked numbers ------------------------------------------------------------------------------------------------


@torch.no_grad()
@BOTH_PATHS
def test_the_worked_numbers_of_two_scores_in_one_head(look: bool) -> None:
    """Scores 112 and 96 at a width of 64 are 14 and 12, whose softmax is 0.8808 and 0.1192."""
    heads = heads_of(64, 64, 1)
    for W in (heads.Wq, heads.Wk, heads.Wv, heads.Wo):
        W.weight.copy_(torch.eye(64))
        W.bias.zero_()
    q = torch.ones(1, 1, 64)
    k = torch.stack([torch.full((64,), 112 / 64), torch.full((64,), 96 / 64)])[None]
    v = torch.randn(1, 2, 64)
    keys, values = heads.project_keys_values(k, values=v)
    with path(look):
        assert_close(heads(q, keys, values, anywhere(1)), 0.8808 * v[:, :1] + 0.1192 * v[:, 1:], atol=1e-3, rtol=0.0)


# -- what heads refuse -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"heads": 3}, "width 8 is not divisible by 3 heads"),
        ({"heads": 3, "key_width": 4}, "width 8 is not divisible by 3 heads"),
        ({"heads": 4, "key_heads": 3}, "4 heads are not divisible by 3 key heads"),
        (
            {"score": Part("coverage")},
            "score 'coverage' needs the weights of earlier steps, .* use it in an rnn decoder",
        ),
        (
            {"score": Part("location")},
            "score 'location' needs the weights of earlier steps, .* use it in an rnn decoder",
        ),
        ({"normalizer": Part("hard")}, "'hard' samples one position .* use it in an rnn decoder"),
        ({"fold_scaling_into_initializer": True}, "the score is 'scaled_dot'; use 'dot'"),
    ],
)
def test_what_heads_cannot_do_is_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(PartError, match=sentence):
        heads_of(**options)
    heads_of(heads=3, key_width=4, value_width=2)  # widths that were given need no sharing


def test_attention_dropout_works_in_training_only() -> None:
    heads, x = heads_of(dropout=0.5), torch.randn(1, 20, D)
    k, v = heads.project_keys_values(x)
    for look in (False, True):
        with path(look):
            assert not torch.equal(heads.train()(x, k, v, anywhere(20)), heads(x, k, v, anywhere(20)))
            assert torch.equal(heads.eval()(x, k, v, anywhere(20)), heads(x, k, v, anywhere(20)))


# -- watching --------------------------------------------------------------------------------------------------------


def test_recording_collects_the_weights_of_every_call_and_ends() -> None:
    heads, x = heads_of(), torch.randn(B, T, D)
    k, v = heads.project_keys_values(x)
    assert not is_recording()
    with record_attention() as recorded:
        assert is_recording()
        assert recorded_weights(heads, 2) == []
        heads(x, k, v, anywhere())
        heads(x[:, :1], k, v, anywhere(1))
        assert [a.shape for a in recorded[heads]] == [(B, H, T, T), (B, H, 1, T)]
        assert recorded_weights(heads, 1)[0] is recorded[heads][-1]
        assert not recorded[heads][0].requires_grad
    assert not is_recording()
    assert recorded_weights(heads, 2) == []
    heads(x, k, v, anywhere())
    assert len(recorded[heads]) == 2


def test_recording_ends_when_something_fails_inside() -> None:
    with pytest.raises(ZeroDivisionError), record_attention():
        _ = 1 / 0
    assert not is_recording()


@torch.no_grad()
def scores_at_first(score: str, **options: Any) -> float:
    """How widely the scores of new heads are spread."""
    heads = MultiHeadAttention(64, 64, MultiHeadConfig(4, Part(score), SOFTMAX, **options))
    q, (k, _) = heads.project_queries(torch.randn(1, 50, 64)), heads.project_keys_values(torch.randn(1, 50, 64))
    return float(heads.score(q, k).std())


def test_initial_unscaled_dot_scores_are_wider_than_scaled_ones_by_the_root_of_the_width() -> None:
    assert scores_at_first("dot") == pytest.approx(4 * scores_at_first("scaled_dot"), rel=0.25)  # √16


def test_scaling_that_is_folded_into_the_initializer_is_that_of_the_queries_matrix_alone() -> None:
    """T5 leaves out 1/√d and begins W_q smaller by as much."""
    built = {}
    for name, folded in {"scaled_dot": False, "dot": True}.items():
        torch.manual_seed(5)
        built[name] = MultiHeadAttention(
            64, 64, MultiHeadConfig(4, Part(name), SOFTMAX, fold_scaling_into_initializer=folded)
        )
    assert_close(built["dot"].Wq.weight, built["scaled_dot"].Wq.weight / 4)
    for name in ("Wk", "Wv", "Wo"):
        assert_close(getattr(built["dot"], name).weight, getattr(built["scaled_dot"], name).weight)
    assert scores_at_first("dot", fold_scaling_into_initializer=True) == pytest.approx(
        scores_at_first("scaled_dot"), rel=0.25
    )


# -- a score of one's own ----------------------------------------------------------------------------------------------


class Distance(nn.Module):
    """e = −s ‖q − k‖²: no dot product, though its s is called `scale` as that of ours is."""

    uses_past_weights = False

    def __init__(self, d_q: int, d_k: int) -> None:
        super().__init__()
        self.scale = 0.5

    def prepare_keys(self, k: Tensor) -> Tensor:
        return k

    def forward(self, q: Tensor, keys: Tensor, past_weights: Tensor | None = None) -> Tensor:
        return -self.scale * (q[..., :, None, :] - keys[..., None, :, :]).pow(2).sum(-1)


class Cosine(ScaledDotScore):
    """e = cos(q, k), built on ours."""

    def forward(self, q: Tensor, keys: Tensor, past_weights: Tensor | None = None) -> Tensor:
        return nn.functional.cosine_similarity(q[..., :, None, :], keys[..., None, :, :], -1)


@torch.no_grad()
@pytest.mark.parametrize("kind", [Distance, Cosine])
def test_a_score_of_ones_own_is_evaluated_though_it_has_a_scale(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(scores._parts, "own", kind)
    begun = []
    for score in (Part("own"), SCALED_DOT):
        torch.manual_seed(7)
        begun.append(MultiHeadAttention(8, 8, MultiHeadConfig(2, score, SOFTMAX)).Wq.weight)
    assert_close(*begun)
    heads = heads_of(8, 8, 2, Part("own"))
    x = torch.randn(B, T, 8)
    k, v = heads.project_keys_values(x)
    expected = heads.merge_heads(torch.softmax(heads.score(heads.project_queries(x), k), -1) @ v)
    close(heads(x, k, v, anywhere()), expected)
