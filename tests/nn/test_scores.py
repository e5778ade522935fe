"""Scores against their equations in plain loops, the identities between them and the worked numbers of the lectures."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn
from torch.testing import assert_close

from dragoman.core.errors import PartError
from dragoman.core.registry import Part
from dragoman.nn.scores import scores

B, T, S = 2, 3, 4
Rows = list[list[float]]
REMEMBERING = [name for name in scores.names if scores[name].uses_past_weights]  # type: ignore[attr-defined]


def score_of(name: str, d_q: int, d_k: int, **options: Any) -> Any:
    score: Any = scores.build(Part(name, options), d_q, d_k)
    for p in score.parameters():
        nn.init.normal_(p)  # biases too
    return score


def scored(score: Any, q: Tensor, k: Tensor, past_weights: Tensor | None = None) -> Tensor:
    return score(q, score.prepare_keys(k), past_weights)  # type: ignore[no-any-return]


def weights(*shape: int) -> Tensor:
    return torch.randn(*shape).softmax(-1)


# -- each equation, written out --------------------------------------------------------------------------------------


def times(W: Rows, x: list[float]) -> list[float]:
    return [sum(w * a for w, a in zip(row, x, strict=True)) for row in W]


def dot(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def filtered(kernels: list[list[float]], before: list[float], j: int) -> list[float]:
    """Each kernel centered on key j of what was looked at before; there is nothing outside the source."""
    middle = len(kernels[0]) // 2
    return [
        sum(w * before[j + i - middle] for i, w in enumerate(kernel) if 0 <= j + i - middle < len(before))
        for kernel in kernels
    ]


def in_loops(name: str, score: Any, q: list[float], k: list[float], past_weights: list[float], j: int) -> float:
    """The score of one query and its j-th key, in plain Python."""
    if name == "dot":
        return dot(q, k)
    if name == "scaled_dot":
        return dot(q, k) / math.sqrt(len(q))
    if name == "general":
        return dot(q, times(score.W.weight.tolist(), k))
    if name == "concat":
        terms = [times(score.W.weight.tolist(), q + k), score.W.bias.tolist()]
    else:
        terms = [times(score.W1.weight.tolist(), q), times(score.W2.weight.tolist(), k), score.W2.bias.tolist()]
    if name == "location":
        terms.append(times(score.U.weight.tolist(), filtered(score.F.weight[:, 0].tolist(), past_weights, j)))
    if name == "coverage":
        terms.append(times(score.w.weight.tolist(), [past_weights[j]]))
    return dot(score.v.weight[0].tolist(), [math.tanh(sum(each)) for each in zip(*terms, strict=True)])


WRITTEN: list[tuple[str, int, int, dict[str, Any]]] = [
    ("dot", 5, 5, {}),
    ("scaled_dot", 5, 5, {}),
    ("general", 5, 3, {}),
    ("concat", 5, 3, {}),
    ("concat", 3, 5, {"width": 7}),
    ("additive", 5, 3, {}),
    ("additive", 3, 5, {"width": 7}),
    ("location", 5, 3, {"filters": 2, "kernel": 3}),
    ("location", 3, 5, {"width": 7}),  # a kernel wider than the source
    ("coverage", 5, 3, {}),
    ("coverage", 3, 5, {"width": 7}),
]


@pytest.mark.parametrize(("name", "d_q", "d_k", "options"), WRITTEN)
def test_a_score_is_its_equation(name: str, d_q: int, d_k: int, options: dict[str, Any]) -> None:
    score, q, k, past_weights = (
        score_of(name, d_q, d_k, **options),
        torch.randn(B, T, d_q),
        torch.randn(B, S, d_k),
        weights(B, T, S),
    )
    expected = [
        [
            [
                in_loops(name, score, q[b, i].tolist(), k[b, j].tolist(), past_weights[b, i].tolist(), j)
                for j in range(S)
            ]
            for i in range(T)
        ]
        for b in range(B)
    ]
    assert_close(scored(score, q, k, past_weights), torch.tensor(expected), atol=1e-4, rtol=1e-4)


def test_every_score_has_been_written_out_above() -> None:
    assert set(scores.names) == {name for name, *_ in WRITTEN}


@pytest.mark.parametrize("name", scores.names)
def test_heads_are_just_more_leading_dimensions(name: str) -> None:
    score, q, k, past_weights = (
        score_of(name, 4, 4),
        torch.randn(B, 2, T, 4),
        torch.randn(B, 2, S, 4),
        weights(B, 2, T, S),
    )
    for h in range(2):
        assert_close(scored(score, q, k, past_weights)[:, h], scored(score, q[:, h], k[:, h], past_weights[:, h]))


# -- what they have in common ----------------------------------------------------------------------------------------


def test_general_with_the_identity_is_dot() -> None:
    q, k, general = torch.randn(B, T, 5), torch.randn(B, S, 5), score_of("general", 5, 5)
    nn.init.eye_(general.W.weight)
    assert_close(scored(general, q, k), scored(score_of("dot", 5, 5), q, k))


def test_concat_with_both_matrices_side_by_side_is_additive() -> None:
    q, k = torch.randn(B, T, 5), torch.randn(B, S, 3)
    additive, concat = score_of("additive", 5, 3, width=7), score_of("concat", 5, 3, width=7)
    with torch.no_grad():
        concat.W.weight.copy_(torch.cat([additive.W1.weight, additive.W2.weight], 1))
        concat.W.bias.copy_(additive.W2.bias)
        concat.v.weight.copy_(additive.v.weight)
    assert_close(scored(concat, q, k), scored(additive, q, k))


@pytest.mark.parametrize("name", REMEMBERING)
def test_without_past_weights_a_score_that_uses_them_is_additive(name: str) -> None:
    score, additive, q, k = score_of(name, 5, 3), score_of("additive", 5, 3), torch.randn(B, T, 5), torch.randn(B, S, 3)
    additive.load_state_dict({key: value for key, value in score.state_dict().items() if key[:2] in ("W1", "W2", "v.")})
    assert_close(scored(score, q, k, torch.zeros(B, T, S)), scored(additive, q, k))
    assert_close(scored(score, q, k), scored(additive, q, k))


def test_the_variance_of_dot_is_the_width_and_of_scaled_dot_is_one() -> None:
    q, k = torch.randn(20_000, 1, 16), torch.randn(20_000, 1, 16)
    assert scored(score_of("dot", 16, 16), q, k).var().item() == pytest.approx(16, rel=0.1)
    assert scored(score_of("scaled_dot", 16, 16), q, k).var().item() == pytest.approx(1, rel=0.1)


# -- what was looked at before ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", REMEMBERING)
def test_padding_changes_no_score_of_a_real_key(name: str) -> None:
    score, q, k, past_weights = score_of(name, 5, 3), torch.randn(B, T, 5), torch.randn(B, S, 3), weights(B, T, S)
    padded = torch.cat([k, torch.randn(B, 3, 3)], 1), nn.functional.pad(past_weights, (0, 3))
    assert_close(scored(score, q, *padded)[..., :S], scored(score, q, k, past_weights))


@pytest.mark.parametrize(
    ("name", "options", "sums"),
    [("location", {}, False), ("location", {"cumulative": True}, True), ("coverage", {}, True)],
)
def test_a_memo_holds_the_last_weights_or_the_sum_of_all(name: str, options: dict[str, Any], sums: bool) -> None:
    score, steps, past_weights = (
        score_of(name, 5, 3, **options),
        [weights(B, 1, S) for _ in range(3)],
        torch.zeros(B, 1, S),
    )
    for a in steps:
        past_weights = score.update_past_weights(past_weights, a)
    assert_close(past_weights, steps[0] + steps[1] + steps[2] if sums else steps[2])


def test_coverage_penalizes_repeated_attention() -> None:
    a, cov = torch.tensor([[[0.5, 0.3, 0.2]]]), torch.tensor([[[0.0, 1.6, 0.1]]])
    charged = score_of("coverage", 4, 4, penalty=2.0).penalty(cov, a)
    assert_close(charged, torch.tensor([[2 * (0.0 + 0.3 + 0.1)]]))
    assert score_of("coverage", 4, 4).penalty(cov, a) is None
    assert score_of("location", 4, 4).penalty(cov, a) is None


# -- what cannot be built --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["dot", "scaled_dot"])
def test_dot_refuses_two_widths(name: str) -> None:
    with pytest.raises(PartError, match="the same width, not 3 and 4; use 'general'"):
        score_of(name, 3, 4)


def test_an_even_kernel_has_no_middle() -> None:
    with pytest.raises(PartError, match=r"needs an odd kernel, .* not 4; use 5"):
        score_of("location", 3, 4, kernel=4)


def test_a_negative_coverage_penalty_is_refused() -> None:
    with pytest.raises(ValidationError, match="penalty"):
        scores.parse({"name": "coverage", "penalty": -1.0})


# -- SPEC C6: the worked numbers -------------------------------------------------------------------------------------


def test_the_worked_numbers_of_a_dot_product() -> None:
    q, k = torch.tensor([[[0.6, 0.3, 0.8]]]), torch.tensor([[[0.5, 0.1, 0.9]]])
    assert scored(score_of("dot", 3, 3), q, k).item() == pytest.approx(1.05, abs=1e-6)
    assert scored(score_of("scaled_dot", 3, 3), q, k).item() == pytest.approx(0.606, abs=5e-4)


def test_the_worked_numbers_of_two_scores() -> None:
    q, k = torch.zeros(1, 1, 64), torch.zeros(1, 2, 64)
    q[..., 0], k[0, :, 0] = 1.0, torch.tensor([112.0, 96.0])
    assert scored(score_of("scaled_dot", 64, 64), q, k)[0, 0].tolist() == pytest.approx([14, 12])


def test_without_parameters_orthogonal_words_cannot_be_favored_but_with_them_they_can() -> None:
    words = torch.eye(3)[None]  # bank, river, the
    bank = words[:, :1]
    plain = scored(score_of("dot", 3, 3), bank, words)[0, 0]
    assert plain[1] == plain[2] == 0
    general = score_of("general", 3, 3)
    with torch.no_grad():
        general.W.weight.zero_()[0, 1] = 5.0
    assert scored(general, bank, words)[0, 0].argmax() == 1
