"""A search over several step functions finds what it finds on the one table that they amount to."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dragoman.core.errors import UserError
from dragoman.core.registry import Part
from dragoman.core.types import Capacity, Hypothesis
from dragoman.search import SearchConstraints, Start, searches
from dragoman.search.combination import average_steps, fuse_steps

B, V, DEPTH = 4, 6, 3
LONGEST = [3, 1, 2, 3]  # rows leave the batch at different times
NODES = sum(V**n for n in range(DEPTH + 2))
SEEDS = st.integers(0, 2**32)


class Table:
    """log p (B, nodes, V) of the next token for every prefix; the state is the prefix, as the number of its node."""

    def __init__(self, log_p: Tensor) -> None:
        self.log_p = log_p

    def start(self, capacity: Capacity) -> tuple[Tensor, Tensor, Tensor]:
        node = torch.zeros(B, capacity.hypotheses, dtype=torch.long)
        return node, torch.ones(B, 1, dtype=torch.bool), self.log_p[:, None]

    @staticmethod
    def step(tokens: Tensor, state: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Any]:
        node, first, table = state
        node = torch.where(first, 0, node * V + tokens + 1).clamp(max=NODES - 1)  # what is done may be asked for more
        log_p = table[:, 0].gather(1, node[..., None].expand(-1, -1, V))
        return log_p, (node, torch.zeros_like(first), table)


def together(starts: list[Start]) -> Start:
    """The members' states before the first token, as one."""
    return lambda capacity: tuple(start(capacity) for start in starts)


def tables(seed: int, count: int) -> list[Table]:
    generator = torch.Generator().manual_seed(seed)
    draws = torch.randn(count, B, NODES, V, generator=generator, dtype=torch.float64)
    return [Table(log_p) for log_p in (1.5 * draws).log_softmax(-1)]


def found(step: Any, start: Start, size: int) -> list[list[Hypothesis]]:
    search = searches.build(Part("beam", {"beam": size}) if size else Part("greedy"))
    return search(step, start, SearchConstraints(torch.tensor(LONGEST)))


def same(ones: list[list[Hypothesis]], others: list[list[Hypothesis]]) -> None:
    for one, other in zip(ones, others, strict=True):
        assert [(h.tokens, h.finish_reason) for h in one] == [(h.tokens, h.finish_reason) for h in other]
        for a, b in zip(one, other, strict=True):
            assert a.log_probs == pytest.approx(b.log_probs, rel=1e-9)
            assert a.score == pytest.approx(b.score, rel=1e-9)


@given(seed=SEEDS, size=st.integers(0, 4), weights=st.lists(st.integers(1, 9), min_size=1, max_size=3))
@settings(max_examples=20, deadline=None)
def test_a_search_over_members_is_a_search_of_their_averaged_table(seed: int, size: int, weights: list[int]) -> None:
    members = tables(seed, len(weights))
    p = sum(w * member.log_p.exp() for w, member in zip(weights, members, strict=True)) / sum(weights)
    one = Table(torch.as_tensor(p).log())
    steps, start = [member.step for member in members], together([member.start for member in members])
    same(found(average_steps(steps, weights), start, size), found(one.step, one.start, size))
    if len(set(weights)) == 1:
        same(found(average_steps(steps), start, size), found(one.step, one.start, size))


@given(seed=SEEDS, size=st.integers(0, 4), weight=st.sampled_from([0.0, 0.3, 2.0]))
@settings(max_examples=15, deadline=None)
def test_a_fused_search_is_a_search_of_the_table_of_sums(seed: int, size: int, weight: float) -> None:
    model, other = tables(seed, 2)
    one = Table(model.log_p + weight * other.log_p)
    step = fuse_steps(model.step, other.step, weight)
    same(found(step, together([model.start, other.start]), size), found(one.step, one.start, size))


def says(*p: float, dtype: torch.dtype = torch.float32) -> Any:
    """A step that says the same always."""
    return lambda tokens, state: (torch.tensor(p, dtype=dtype).log()[None, None], state)


TOKEN = torch.ones(1, 1, dtype=torch.long)


def test_what_one_member_excludes_another_may_still_say_and_what_all_exclude_none_can() -> None:
    log_p, _ = average_steps([says(0.0, 0.0, 1.0), says(0.0, 0.5, 0.5)], [1, 3])(TOKEN, ((), ()))
    assert log_p.exp().flatten().tolist() == pytest.approx([0.0, 0.375, 0.625])
    log_p, _ = average_steps([says(0.0, 1.0), says(1.0, 0.0)], [1, 0])(TOKEN, ((), ()))
    assert log_p.flatten().tolist() == [-math.inf, 0.0]
    log_p, _ = fuse_steps(says(0.5, 0.5), says(0.0, 1.0), 0.0)(TOKEN, ((), ()))
    assert log_p.exp().flatten().tolist() == [0.5, 0.5]


def test_members_of_half_precision_are_combined_in_float32() -> None:
    half = says(0.3, 0.7, dtype=torch.bfloat16)
    for step in (average_steps([half, half]), fuse_steps(half, half, 0.5)):
        assert step(TOKEN, ((), ()))[0].dtype == torch.float32


@pytest.mark.parametrize("weights", [[1.0], [1.0, -0.5], [0.0, 0.0], [1.0, math.nan], [1.0, math.inf], []])
def test_weights_that_are_none_are_refused(weights: list[float]) -> None:
    with pytest.raises(UserError, match="2 models need 2"):
        average_steps([says(1.0), says(1.0)], weights)
