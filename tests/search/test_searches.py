"""What greedy and beam share, on hand-made tables; each search has a file of its own besides.

A table gives log p of the next token for every prefix. The state of its step function is a tree of tensors that lead
with (sentence, hypothesis): the prefix of each hypothesis as the number of its node in the tree of all prefixes, and
the sentence's own table, shared by its hypotheses.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dragoman.core.registry import Part
from dragoman.core.types import BOS, EOS, PAD, UNK, Batch, Capacity, Hypothesis
from dragoman.nn.decoders import decoders
from dragoman.nn.seq2seq import Seq2Seq
from dragoman.search import LogitsProcessor, Search, SearchConstraints, searches
from dragoman.search.scoring import length_rules

RULES = {
    "none": (Part("none"), lambda total, n: total),
    "mean": (Part("mean"), lambda total, n: total / n),
    "power": (Part("power", {"alpha": 0.5}), lambda total, n: total / math.sqrt(n)),
    "gnmt": (Part("gnmt", {"alpha": 0.6}), lambda total, n: total / ((5 + n) / 6) ** 0.6),
}


def greedy() -> Search:
    return searches.build(Part("greedy"))


def beam(size: int, rule: Part = RULES["mean"][0], **options: Any) -> Search:
    return searches.build(Part("beam", {"beam": size, "length_rule": rule, **options}))


# -- tables --------------------------------------------------------------------------------------------------------


@dataclass
class State:
    """Where each hypothesis stands."""

    node: Tensor  # (B, K): the root is 0, the child of n by token v is n V + v + 1
    rest: tuple[dict[str, Tensor], ...]  # the sentence's table (B, 1, nodes, V), and a count of steps (B, 1)


class Tables:
    """Some sentences, each with log p (nodes, V) for every prefix of at most `depth` tokens."""

    def __init__(self, log_p: Tensor, max_lengths: list[int], min_lengths: int = 0) -> None:
        self.log_p, self.max_lengths, self.min_lengths = log_p, max_lengths, min_lengths
        self.capacities: list[Capacity] = []

    def rows(self, rows: list[int]) -> Tables:
        return Tables(self.log_p[rows], [self.max_lengths[i] for i in rows], self.min_lengths)

    def start(self, capacity: Capacity) -> State:
        self.capacities.append(capacity)
        B = len(self.max_lengths)
        node = torch.full((B, capacity.hypotheses), -1)
        return State(node, ({"table": self.log_p[:, None], "steps": torch.zeros(B, 1, dtype=torch.long)},))

    @staticmethod
    def step(tokens: Tensor, state: State) -> tuple[Tensor, State]:
        [rest] = state.rest
        table = rest["table"][:, 0]  # (B, nodes, V)
        node = torch.where(rest["steps"] == 0, 0, state.node * table.shape[2] + tokens + 1)
        node = node.clamp(max=table.shape[1] - 1)  # a sentence that is done may be asked for more
        log_p = table.gather(1, node[..., None].expand(-1, -1, table.shape[2]))
        return log_p, State(node, ({"table": rest["table"], "steps": rest["steps"] + 1},))

    def run(self, search: Search, rules: tuple[LogitsProcessor, ...] = ()) -> list[list[Hypothesis]]:
        return search(
            self.step, self.start, SearchConstraints(torch.tensor(self.max_lengths), self.min_lengths, processors=rules)
        )

    def log_probs(self, i: int, tokens: tuple[int, ...]) -> list[float]:
        """log p of each token of a sequence, read from the table along its path."""
        node, found, V = 0, [], self.log_p.shape[2]
        for token in tokens:
            found.append(self.log_p[i, node, token].item())
            node = node * V + token + 1
        return found

    def ended(self, i: int) -> dict[tuple[int, ...], list[float]]:
        """Every sequence that ends within the limits, with its log-probabilities, </s> included."""
        ordinary = [v for v in range(self.log_p.shape[2]) if v not in (PAD, BOS, EOS)]
        return {
            tokens: self.log_probs(i, (*tokens, EOS))
            for n in range(self.min_lengths, self.max_lengths[i] + 1)
            for tokens in itertools.product(ordinary, repeat=n)
        }


def random_tables(
    seed: int, B: int, V: int, max_lengths: list[int], min_lengths: int = 0, sharp: float = 1.5
) -> Tables:
    generator = torch.Generator().manual_seed(seed)
    nodes = sum(V**n for n in range(max(max_lengths) + 2))
    return Tables((sharp * torch.randn(B, nodes, V, generator=generator)).log_softmax(-1), max_lengths, min_lengths)


def told(results: list[list[Hypothesis]]) -> list[list[tuple[Any, ...]]]:
    return [[(tuple(h.tokens), h.finish_reason, tuple(h.log_probs), h.score) for h in best] for best in results]


SEEDS = st.integers(0, 2**32)


# -- against everything there is -----------------------------------------------------------------------------------


def test_every_length_rule_is_tested() -> None:
    assert set(length_rules.names) == set(RULES)


@given(seed=SEEDS, size=st.integers(1, 6))
def test_a_narrow_beam_finds_no_more_than_there_is_and_scores_it_right(seed: int, size: int) -> None:
    tables = random_tables(seed, 2, 6, [3, 2])
    for rule, formula in RULES.values():
        for i, found in enumerate(tables.run(beam(size, rule))):
            everything = tables.ended(i)
            assert 1 <= len(found) <= size
            assert len({(tuple(h.tokens), h.finish_reason) for h in found}) == len(found)
            for h in found:
                tokens = tuple(h.tokens)
                logs = everything[tokens] if h.finish_reason == "eos" else tables.log_probs(i, tokens)
                assert h.log_probs == pytest.approx(logs)
                assert h.score == pytest.approx(formula(sum(h.log_probs), max(len(h.log_probs), 1)))
            ended = [h.score for h in found if h.finish_reason == "eos"]
            assert ended == sorted(ended, reverse=True)


# -- SPEC G5 -------------------------------------------------------------------------------------------------------

YES, OK = 4, 5


def trap() -> Tables:
    """Greedy takes `yes` first, .5 > .4; the best string is `ok ok`.

    <s> ─┬─ yes .5 ─┬─ yes .4 ── </s> 1     .5 · .4 = .20
         │          ├─ ok  .3 ── </s> 1     .5 · .3 = .15
         │          └─ </s> .3              .5 · .3 = .15
         ├─ ok  .4 ─┬─ ok  .7 ── </s> 1     .4 · .7 = .28
         │          ├─ yes .2 ── </s> 1     .4 · .2 = .08
         │          └─ </s> .1              .4 · .1 = .04
         └─ </s> .1                         .1
    """
    V = 6
    table = torch.zeros(sum(V**n for n in range(4)), V)
    root, after_yes, after_ok = 0, YES + 1, OK + 1
    table[:, EOS] = 1.0
    table[root, [YES, OK, EOS]] = torch.tensor([0.5, 0.4, 0.1])
    table[after_yes, [YES, OK, EOS]] = torch.tensor([0.4, 0.3, 0.3])
    table[after_ok, [YES, OK, EOS]] = torch.tensor([0.2, 0.7, 0.1])
    return Tables(table.log()[None], [2])


def test_greedy_walks_into_the_classic_trap() -> None:
    [[found]] = trap().run(greedy())
    assert found.tokens == [YES, YES]
    assert found.total == pytest.approx(math.log(0.20))


@pytest.mark.parametrize("size", [2, 3, 8])
@pytest.mark.parametrize("rule", ["none", "mean"])
def test_a_beam_of_two_avoids_the_classic_trap(size: int, rule: str) -> None:
    [[best, *_]] = trap().run(beam(size, RULES[rule][0]))
    assert best.tokens == [OK, OK]
    assert best.total == pytest.approx(math.log(0.28))
    assert best.finish_reason == "eos"


# -- greedy and beam -----------------------------------------------------------------------------------------------


@given(seed=SEEDS)
def test_greedy_takes_the_best_token_at_each_step(seed: int) -> None:
    tables = random_tables(seed, 1, 7, [3])
    [[found]] = tables.run(greedy())
    tokens: tuple[int, ...] = ()
    while True:
        choices = {v: tables.log_probs(0, (*tokens, v))[-1] for v in range(7) if v not in (PAD, BOS)}
        best = max(choices, key=lambda v: choices[v])
        if best == EOS or len(tokens) == 3:
            break
        tokens = (*tokens, best)
    assert tuple(found.tokens) == tokens
    assert found.finish_reason == ("eos" if best == EOS else "length")
    assert found.log_probs == pytest.approx(tables.log_probs(0, (*tokens, EOS) if best == EOS else tokens))
    assert found.score == pytest.approx(sum(found.log_probs))


@given(seed=SEEDS, min_lengths=st.integers(0, 2))
def test_a_beam_of_one_is_greedy(seed: int, min_lengths: int) -> None:
    tables = random_tables(seed, 5, 7, [3, 1, 2, 3, 2], min_lengths)
    for rule, _ in RULES.values():
        for [one], [other] in zip(tables.run(greedy()), tables.run(beam(1, rule, patience=1.0)), strict=True):
            assert (one.tokens, one.finish_reason) == (other.tokens, other.finish_reason)
            assert one.log_probs == pytest.approx(other.log_probs)


@given(seed=SEEDS, min_lengths=st.integers(0, 2))
def test_where_nothing_may_come_next_greedy_is_stuck_and_a_beam_of_one_has_no_result(
    seed: int, min_lengths: int
) -> None:
    tables = random_tables(seed, 5, 5, [3, 1, 2, 3, 0], min_lengths)
    gone = torch.rand(tables.log_p.shape, generator=torch.Generator().manual_seed(seed)) < 0.5
    tables.log_p[gone] = -math.inf
    search = beam(1, patience=1.0)
    for i, ([one], others) in enumerate(zip(tables.run(greedy()), tables.run(search), strict=True)):
        if one.finish_reason != "no_valid_token":
            assert [(h.tokens, h.finish_reason, h.log_probs) for h in others] == [
                (one.tokens, one.finish_reason, one.log_probs)
            ]
            continue
        assert others == []
        assert len(one.log_probs) == len(one.tokens) < tables.max_lengths[i]
        next_ones = [tables.log_probs(i, (*one.tokens, v))[-1] for v in range(5) if v not in (PAD, BOS)]
        if len(one.tokens) < min_lengths:
            next_ones[0] = -math.inf  # </s>
        assert set(next_ones) == {-math.inf}


def test_what_finished_before_nothing_was_allowed_stays() -> None:
    def nothing_after_one(log_p: Tensor, history: Tensor, rows: Tensor) -> Tensor:
        late = (history.shape[2] > 1) & (rows != 1)
        return log_p.masked_fill(late[:, None, None], -math.inf)

    table = torch.full((sum(5**n for n in range(6)), 5), -math.inf)
    table[:, [EOS, UNK, 4]] = torch.tensor([0.2, 0.3, 0.5]).log()
    tables = Tables(table.expand(2, -1, -1), [3, 3])
    stuck, free = tables.run(beam(3, Part("none")), (nothing_after_one,))
    # .2 was the third best; all other ways end nowhere
    assert [(h.tokens, h.finish_reason) for h in stuck] == [([], "eos")]
    assert told([free]) == told(tables.rows([1]).run(beam(3, Part("none"))))
    [[greedy_stuck], [greedy_free]] = tables.run(greedy(), (nothing_after_one,))
    assert (greedy_stuck.tokens, greedy_stuck.finish_reason) == ([4, 4], "no_valid_token")
    assert (greedy_free.tokens, greedy_free.finish_reason) == ([4, 4, 4], "length")


# -- independence --------------------------------------------------------------------------------------------------


@given(
    seed=SEEDS,
    rows=st.permutations(range(6)),
    size=st.integers(0, 5),
    rule=st.sampled_from(sorted(RULES)),
    min_lengths=st.integers(0, 2),
)
@settings(max_examples=30)
def test_a_result_is_the_same_alone_in_any_batch_and_in_any_order(
    seed: int, rows: list[int], size: int, rule: str, min_lengths: int
) -> None:
    tables = random_tables(seed, 6, 6, [3, 1, 2, 4, 1, 3], min_lengths, sharp=2.5)
    search = beam(size, RULES[rule][0]) if size else greedy()
    together = told(tables.run(search))
    assert told(tables.rows(rows).run(search)) == [together[i] for i in rows]
    assert told(tables.rows(rows[:3]).run(search)) == [together[i] for i in rows[:3]]
    for i in range(6):
        assert told(tables.rows([i]).run(search)) == [together[i]]


@pytest.mark.parametrize("search", [greedy(), beam(1), beam(4)])
def test_a_search_asks_for_the_capacity_it_needs(search: Search) -> None:
    tables = random_tables(1, 2, 6, [3, 2])
    tables.run(search)
    assert tables.capacities == [Capacity(search.num_hypotheses, 4)]


# -- limits and bans -----------------------------------------------------------------------------------------------


def never_ending(V: int, max_lengths: list[int], min_lengths: int = 0) -> Tables:
    """</s> has no chance at all; padding and <s> have the best."""
    nodes = sum(V**n for n in range(max(max_lengths) + 2))
    log_p = torch.randn(len(max_lengths), nodes, V)
    log_p[..., [PAD, BOS]] = 9.0
    log_p[..., EOS] = -math.inf
    return Tables(log_p.log_softmax(-1), max_lengths, min_lengths)


@pytest.mark.parametrize("search", [greedy(), beam(1), beam(2), beam(5)], ids=["greedy", "beam 1", "beam 2", "beam 5"])
def test_what_does_not_end_is_cut_at_its_limit_and_says_so(search: Search) -> None:
    tables = never_ending(7, [3, 1, 2])
    for i, found in enumerate(tables.run(search)):
        assert found
        for h in found:
            assert len(h.tokens) == tables.max_lengths[i] == len(h.log_probs)
            assert h.finish_reason == "length"
            assert h.log_probs == pytest.approx(tables.log_probs(i, tuple(h.tokens)))
        assert [h.score for h in found] == sorted((h.score for h in found), reverse=True)


@given(
    seed=SEEDS,
    size=st.integers(0, 4),
    min_lengths=st.integers(0, 3),
    max_lengths=st.lists(st.integers(1, 4), min_size=1, max_size=4),
)
def test_lengths_stay_within_the_limits_and_padding_never_comes_out(
    seed: int, size: int, min_lengths: int, max_lengths: list[int]
) -> None:
    tables = random_tables(seed, len(max_lengths), 6, max_lengths, min_lengths)
    tables.log_p[..., [PAD, BOS]] = 5.0  # however tempting
    for i, found in enumerate(tables.run(beam(size) if size else greedy())):
        assert found
        for h in found:
            assert not {PAD, BOS, EOS} & set(h.tokens)
            assert len(h.tokens) <= max_lengths[i]
            assert h.finish_reason in ("eos", "length")
            if h.finish_reason == "eos":
                assert len(h.tokens) >= min_lengths
                assert len(h.log_probs) == len(h.tokens) + 1
            else:
                assert len(h.tokens) == max_lengths[i]
                assert len(h.log_probs) == len(h.tokens)


def test_the_end_may_come_exactly_at_the_limit() -> None:
    table = torch.full((sum(5**n for n in range(4)), 5), -9.0)
    table[:, UNK] = 1.0
    node = 0
    for _ in range(2):
        node = node * 5 + UNK + 1
    table[node, EOS] = 9.0
    tables = Tables(table.log_softmax(-1)[None], [2])
    for search in (greedy(), beam(1), beam(3)):
        [[best, *_]] = tables.run(search)
        assert (best.tokens, best.finish_reason) == ([UNK, UNK], "eos")


def test_what_ended_comes_before_what_was_cut() -> None:
    """After `4` the end is likely, after `5` it is impossible: the second is cut, and fills the free place."""
    table = torch.full((sum(6**n for n in range(3)), 6), -math.inf)
    table[0, [4, 5]] = torch.tensor([0.1, 0.9]).log()
    table[4 + 1, EOS] = 0.0
    table[5 + 1, 5] = 0.0
    [found] = Tables(table[None], [1]).run(beam(2))
    assert [(h.tokens, h.finish_reason) for h in found] == [([4], "eos"), ([5], "length")]
    assert found[0].score == pytest.approx(math.log(0.1) / 2)
    assert found[1].score == pytest.approx(math.log(0.9))


def test_the_beam_goes_on_while_something_better_lives() -> None:
    """Two short results end first; under the mean a longer one, still alive, beats them."""
    table = torch.full((sum(5**n for n in range(5)), 5), -math.inf)
    table[0, [EOS, 3, 4]] = torch.tensor([0.4, 0.15, 0.45]).log()
    for n in range(1, 4):
        node = 0
        for _ in range(n):
            node = node * 5 + 4 + 1
        table[node, [4, EOS]] = torch.tensor([0.95, 0.05]).log() if n < 3 else torch.tensor([0.01, 0.99]).log()
    table[3 + 1, EOS] = 0.0
    [[best, *_]] = Tables(table[None], [3]).run(beam(2, Part("mean"), early_stopping=False))
    assert best.tokens == [4, 4, 4]


# -- length rules --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RULES)
def test_a_length_rule_is_its_formula_for_numbers_and_tensors(name: str) -> None:
    part, formula = RULES[name]
    rule = length_rules.build(part)
    for total, n in [(-3.0, 1), (-7.5, 4), (0.0, 9)]:
        assert rule(total, float(n)) == pytest.approx(formula(total, n))
    totals, lengths = torch.tensor([-3.0, -7.5]).double(), torch.tensor([1.0, 4.0]).double()
    expected = [formula(a, b) for a, b in zip(totals.tolist(), lengths.tolist(), strict=True)]
    assert rule(totals, lengths).tolist() == pytest.approx(expected)


def test_power_lies_between_none_and_mean() -> None:
    for alpha, name in {0.0: "none", 1.0: "mean"}.items():
        assert length_rules.build(Part("power", {"alpha": alpha}))(-3.0, 4.0) == RULES[name][1](-3.0, 4.0)


def test_the_tokens_of_a_prompt_do_not_count() -> None:
    rule, plain = length_rules.build(Part("power", {"uncounted": 3})), length_rules.build(Part("power"))
    for n in (4, 9):
        assert rule(-3.0, n) == plain(-3.0, n - 3)
    assert rule(-3.0, 2) == -3.0  # within the prompt
    totals, lengths = torch.tensor([-3.0, -3.0]).double(), torch.tensor([2.0, 9.0]).double()
    assert rule(totals, lengths).tolist() == [-3.0, -0.5]


# -- a real model --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("decoder", decoders.names)
@pytest.mark.parametrize("size", [0, 1, 4])
@torch.no_grad()
def test_what_a_search_says_of_a_model_is_what_the_model_says_of_the_result(decoder: str, size: int) -> None:
    """A decoder whose state was reordered, compacted or continued wrongly gives other numbers than teacher forcing."""
    options = {"layers": 2, "heads": 2} if decoder == "transformer" else {}
    model = Seq2Seq(8, 8, width=8, encoder=Part("rnn"), decoder=Part(decoder, options)).eval().double()
    for p in model.parameters():
        p.add_(0.5 * torch.randn_like(p))
    source, lengths = torch.randint(4, 8, (5, 6)), torch.tensor([6, 1, 3, 5, 2])
    memory = model.encode(source, lengths)
    results = (beam(size) if size else greedy())(
        model.step, lambda capacity: model.start(memory, capacity), SearchConstraints(torch.tensor([9, 3, 12, 6, 1]))
    )
    for i, found in enumerate(results):
        assert found
        for h in found:
            target = torch.tensor([[BOS, *h.tokens, EOS]])
            n = int(lengths[i])
            pair = Batch(source[i : i + 1, :n], lengths[i : i + 1], target, torch.tensor([target.shape[1]]))
            forced = model.token_log_probs(pair)[0].tolist()
            assert h.log_probs == pytest.approx(forced[: len(h.log_probs)], rel=1e-5, abs=1e-4)
