"""Slot searches against the searches they replace, on random step functions whose answers depend on the whole history.

The sentences of a request come into the slots at different times, so that they are at different steps.
Where there is no GPU, the kernels run in Triton's interpreter.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from dragoman.core.registry import Part
from dragoman.core.types import Capacity, Hypothesis
from dragoman.engines.cuda.slot_search import (
    BeamSlotSearch,
    SlotSearch,
    allocate_results,
    build_slot_search,
    load_length_rule,
    slot_search_blocker,
    split_results,
)
from dragoman.nn.losses import output_log_probs
from dragoman.search import Search, SearchConstraints, searches

from . import plain_kernels

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
STATES = 13  # histories are told apart by a number below this


@dataclass
class History:
    number: Tensor  # (B, K)
    sentence: Tensor  # (B, 1)


class Tables:
    """Logits by sentence and history, (N, STATES, V)."""

    def __init__(self, seed: int, N: int, V: int, sharp: float = 2.0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.logits = (sharp * torch.randn(N, STATES, V, generator=generator)).to(DEVICE)
        self.longest = torch.randint(1, 7, (N,), generator=generator).to(DEVICE)
        self.shortest = torch.minimum(torch.randint(0, 3, (N,), generator=generator).to(DEVICE), self.longest)

    def after(self, number: Tensor, tokens: Tensor) -> Tensor:
        return (number * 5 + tokens + 1) % STATES

    def start(self, capacity: Capacity) -> History:
        sentence = torch.arange(len(self.logits), device=DEVICE)[:, None]
        return History(torch.zeros(len(sentence), capacity.hypotheses, dtype=torch.long, device=DEVICE), sentence)

    def step(self, tokens: Tensor, state: History) -> tuple[Tensor, History]:
        number = self.after(state.number, tokens)
        return output_log_probs(self.logits[state.sentence, number]), History(number, state.sentence)

    def search(self, search: Search) -> list[list[Hypothesis]]:
        return search(self.step, self.start, SearchConstraints(self.longest, self.shortest))


def through_slots(tables: Tables, search: Search, slots: int, kernels: Any) -> list[Sequence[Hypothesis]]:
    """The same tables in fewer slots than sentences: a slot that is done takes the next sentence."""
    length = int(tables.longest.max()) + 1
    slot_search: SlotSearch = build_slot_search(search, slots, length, tables.logits.shape[2], DEVICE, kernels)
    load_length_rule(slot_search, search)
    waiting, occupied = list(range(len(tables.logits))), dict[int, int]()
    results: dict[int, Sequence[Hypothesis]] = {}
    number = torch.zeros(slots, slot_search.k, dtype=torch.long, device=DEVICE)
    sentence = torch.zeros(slots, dtype=torch.long, device=DEVICE)
    while waiting or occupied:
        for slot in [s for s in range(slots) if s not in occupied][: len(waiting)][:1]:  # one at a time: steps differ
            row = torch.tensor([slot], device=DEVICE)
            occupied[slot] = waiting.pop(0)
            number[slot], sentence[slot] = 0, occupied[slot]
            slot_search.reset(row, torch.stack([tables.longest, tables.shortest])[:, [occupied[slot]]])
        number = tables.after(number, slot_search.token[:slots].long())
        slot_search.advance(tables.logits[sentence[:, None], number].flatten(0, 1), slots, None)
        if slot_search.parent is not None:
            number = number.gather(1, slot_search.parent[:slots].long())
        for slot in [s for s in occupied if slot_search.done[s]]:
            found = slot_search.gather_results(torch.tensor([slot], device=DEVICE), length)
            [results[occupied.pop(slot)]] = slot_search.read_results(found.cpu(), length)
    return [results[i] for i in range(len(results))]


def apart(found: list[list[Hypothesis]]) -> bool:
    """Whether no two of a sentence are as good: the same steps in another order are, and which is first is rounding."""
    scores = [sorted(h.score for h in some) for some in found]
    return all(b - a > 1e-5 for some in scores for a, b in pairwise(some))


def assert_same(want: list[list[Hypothesis]], got: list[Sequence[Hypothesis]]) -> None:
    for wanted, found in zip(want, got, strict=True):
        assert [(h.tokens, h.finish_reason) for h in found] == [(h.tokens, h.finish_reason) for h in wanted]
        for a, b in zip(wanted, found, strict=True):
            assert b.log_probs == pytest.approx(a.log_probs, abs=1e-5)
            assert b.score == pytest.approx(a.score, abs=1e-5)


beams = st.builds(
    lambda size, stopping, rule: searches.build(Part("beam", {"beam": size, "length_rule": rule, **stopping})),
    st.integers(1, 6),
    st.sampled_from(
        [
            {},
            {"early_stopping": "never"},
            {"early_stopping": True},
            {"early_stopping": True, "patience": 1.5},
            {"early_stopping": True, "patience": 3.0},
        ]
    ),
    st.sampled_from([Part("none"), Part("mean"), Part("power", {"alpha": 0.5}), Part("gnmt")]),
)


@settings(max_examples=30)
@given(st.integers(0, 2**32), beams, st.integers(4, 12), st.integers(1, 4))
def test_a_beam_in_slots_finds_what_the_beam_finds(seed: int, search: Search, V: int, slots: int) -> None:
    tables = Tables(seed, 5, V)
    want = tables.search(search)
    assume(apart(want))
    assert_same(want, through_slots(tables, search, slots, plain_kernels))


@given(st.integers(0, 2**32), st.integers(4, 12), st.integers(1, 4))
def test_greedy_search_in_slots_finds_what_greedy_search_finds(seed: int, V: int, slots: int) -> None:
    tables, search = Tables(seed, 5, V), searches.build(Part("greedy"))
    assert_same(tables.search(search), through_slots(tables, search, slots, plain_kernels))


def test_greedy_search_stops_where_no_token_is_allowed() -> None:
    tables, search = Tables(0, 3, 3), searches.build(Part("greedy"))  # a vocabulary of nothing but </s>
    tables.longest[:], tables.shortest[:] = 3, torch.tensor([0, 2, 3])
    want = tables.search(search)
    assert [h[0].finish_reason for h in want] == ["eos", "no_valid_token", "no_valid_token"]
    assert_same(want, through_slots(tables, search, 2, plain_kernels))


# -- results -----------------------------------------------------------------------------------------------------------


def test_results_are_a_list_of_those_that_there_are() -> None:
    """The first sentence has two finished hypotheses of three, the second none."""
    max_length, none = 4, -torch.inf
    buffer = allocate_results(6, max_length, torch.device("cpu"))
    score, length, reason, tokens, log_probs = split_results(buffer, 3, max_length)
    score.copy_(torch.tensor([[-0.75, -2.0, none], [none] * 3]))
    length[0], reason[0] = torch.tensor([1, 2, 99]), torch.tensor([1, 0, 99])
    tokens[0, 0, :1], log_probs[0, 0, :2] = 7, torch.tensor([-0.5, -0.25])
    tokens[0, 1, :2], log_probs[0, 1, :2] = torch.tensor([8, 9]), torch.tensor([-0.5, -1.5])
    slot_search = BeamSlotSearch(1, 3, max_length, 5, torch.device("cpu"), plain_kernels)
    best, nothing = slot_search.read_results(buffer, max_length)
    want = [Hypothesis([7], [-0.5, -0.25], -0.75, "eos"), Hypothesis([8, 9], [-0.5, -1.5], -2.0, "length")]
    assert best == want
    assert want == best
    assert best != want[:1]
    assert (len(best), best[-1], best[:1], best[1:5]) == (2, want[1], want[:1], want[1:])
    assert (len(nothing), list(nothing), nothing[:3]) == (0, [], [])
    with pytest.raises(IndexError):
        best[2]
    assert {type(x) for h in best for x in (*h.tokens, *h.log_probs, h.score)} == {int, float}


# -- kernels -----------------------------------------------------------------------------------------------------------

kernels = pytest.importorskip("dragoman.engines.cuda.kernels.search")


@pytest.mark.parametrize(
    ("size", "early_stopping", "rule", "V"), [(3, False, "mean", 7), (2, "never", "gnmt", 5), (3, True, "none", 6)]
)
def test_the_kernels_of_a_beam_find_what_the_beam_finds(
    size: int, early_stopping: bool | str, rule: str, V: int
) -> None:
    tables = Tables(torch.randint(2**31, ()).item(), 2, V)
    tables.longest.clamp_(max=3)
    tables.shortest.clamp_(max=2)
    stopping = {"early_stopping": early_stopping, "patience": 1.5}
    search = searches.build(Part("beam", {"beam": size, "length_rule": Part(rule), **stopping}))
    assert_same(tables.search(search), through_slots(tables, search, 2, kernels))


def test_the_kernel_of_greedy_search_finds_what_greedy_search_finds() -> None:
    tables, search = Tables(torch.randint(2**31, ()).item(), 4, 9), searches.build(Part("greedy"))
    assert_same(tables.search(search), through_slots(tables, search, 2, kernels))


def test_a_beam_refills_as_hypotheses_end_and_cuts_off_only_those_that_did_not() -> None:
    """p is 0.3 for </s> and 0.4, 0.2, 0.1 for three words, after one of which a result is as long as it may be.

    First </s> ends, and all three words live on. Then 3 3 (0.16), 3 </s> (0.12) and 3 4 (0.08) rank highest: 3 has
    ended, so the one place that is left in the pool goes to 4.
    """
    search = searches.build(Part("beam", {"beam": 3, "length_rule": Part("none")}))
    slot_search = build_slot_search(search, 1, 4, 6, DEVICE, kernels)
    load_length_rule(slot_search, search)
    slot = torch.tensor([0], device=DEVICE)
    slot_search.reset(slot, torch.tensor([[1], [0]], device=DEVICE))
    logits = torch.tensor([0.0, 0.0, 0.3, 0.4, 0.2, 0.1], device=DEVICE).log().expand(3, 6).contiguous()
    slot_search.advance(logits, 1, None)
    assert slot_search.token[0].tolist() == [3, 4, 5]
    assert not slot_search.done[0]
    slot_search.advance(logits, 1, None)
    assert slot_search.done[0]
    [found] = slot_search.read_results(slot_search.gather_results(slot, 4).cpu(), 4)
    assert [(h.tokens, h.finish_reason) for h in found] == [([], "eos"), ([3], "eos"), ([4], "length")]
    assert [h.score for h in found] == pytest.approx([math.log(0.3), math.log(0.12), math.log(0.2)])


def test_ancestors_follow_the_parents() -> None:
    """What lies at place s of hypothesis j was put there by the hypothesis that j descends from at step s."""
    search = searches.build(Part("beam", {"beam": 3}))
    tables = Tables(torch.randint(2**31, ()).item(), 1, 8)
    slot_search = build_slot_search(search, 1, 8, 8, DEVICE, kernels)
    assert isinstance(slot_search, BeamSlotSearch)
    load_length_rule(slot_search, search)
    slot_search.reset(torch.tensor([0], device=DEVICE), torch.full((2, 1), 7, device=DEVICE))
    ancestry = torch.zeros(1, 3, 8, dtype=torch.int16, device=DEVICE)
    number, lines = torch.zeros(1, 3, dtype=torch.long, device=DEVICE), [[], [], []]
    for _ in range(3):
        number = tables.after(number, slot_search.token[:1].long())
        slot_search.advance(tables.logits[:, number[0]][0], 1, ancestry)
        parents = slot_search.parent[0].tolist()
        lines = [[*lines[p], p] for p in parents]
        number = number.gather(1, slot_search.parent[:1].long())
    assert ancestry[0, :, :3].tolist() == lines


# -- which searches are served -----------------------------------------------------------------------------------------


def test_only_searches_that_slots_can_run_are_served() -> None:
    yes = [
        Part("greedy"),
        Part("beam"),
        Part("beam", {"early_stopping": "never", "length_rule": Part("gnmt")}),
        Part("beam", {"early_stopping": True, "patience": 2.0}),
    ]
    no = [
        Part("beam", {"coverage_penalty": 0.2}),
        Part("beam", {"finished_policy": "shrink"}),
        Part("sample"),
        Part("diverse"),
    ]
    assert all(slot_search_blocker(searches.build(part)) is None for part in yes)
    assert not any(slot_search_blocker(searches.build(part)) is None for part in no)


def test_a_length_rule_that_is_no_factor_is_not_served() -> None:
    search: Any = searches.build(Part("beam"))
    search.length_rule = lambda log_p, n: log_p + 0.1 * n  # a reward for each word
    assert slot_search_blocker(search) is not None
