"""Boards against the searches they stand in for, on random step functions whose answers depend on the whole history.

The sentences of a request come into the slots at different times, so that rows of one board stand at different steps.
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
from dragoman.engines.cuda import slot_search as device_search
from dragoman.engines.cuda.slot_search import BeamBoard, Board
from dragoman.search import Limits, Search, searches

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
        return self.logits[state.sentence, number].log_softmax(-1), History(number, state.sentence)

    def search(self, search: Search) -> list[list[Hypothesis]]:
        return search(self.step, self.start, Limits(self.longest, self.shortest))


def through_a_board(tables: Tables, search: Search, slots: int, kernels: Any) -> list[Sequence[Hypothesis]]:
    """The same tables by way of a board with fewer slots than sentences: a slot that is done takes the next one."""
    room = int(tables.longest.max()) + 1
    board: Board = device_search.board(search, slots, room, tables.logits.shape[2], DEVICE, kernels)
    device_search.prepare(board, search)
    waiting, seated = list(range(len(tables.logits))), dict[int, int]()
    results: dict[int, Sequence[Hypothesis]] = {}
    number = torch.zeros(slots, board.k, dtype=torch.long, device=DEVICE)
    sentence = torch.zeros(slots, dtype=torch.long, device=DEVICE)
    while waiting or seated:
        for slot in [s for s in range(slots) if s not in seated][: len(waiting)][:1]:  # one at a time: steps differ
            row = torch.tensor([slot], device=DEVICE)
            seated[slot] = waiting.pop(0)
            number[slot], sentence[slot] = 0, seated[slot]
            board.reset(row, torch.stack([tables.longest, tables.shortest])[:, [seated[slot]]])
        number = tables.after(number, board.token[:slots].long())
        board.advance(tables.logits[sentence[:, None], number].flatten(0, 1), slots, None)
        if board.parent is not None:
            number = number.gather(1, board.parent[:slots].long())
        for slot in [s for s in seated if board.done[s]]:
            found = board.taken(torch.tensor([slot], device=DEVICE), room)
            [results[seated.pop(slot)]] = board.results(found.cpu(), room)
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
    lambda size, stop, rule: searches.build(Part("beam", {"size": size, "stop": stop, "length": rule})),
    st.integers(1, 6),
    st.sampled_from(["usual", "exact"]),
    st.sampled_from([Part("none"), Part("mean"), Part("power", {"alpha": 0.5}), Part("gnmt")]),
)


@settings(max_examples=30)
@given(st.integers(0, 2**32), beams, st.integers(4, 12), st.integers(1, 4))
def test_a_beam_on_a_board_finds_what_the_beam_finds(seed: int, search: Search, V: int, slots: int) -> None:
    tables = Tables(seed, 5, V)
    want = tables.search(search)
    assume(apart(want))
    assert_same(want, through_a_board(tables, search, slots, None))


@given(st.integers(0, 2**32), st.integers(4, 12), st.integers(1, 4))
def test_greedy_search_on_a_board_finds_what_greedy_search_finds(seed: int, V: int, slots: int) -> None:
    tables, search = Tables(seed, 5, V), searches.build(Part("greedy"))
    assert_same(tables.search(search), through_a_board(tables, search, slots, None))


def test_greedy_search_is_stuck_where_nothing_may_be_said() -> None:
    tables, search = Tables(0, 3, 3), searches.build(Part("greedy"))  # a vocabulary of nothing but </s>
    tables.longest[:], tables.shortest[:] = 3, torch.tensor([0, 2, 3])
    want = tables.search(search)
    assert [h[0].finish_reason for h in want] == ["eos", "no_valid_token", "no_valid_token"]
    assert_same(want, through_a_board(tables, search, 2, None))


# -- results -----------------------------------------------------------------------------------------------------------


def test_results_are_a_list_of_those_that_there_are() -> None:
    """Two of three places are taken in the first sentence's pool and none in the second's."""
    room, none = 4, -torch.inf
    found = device_search.empty(6, room, torch.device("cpu"))
    score, length, how, tokens, log_probs = device_search.columns(found, 3, room)
    score.copy_(torch.tensor([[-0.75, -2.0, none], [none] * 3]))
    length[0], how[0] = torch.tensor([1, 2, 99]), torch.tensor([1, 0, 99])
    tokens[0, 0, :1], log_probs[0, 0, :2] = 7, torch.tensor([-0.5, -0.25])
    tokens[0, 1, :2], log_probs[0, 1, :2] = torch.tensor([8, 9]), torch.tensor([-0.5, -1.5])
    best, nothing = BeamBoard(1, 3, room, 5, False, torch.device("cpu"), None).results(found, room)
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

kernels = pytest.importorskip("dragoman.engines.cuda.kernels.search") if device_search else None


@pytest.mark.parametrize(("size", "stop", "rule", "V"), [(3, "usual", "mean", 7), (2, "exact", "gnmt", 5)])
def test_the_kernels_of_a_beam_find_what_the_beam_finds(size: int, stop: str, rule: str, V: int) -> None:
    tables = Tables(torch.randint(2**31, ()).item(), 2, V)
    tables.longest.clamp_(max=3)
    tables.shortest.clamp_(max=2)
    search = searches.build(Part("beam", {"size": size, "stop": stop, "length": Part(rule)}))
    assert_same(tables.search(search), through_a_board(tables, search, 2, kernels))


def test_the_kernel_of_greedy_search_finds_what_greedy_search_finds() -> None:
    tables, search = Tables(torch.randint(2**31, ()).item(), 4, 9), searches.build(Part("greedy"))
    assert_same(tables.search(search), through_a_board(tables, search, 2, kernels))


def test_a_beam_refills_as_hypotheses_end_and_cuts_off_only_those_that_did_not() -> None:
    """p is 0.3 for </s> and 0.4, 0.2, 0.1 for three words, after one of which a result is as long as it may be.

    First </s> ends, and all three words live on. Then 3 3 (0.16), 3 </s> (0.12) and 3 4 (0.08) rank highest: 3 has
    ended, so the one place that is left in the pool goes to 4.
    """
    search = searches.build(Part("beam", {"size": 3, "length": Part("none")}))
    board = device_search.board(search, 1, 4, 6, DEVICE, kernels)
    device_search.prepare(board, search)
    slot = torch.tensor([0], device=DEVICE)
    board.reset(slot, torch.tensor([[1], [0]], device=DEVICE))
    logits = torch.tensor([0.0, 0.0, 0.3, 0.4, 0.2, 0.1], device=DEVICE).log().expand(3, 6).contiguous()
    board.advance(logits, 1, None)
    assert board.token[0].tolist() == [3, 4, 5]
    assert not board.done[0]
    board.advance(logits, 1, None)
    assert board.done[0]
    [found] = board.results(board.taken(slot, 4).cpu(), 4)
    assert [(h.tokens, h.finish_reason) for h in found] == [([], "eos"), ([3], "eos"), ([4], "length")]
    assert [h.score for h in found] == pytest.approx([math.log(0.3), math.log(0.12), math.log(0.2)])


def test_ancestors_follow_the_parents() -> None:
    """What lies at place s of hypothesis j was put there by the hypothesis that j descends from at step s."""
    search = searches.build(Part("beam", {"size": 3}))
    tables = Tables(torch.randint(2**31, ()).item(), 1, 8)
    board = device_search.board(search, 1, 8, 8, DEVICE, kernels)
    assert isinstance(board, BeamBoard)
    device_search.prepare(board, search)
    board.reset(torch.tensor([0], device=DEVICE), torch.full((2, 1), 7, device=DEVICE))
    ancestry = torch.zeros(1, 3, 8, dtype=torch.int16, device=DEVICE)
    number, lines = torch.zeros(1, 3, dtype=torch.long, device=DEVICE), [[], [], []]
    for _ in range(3):
        number = tables.after(number, board.token[:1].long())
        board.advance(tables.logits[:, number[0]][0], 1, ancestry)
        parents = board.parent[0].tolist()
        lines = [[*lines[p], p] for p in parents]
        number = number.gather(1, board.parent[:1].long())
    assert ancestry[0, :, :3].tolist() == lines


# -- which searches are served -----------------------------------------------------------------------------------------


def test_only_searches_that_a_board_does_are_served() -> None:
    yes = [Part("greedy"), Part("beam"), Part("beam", {"stop": "exact", "length": Part("gnmt")})]
    no = [Part("beam", {"coverage": 0.2}), Part("beam", {"ending": "shrink"}), Part("sample"), Part("diverse")]
    assert all(device_search.serves(searches.build(part)) for part in yes)
    assert not any(device_search.serves(searches.build(part)) for part in no)


def test_a_length_rule_that_is_no_factor_is_not_served() -> None:
    search: Any = searches.build(Part("beam"))
    search.rule = lambda log_p, n: log_p + 0.1 * n  # a reward for each word
    assert not device_search.serves(search)
