"""Diverse beams against groups over plain lists."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.core.errors import PartError
from dragoman.core.registry import Part
from dragoman.core.types import BOS, EOS, PAD
from dragoman.search import Search, searches

from .test_beam import Found, Tokens, assert_found, beam, competing
from .test_searches import RULES, SEEDS, Tables, random_tables, told


def diverse(**options: Any) -> Search:
    return searches.build(Part("diverse", options))


class Group:
    """A beam of k over lists, which takes off what the groups before it say at the same step."""

    def __init__(self, tables: Tables, i: int, k: int, formula: Callable[[float, float], float]) -> None:
        self.tables, self.i, self.k, self.formula = tables, i, k, formula
        self.live: list[Tokens] = [()]
        self.pool: list[Tokens] = []
        self.cut: list[Tokens] = []

    def total(self, y: Tokens) -> float:
        return sum(self.tables.log_probs(self.i, y))

    def score(self, y: Tokens) -> float:
        return self.formula(self.total(y), max(len(y), 1))

    def advance(self, t: int, taken_off: Callable[[int], float]) -> None:
        V = self.tables.log_p.shape[2]
        every = [(*y, v) for y in self.live for v in range(V) if v not in (PAD, BOS)]
        every = [y for y in every if self.total(y) > -float("inf")]
        every.sort(key=lambda y: self.total(y) - taken_off(y[-1]), reverse=True)
        ending = [y for y in every[: self.k] if y[-1] == EOS]
        self.pool = sorted(self.pool + ending, key=self.score, reverse=True)[: self.k]
        before, self.live = self.live, [y for y in every if y[-1] != EOS][: self.k]
        if t == self.tables.max_lengths[self.i]:
            self.live, self.cut = [], [y for y in before if (*y, EOS) not in ending]
            return
        best = max(map(self.total, self.live), default=0.0)
        if len(self.pool) == self.k and self.formula(best, t + 1) <= self.score(self.pool[-1]):
            self.live = []

    def found(self) -> Found:
        cut = sorted(self.cut, key=self.score, reverse=True)
        results = [*((y[:-1], "eos", self.score(y)) for y in self.pool), *((y, "length", self.score(y)) for y in cut)]
        return results[: self.k]


def plain_diverse(tables: Tables, i: int, size: int, groups: int, strength: float, formula: Any) -> Found:
    all_groups = [Group(tables, i, size // groups, formula) for _ in range(groups)]
    for t in range(tables.max_lengths[i] + 1):
        said: Counter[int] = Counter()
        for group in all_groups:
            group.advance(t, lambda v, said=said: strength * said[v])  # type: ignore[misc]
            said.update(y[-1] for y in group.live)
    every = [one for group in all_groups for one in group.found()]
    return sorted(every, key=lambda one: (one[1] != "eos", -one[2]))


SHAPES = st.sampled_from([(2, 1), (3, 3), (4, 2), (6, 3), (6, 2)])


@given(seed=SEEDS, shape=SHAPES, strength=st.sampled_from([0.0, 0.3, 1.0, 50.0]), rule=st.sampled_from(sorted(RULES)))
@settings(max_examples=25)
def test_a_diverse_beam_is_its_definition(seed: int, shape: tuple[int, int], strength: float, rule: str) -> None:
    part, formula = RULES[rule]
    tables = competing(seed, [4, 1, 3])
    search = diverse(beam=shape[0], num_beam_groups=shape[1], diversity_penalty=strength, length_rule=part)
    for i, found in enumerate(tables.run(search)):
        assert_found(found, plain_diverse(tables, i, *shape, strength, formula))


@given(seed=SEEDS, shape=SHAPES)
@settings(max_examples=20)
def test_with_no_strength_every_group_is_a_beam_of_its_own(seed: int, shape: tuple[int, int]) -> None:
    size, groups = shape
    tables = competing(seed, [3, 2, 4])
    for found, alone in zip(
        tables.run(diverse(beam=size, num_beam_groups=groups, diversity_penalty=0.0)),
        tables.run(beam(beam=size // groups, early_stopping=False)),
        strict=True,
    ):
        many = [h for h in alone for _ in range(groups)]
        assert told([found]) == told([many])


@given(seed=SEEDS)
@settings(max_examples=20)
def test_with_great_strength_the_groups_begin_with_different_tokens_and_scores_stay_what_they_are(seed: int) -> None:
    tables = random_tables(seed, 2, 8, [3, 3], min_lengths=1)  # 5 tokens to begin with
    for i, found in enumerate(tables.run(diverse(beam=4, num_beam_groups=4, diversity_penalty=1000.0))):
        assert len({h.tokens[0] for h in found}) == 4
        for h in found:
            ended = [EOS] if h.finish_reason == "eos" else []
            assert h.log_probs == pytest.approx(tables.log_probs(i, (*h.tokens, *ended)))
            assert h.score == pytest.approx(sum(h.log_probs) / len(h.log_probs))


@given(seed=SEEDS, rows=st.permutations(range(5)), strength=st.sampled_from([0.0, 0.5, 5.0]))
@settings(max_examples=20)
def test_a_result_does_not_depend_on_the_batch(seed: int, rows: list[int], strength: float) -> None:
    tables = competing(seed, [3, 0, 2, 4, 1])
    search = diverse(beam=4, num_beam_groups=2, diversity_penalty=strength)
    together = told(tables.run(search))
    assert told(tables.rows(rows).run(search)) == [together[i] for i in rows]
    for i in range(5):
        assert told(tables.rows([i]).run(search)) == [together[i]]


def test_groups_of_unequal_size_are_refused() -> None:
    with pytest.raises(PartError, match="cannot be divided evenly into 3 groups"):
        diverse(beam=4, num_beam_groups=3)


def test_rules_hold_in_every_group() -> None:
    def never_four(log_p: torch.Tensor, history: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return log_p.index_fill(2, torch.tensor([4]), -torch.inf)

    found = random_tables(int(torch.randint(2**31, ())), 2, 6, [3, 2]).run(
        diverse(beam=4, num_beam_groups=2), (never_four,)
    )
    assert all(found)
    assert not any(4 in h.tokens for best in found for h in best)
