"""Exhaustive search against an enumeration of every sequence with `itertools`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dragoman.core.errors import UserError
from dragoman.core.registry import Part
from dragoman.core.types import BOS, EOS, PAD, UNK, Batch, Capacity
from dragoman.nn.seq2seq import Seq2Seq
from dragoman.search import LogitsProcessor, Search, SearchConstraints, searches

from .test_searches import RULES, SEEDS, Tables, random_tables, trap


def exhaustive(**options: Any) -> Search:
    return searches.build(Part("exhaustive", options))


def run(
    tables: Tables, search: Search, rules: tuple[LogitsProcessor, ...] = (), min_lengths: Tensor | int = 0
) -> list[Any]:
    found = search(
        tables.step, tables.start, SearchConstraints(torch.tensor(tables.max_lengths), min_lengths, processors=rules)
    )
    return [[(tuple(h.tokens), h.finish_reason, h.log_probs, h.score) for h in best] for best in found]


def everything(
    tables: Tables, i: int, formula: Any, min_lengths: int, may: Callable[[tuple[int, ...]], bool] = lambda y: True
) -> list[Any]:
    """Every result in order: those that end, then those at the limit that cannot. `may`: no beginning breaks a rule."""
    ordinary = [v for v in range(tables.log_p.shape[2]) if v not in (PAD, BOS, EOS)]
    ended, cut = [], []
    for n in range(tables.max_lengths[i] + 1):
        for tokens in itertools.product(ordinary, repeat=n):
            logs = tables.log_probs(i, tokens)
            whole = tables.log_probs(i, (*tokens, EOS))
            if sum(logs) == -math.inf or not all(may(tokens[:m]) for m in range(n + 1)):
                continue
            if n >= min_lengths and whole[-1] > -math.inf and may((*tokens, EOS)):
                ended.append((tokens, "eos", whole, formula(sum(whole), n + 1)))
            elif n == tables.max_lengths[i]:
                cut.append((tokens, "length", logs, formula(sum(logs), max(n, 1))))
    return [one for found in (ended, cut) for one in sorted(found, key=lambda result: -result[3])]


def assert_same(found: list[Any], expected: list[Any]) -> None:
    assert [one[:2] for one in found] == [one[:2] for one in expected]
    for (*_, logs, score), (*_, wanted, best) in zip(found, expected, strict=True):
        assert logs == pytest.approx(wanted)
        assert score == pytest.approx(best, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("rule", RULES)
@given(seed=SEEDS, size=st.integers(1, 60), min_lengths=st.lists(st.integers(0, 2), min_size=3, max_size=3))
@settings(max_examples=15)
def test_it_finds_the_best_of_everything_there_is(rule: str, seed: int, size: int, min_lengths: list[int]) -> None:
    part, formula = RULES[rule]
    tables = random_tables(seed, 3, 6, [3, 0, 2])
    gone = torch.rand(tables.log_p.shape, generator=torch.Generator().manual_seed(seed)) < 0.2
    tables.log_p[gone] = -math.inf  # some ends and some ways on are closed
    tables.log_p[0, :, EOS] -= 5.0 * (seed % 2)
    found = run(tables, exhaustive(beam=size, length_rule=part), min_lengths=torch.tensor(min_lengths))
    for i in range(3):
        assert_same(found[i], everything(tables, i, formula, min_lengths[i])[:size])


def test_it_finds_the_best_of_more_than_one_step_of_the_model_can_hold() -> None:
    tables = random_tables(int(torch.randint(2**31, ())), 1, 10, [3])  # 1 + 7 + 49 + 343 beginnings
    [found] = run(tables, exhaustive(beam=400))
    assert_same(found, everything(tables, 0, RULES["mean"][1], 0))
    assert tables.capacities == [Capacity(1, 4)]


@given(seed=SEEDS)
@settings(max_examples=10)
def test_it_keeps_to_the_rules(seed: int) -> None:
    """The second sentence never says 4; nobody says a token twice in a row, nor ends after 5."""

    def rule(log_p: Tensor, history: Tensor, rows: Tensor) -> Tensor:
        banned = torch.zeros_like(log_p, dtype=torch.bool)
        if history.shape[2]:
            banned.scatter_(-1, history[..., -1:], True)
            banned[..., EOS] = history[..., -1] == 5
        banned[rows == 1, :, 4] = True
        return log_p.masked_fill(banned, -math.inf)

    def may(y: tuple[int, ...]) -> bool:
        return all(a != b and (a, b) != (5, EOS) for a, b in itertools.pairwise(y))

    tables = random_tables(seed, 2, 6, [3, 3])
    found = run(tables, exhaustive(beam=99), (rule,))
    assert_same(found[0], everything(tables, 0, RULES["mean"][1], 0, may))
    assert_same(found[1], everything(tables, 1, RULES["mean"][1], 0, lambda y: may(y) and 4 not in y))
    assert {ended for _, ended, *_ in found[0]} == {"eos", "length"}


def test_it_avoids_the_classic_trap() -> None:
    [[best, *_]] = trap().run(exhaustive(length_rule=Part("none")))
    assert best.tokens == [5, 5]
    assert best.total == pytest.approx(math.log(0.28))


def test_more_beginnings_than_allowed_are_refused() -> None:
    tables = random_tables(1, 1, 6, [3])
    count = 1 + 3 + 9 + 27
    assert len(run(tables, exhaustive(beam=99, max_hypotheses=count))[0]) == count
    with pytest.raises(UserError, match="tiny problems"):
        run(tables, exhaustive(max_hypotheses=count - 1))


@pytest.mark.parametrize("decoder", ["rnn", "transformer"])
@torch.no_grad()
def test_what_is_said_of_a_model_is_what_the_model_says_of_each_result(decoder: str) -> None:
    model = Seq2Seq(8, 6, width=8, encoder=Part("rnn"), decoder=Part(decoder)).eval()
    for p in model.parameters():
        p.add_(0.3 * torch.randn_like(p))
    source, lengths = torch.randint(4, 8, (2, 5)), torch.tensor([2, 5])
    memory = model.encode(source, lengths)
    search = exhaustive(beam=13, length_rule=Part("none"))
    results = search(
        model.step, lambda capacity: model.start(memory, capacity), SearchConstraints(torch.tensor([2, 2]))
    )
    for i, found in enumerate(results):
        assert {tuple(h.tokens) for h in found} == {
            y for n in range(3) for y in itertools.product((UNK, 4, 5), repeat=n)
        }
        for h in found:
            target, n = torch.tensor([[BOS, *h.tokens, EOS]]), int(lengths[i])
            pair = Batch(source[i : i + 1, :n], lengths[i : i + 1], target, torch.tensor([target.shape[1]]))
            assert h.log_probs == pytest.approx(model.token_log_probs(pair)[0].tolist(), abs=1e-4)
