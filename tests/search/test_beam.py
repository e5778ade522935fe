"""The beam against an enumeration of everything, and against beams over plain lists that look at every extension."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dragoman.core.errors import UserError
from dragoman.core.registry import Part
from dragoman.core.types import BOS, EOS, PAD, Capacity, Hypothesis
from dragoman.nn.attention import record_attention
from dragoman.nn.seq2seq import Seq2Seq
from dragoman.search import Search, SearchConstraints, searches
from dragoman.search.force_phrases import ForcePhrasesProcessor
from dragoman.search.logits_processors import PrefixProcessor

from .test_exhaustive import assert_same, everything
from .test_searches import RULES, SEEDS, State, Tables, random_tables

Tokens = tuple[int, ...]
Found = list[tuple[Tokens, str, float]]  # the tokens, how they ended, the score

ALPHAS = {
    **RULES,
    "power 2": (Part("power", {"alpha": 2.0}), lambda total, n: total / n**2),
    "power -1": (Part("power", {"alpha": -1.0}), lambda total, n: total * n),
    "gnmt 1.5": (Part("gnmt", {"alpha": 1.5}), lambda total, n: total / ((5 + n) / 6) ** 1.5),
}


def beam(**options: Any) -> Search:
    return searches.build(Part("beam", options))


def plain_beam(
    tables: Tables,
    i: int,
    k: int,
    formula: Callable[[float, float], float],
    *,
    early_stopping: bool | str = False,
    patience: float = 1.0,
    shrink: bool = False,
    each: int | None = None,
    bonus: Callable[[Tokens], float] = lambda y: 0.0,
    kept: list[list[Tokens]] | None = None,
) -> Found:
    """A beam over lists. `each`: how many extensions of a beginning are looked at; `bonus` is added to a score."""

    def total(y: Tokens) -> float:
        return sum(tables.log_probs(i, y))

    def score(y: Tokens) -> float:
        return formula(total(y), max(len(y), 1)) + bonus(y)

    live: list[Tokens] = [()]
    pool: list[Tokens] = []
    cut: list[Tokens] = []
    finished = 0
    for t in range(tables.max_lengths[i] + 1):
        places = k - len(pool) if shrink else k
        every: list[Tokens] = []
        for y in live:
            longer = [(*y, v) for v in range(tables.log_p.shape[2]) if v not in (PAD, BOS)]
            may = [z for z in longer if total(z) > -math.inf and (z[-1] != EOS or t >= tables.min_lengths)]
            every += sorted(may, key=total, reverse=True)[:each]
        every.sort(key=total, reverse=True)
        ending = [y for y in every[:places] if y[-1] == EOS]
        pool = sorted(pool + ending, key=score, reverse=True)
        finished += len(ending)
        pool = pool[:k]
        if t == tables.max_lengths[i]:
            cut = sorted((y for y in live if (*y, EOS) not in ending), key=score, reverse=True)
            break
        live = [y for y in (every[:places] if shrink else every) if y[-1] != EOS][:k]
        if kept is not None:
            kept.append(live)
        if not live:
            break
        full = len(pool) == k and not shrink
        if early_stopping is True and finished >= round(patience * k):
            break
        if full and early_stopping is False and formula(total(live[0]), t + 1) <= score(pool[-1]):
            break
    return [*((y[:-1], "eos", score(y)) for y in pool), *((y, "length", score(y)) for y in cut)][:k]


def assert_found(found: list[Hypothesis], expected: Found) -> None:
    assert [(tuple(h.tokens), h.finish_reason) for h in found] == [one[:2] for one in expected]
    assert [h.score for h in found] == pytest.approx([score for *_, score in expected], rel=1e-9, abs=1e-9)


def competing(seed: int, max_lengths: list[int], min_lengths: int = 0) -> Tables:
    """Random tables in which ends compete with beginnings; in some, some ways are closed."""
    tables = random_tables(seed, len(max_lengths), 7, max_lengths, min_lengths)
    tables.log_p[..., EOS] += 1.0 - 0.5 * (seed % 3)
    tables.log_p = tables.log_p.log_softmax(-1)  # no log p above 0, or an exact stop could not know
    if seed % 4 == 0:
        gone = torch.rand(tables.log_p.shape, generator=torch.Generator().manual_seed(seed)) < 0.3
        tables.log_p[gone] = -math.inf
    return tables


# -- against everything there is -----------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ALPHAS)
@given(
    seed=SEEDS,
    max_lengths=st.lists(st.integers(0, 5), min_size=2, max_size=2),
    min_lengths=st.integers(0, 3) | st.lists(st.integers(0, 3), min_size=2, max_size=2),
    closed=st.booleans(),
)
@settings(max_examples=10)
def test_a_beam_wide_enough_finds_everything_in_order(
    rule: str, seed: int, max_lengths: list[int], min_lengths: int | list[int], closed: bool
) -> None:
    part, formula = ALPHAS[rule]
    tables = random_tables(seed, 2, 5, max_lengths)
    if closed:
        gone = torch.rand(tables.log_p.shape, generator=torch.Generator().manual_seed(seed)) < 0.2
        tables.log_p[gone] = -math.inf
    size = 2**5 * 3 + 2**6  # every extension of the longest prefixes, and every result
    limits = SearchConstraints(
        torch.tensor(max_lengths), torch.tensor(min_lengths) if isinstance(min_lengths, list) else min_lengths
    )
    results = beam(beam=size, length_rule=part, early_stopping="never")(tables.step, tables.start, limits)
    for i, found in enumerate(results):
        least = min_lengths[i] if isinstance(min_lengths, list) else min_lengths
        told = [(tuple(h.tokens), h.finish_reason, h.log_probs, h.score) for h in found]
        assert_same(told, everything(tables, i, formula, least))


@given(seed=SEEDS, prefixes=st.lists(st.lists(st.integers(3, 4), max_size=4), min_size=3, max_size=3))
@settings(max_examples=15)
def test_a_wide_beam_finds_everything_that_begins_as_it_must(seed: int, prefixes: list[list[int]]) -> None:
    tables = random_tables(seed, 3, 5, [4, 3, 2])
    for i, found in enumerate(tables.run(beam(beam=80, early_stopping="never"), (PrefixProcessor(prefixes),))):
        told = [(tuple(h.tokens), h.finish_reason, h.log_probs, h.score) for h in found]

        def may(y: Tokens, forced: tuple[int, ...] = tuple(prefixes[i])) -> bool:
            return all(a == b for a, b in zip(y, forced, strict=False))

        assert_same(told, everything(tables, i, RULES["mean"][1], 0, may))


# -- against a beam over lists -------------------------------------------------------------------------------------

NARROW = {
    "seed": SEEDS,
    "size": st.integers(1, 5),
    "rule": st.sampled_from(sorted(ALPHAS)),
    "min_lengths": st.integers(0, 2),
}


@given(**NARROW)
@settings(max_examples=25)
def test_a_narrow_beam_keeps_what_a_plain_one_keeps(seed: int, size: int, rule: str, min_lengths: int) -> None:
    """The k + 1 best extensions of each beginning are enough: k others, should one be </s>."""
    part, formula = ALPHAS[rule]
    tables = competing(seed, [4, 2, 3], min_lengths)
    for i, found in enumerate(tables.run(beam(beam=size, length_rule=part, early_stopping=False))):
        assert_found(found, plain_beam(tables, i, size, formula))
        assert_found(found, plain_beam(tables, i, size, formula, each=size + 1))


@given(**NARROW)
@settings(max_examples=30)
def test_a_beam_that_never_stops_early_finds_what_a_search_up_to_the_limit_finds(
    seed: int, size: int, rule: str, min_lengths: int
) -> None:
    part, formula = ALPHAS[rule]
    tables = competing(seed, [4, 2, 4], min_lengths)
    for i, found in enumerate(tables.run(beam(beam=size, length_rule=part, early_stopping="never"))):
        assert_found(found, plain_beam(tables, i, size, formula, early_stopping="never"))


def test_early_stopping_never_waits_for_what_false_misses_and_no_longer() -> None:
    """</s> at once has −1; B has −2 and is then certain. Under the mean B B reaches −2/3 > −1, but B has −2/1 now.

    <s> ─┬─ </s> −1                A beam of one keeps the best that has not ended beside what has.
         └─ B −2 ── B −2 ── </s> −2
    """
    words, steps = Words({"</s>": -1.0, "B": -2.0, "B B": -2.0, "B B </s>": -2.0}), []

    def step(tokens: Tensor, node: Tensor) -> tuple[Tensor, Tensor]:
        steps.append(tokens)
        return words.step(tokens, node)

    def found(max_lengths: int, **options: Any) -> tuple[int, int]:
        """The tokens of the best, and the steps it took."""
        steps.clear()
        [[best]] = beam(beam=1, **options)(step, words.start, SearchConstraints(torch.tensor([max_lengths])))
        return len(best.tokens), len(steps)

    assert found(2, early_stopping=False) == (0, 1)
    assert found(2, early_stopping="never") == (2, 3)
    assert found(1, early_stopping="never") == (0, 1)  # −2/2 is no more than −1


def test_early_stopping_never_knows_that_a_negative_alpha_prefers_to_end_now() -> None:
    """log p · n: C D </s> has −1.5 · 3 > −3 · 2 of C </s>; up to the maximum length it would have −1.5 · 9.

    <s> ─┬─ </s> −1
         └─ C −1.2 ─┬─ </s> −3
                    └─ D −1.5 ── </s> −1.5
    """
    words = Words({"</s>": -1.0, "C": -1.2, "C </s>": -3.0, "C D": -1.5, "C D </s>": -1.5})
    search = beam(beam=2, early_stopping="never", length_rule=ALPHAS["power -1"][0])
    [found] = search(words.step, words.start, SearchConstraints(torch.tensor([8])))
    assert [h.score for h in found] == pytest.approx([-1.0, -4.5])


@given(**NARROW)
@settings(max_examples=30)
def test_early_stopping_true_stops_as_soon_as_a_whole_beam_has_finished(
    seed: int, size: int, rule: str, min_lengths: int
) -> None:
    part, formula = ALPHAS[rule]
    tables = competing(seed, [4, 2, 4], min_lengths)
    for i, found in enumerate(tables.run(beam(beam=size, length_rule=part, early_stopping=True, patience=1.0))):
        assert_found(found, plain_beam(tables, i, size, formula, early_stopping=True))


@given(**NARROW, patience=st.floats(1.0, 4.0))
@settings(max_examples=30)
def test_a_patient_beam_waits_until_more_have_finished_and_returns_the_best(
    seed: int, size: int, rule: str, min_lengths: int, patience: float
) -> None:
    part, formula = ALPHAS[rule]
    tables = competing(seed, [5, 2, 4], min_lengths)
    search = beam(beam=size, length_rule=part, early_stopping=True, patience=patience)
    for i, found in enumerate(tables.run(search)):
        assert_found(found, plain_beam(tables, i, size, formula, early_stopping=True, patience=patience))


@given(**NARROW)
@settings(max_examples=20)
def test_a_beam_waits_by_default_until_twice_as_many_have_finished(
    seed: int, size: int, rule: str, min_lengths: int
) -> None:
    part, formula = ALPHAS[rule]
    tables = competing(seed, [5, 2, 4], min_lengths)
    for i, found in enumerate(tables.run(beam(beam=size, length_rule=part))):
        assert_found(found, plain_beam(tables, i, size, formula, early_stopping=True, patience=2.0))


@pytest.mark.parametrize(
    ("options", "tokens", "steps"),
    [
        ({"patience": 1.0}, [0, 1], 2),
        ({"patience": 1.5}, [2, 0], 3),
        ({}, [2, 3], 4),
        ({"early_stopping": False}, [2, 0], 3),
        ({"early_stopping": "never"}, [2, 3], 4),
    ],
    ids=str,
)
def test_each_kind_of_early_stopping_takes_its_number_of_steps(
    options: dict[str, Any], tokens: list[int], steps: int
) -> None:
    """A beam of 2 under the mean, with log p of each prefix and the score of each finished hypothesis.

    <s> ─┬─ </s> −1.5 = −1.50
         └─ B −1.4 ─┬─ </s> −3.2 = −1.60              two have finished: a patience of 1 stops
                    └─ C −2.8 ─┬─ </s> −3.3 = −1.10   before it, C had −2.8/2 > −1.60: `false` continued; a patience
                               │                      of 1.5 stops
                               └─ D −4.6 ── </s> −4.6 = −1.15
                                                      D has −4.6/3 < −1.50: `false` stops; but −4.6/4 can beat it
    """
    words = Words(
        {"</s>": -1.5, "B": -1.4, "B </s>": -3.2, "B C": -2.8, "B C </s>": -3.3, "B C D": -4.6, "B C D </s>": -4.6}
    )
    taken = []

    def step(tokens: Tensor, node: Tensor) -> tuple[Tensor, Tensor]:
        taken.append(tokens)
        return words.step(tokens, node)

    search = beam(beam=2, **options)
    [found] = search(step, words.start, SearchConstraints(torch.tensor([9])))
    assert [len(h.tokens) for h in found] == tokens
    assert len(taken) == steps


@given(**NARROW)
@settings(max_examples=25)
def test_a_shrinking_beam_loses_a_place_with_each_that_ends(seed: int, size: int, rule: str, min_lengths: int) -> None:
    """Here the k best extensions of each beginning are enough: what is not among the k best is never kept."""
    part, formula = ALPHAS[rule]
    tables = competing(seed, [4, 2, 4], min_lengths)
    for i, found in enumerate(tables.run(beam(beam=size, length_rule=part, finished_policy="shrink"))):
        assert_found(found, plain_beam(tables, i, size, formula, shrink=True))
        assert_found(found, plain_beam(tables, i, size, formula, shrink=True, each=size))
        if seed % 4:
            assert len(found) == size


# -- coverage ------------------------------------------------------------------------------------------------------


@dataclass
class Attending:
    """The state of a table that says where it looks: one column of weights for each place of the source."""

    inside: State
    weights: Tensor  # (B, 1, nodes, S)
    attention: Tensor | None = None  # (B, K, S)


class Looks(Tables):
    """Tables with weights (nodes, S) for each sentence, of which the first `lengths` places are the source, then 1s."""

    weights: Tensor
    lengths: list[int]

    def start(self, capacity: Capacity) -> Attending:  # type: ignore[override]
        return Attending(super().start(capacity), self.weights[:, None])

    @staticmethod
    def step(tokens: Tensor, state: Attending) -> tuple[Tensor, Attending]:  # type: ignore[override]
        log_p, inside = Tables.step(tokens, state.inside)
        weights = state.weights[:, 0]
        attention = weights.gather(1, inside.node[..., None].expand(-1, -1, weights.shape[2]))
        return log_p, replace(state, inside=inside, attention=attention)

    def log_coverage(self, i: int, y: Tokens) -> float:
        """Σ_j log min(Σ_t a_tj, 1), with 1e-6 for nothing."""
        sums = [0.0] * self.lengths[i]
        node, V = 0, self.log_p.shape[2]
        for token in y:
            for j in range(self.lengths[i]):
                sums[j] += self.weights[i, node, j].item()
            node = node * V + token + 1
        return sum(math.log(min(max(x, 1e-6), 1.0)) for x in sums)


def attending(seed: int, max_lengths: list[int], lengths: list[int]) -> Looks:
    plain = competing(seed, max_lengths)
    tables = Looks(plain.log_p, max_lengths)
    generator = torch.Generator().manual_seed(seed)
    noise = 2 * torch.randn(*plain.log_p.shape[:2], max(lengths), generator=generator)
    real = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None, None]
    tables.weights = noise.masked_fill(~real, -math.inf).softmax(-1).masked_fill(~real, 1.0)
    tables.lengths = lengths
    return tables


@given(seed=SEEDS, size=st.integers(1, 4), rule=st.sampled_from(sorted(RULES)), shrink=st.booleans())
@settings(max_examples=30)
def test_coverage_counts_what_was_looked_at_and_padding_counts_for_nothing(
    seed: int, size: int, rule: str, shrink: bool
) -> None:
    part, formula = RULES[rule]
    tables = attending(seed, [3, 1, 4], [2, 4, 3])
    search = beam(
        beam=size,
        length_rule=part,
        coverage_penalty=0.7,
        early_stopping="never",
        finished_policy="shrink" if shrink else "collect",
    )
    for i, found in enumerate(tables.run(search)):
        expected = plain_beam(
            tables,
            i,
            size,
            formula,
            early_stopping="never",
            shrink=shrink,
            bonus=lambda y, i=i: 0.7 * tables.log_coverage(i, y),
        )
        assert [(tuple(h.tokens), h.finish_reason) for h in found] == [one[:2] for one in expected]
        assert [h.score for h in found] == pytest.approx([score for *_, score in expected], abs=1e-5)


def test_coverage_needs_a_step_that_looks() -> None:
    with pytest.raises(UserError, match="coverage"):
        competing(1, [2]).run(beam(coverage_penalty=0.1))


@pytest.mark.parametrize("decoder", ["rnn", "conv", "transformer"])
@torch.no_grad()
def test_the_weights_of_each_step_are_those_of_a_watched_pass_and_a_score_counts_them(decoder: str) -> None:
    model = Seq2Seq(8, 8, width=8, encoder=Part("rnn"), decoder=Part(decoder)).eval().double()
    for p in model.parameters():
        p.add_(0.5 * torch.randn_like(p))
    source, lengths = torch.randint(4, 8, (2, 4)), torch.tensor([4, 2])
    memory = model.encode(source, lengths)
    targets = torch.cat([torch.full((2, 3, 1), BOS), torch.randint(3, 8, (2, 3, 4))], -1)  # (B, K, T)
    state = model.start(memory, Capacity(3, 5), trace_attention=True)
    steps = []
    for t in range(5):
        _, state = model.step(targets[:, :, t], state)
        steps.append(state.attention)
    for k in range(3):
        with record_attention():
            whole = model.decode(targets[:, k], memory).attention
        assert whole is not None
        for i, n in enumerate(lengths):  # behind a source nothing is missed
            found = torch.stack([a[i, k, :n] for a in steps])
            torch.testing.assert_close(found, whole[i, :, :n], atol=1e-5, rtol=1e-4)
            torch.testing.assert_close(found.sum(-1), torch.ones(5).double())

    search = beam(beam=3, length_rule=Part("none"), coverage_penalty=0.5)
    results = search(
        model.step,
        lambda room: model.start(memory, room, trace_attention=True),
        SearchConstraints(torch.tensor([5, 3])),
    )
    for i, n in enumerate(lengths):
        for h in results[i]:
            with record_attention():
                alone = model.encode(source[i : i + 1, :n], lengths[i : i + 1])
                a = model.decode(torch.tensor([[BOS, *h.tokens]]), alone).attention
            assert a is not None
            looked = a[0, : len(h.log_probs)].sum(0).clamp(1e-6, 1.0)  # (S,)
            assert h.score == pytest.approx(h.total + 0.5 * looked.log().sum().item(), abs=1e-3)


# -- the lectures' walks -------------------------------------------------------------------------------------------


class Words:
    """A tree of words with the log p of the whole beginning at each, as a table; what is not named is impossible."""

    def __init__(self, totals: dict[str, float]) -> None:
        words = sorted({word for beginning in totals for word in beginning.split()} - {"</s>"})
        self.ids = {"</s>": EOS, **{word: 4 + n for n, word in enumerate(words)}}
        self.names = {n: word for word, n in self.ids.items()}
        V = 4 + len(words)
        beginnings = {()} | {tuple(self.ids[w] for w in text.split()) for text in totals}
        number = {y: n for n, y in enumerate(sorted(beginnings, key=len))}
        self.log_p = torch.full((len(number), V), -math.inf, dtype=torch.float64)
        self.next = torch.zeros(len(number), V, dtype=torch.long)
        for text, total in totals.items():
            *before, last = (self.ids[word] for word in text.split())
            self.log_p[number[tuple(before)], last] = total - totals.get(" ".join(text.split()[:-1]), 0.0)
            self.next[number[tuple(before)], last] = number[(*before, last)]

    def step(self, tokens: Tensor, node: Tensor) -> tuple[Tensor, Tensor]:
        node = torch.where(tokens == BOS, 0, self.next[node, tokens])
        return self.log_p[node], node

    @staticmethod
    def start(capacity: Capacity) -> Tensor:
        return torch.zeros(1, capacity.hypotheses, dtype=torch.long)

    def walk(self, max_lengths: int) -> tuple[list[str], list[set[str]]]:
        """What a beam of 2 finds, best first, and what it keeps at each step."""
        traces: dict[int, list[dict[str, Any]]] = {}
        limits = SearchConstraints(torch.tensor([max_lengths]), traces=traces)
        [found] = beam(beam=2)(self.step, self.start, limits)
        texts, kept = {0: ""}, [set[str]() for _ in range(max_lengths + 1)]
        for entry in traces[0]:
            texts[entry["id"]] = f"{texts[entry['parent']]} {self.names[entry['token']]}".strip()
            if entry["fate"] == "kept":
                kept[entry["step"]].add(texts[entry["id"]])
        return [" ".join(self.names[token] for token in h.tokens) for h in found], kept


def test_the_green_witch_arrived() -> None:
    """A beam of 2 keeps {arrived, the}, then {the green, the witch}: nothing that begins with `arrived` lives on.

    <s> ─┬─ arrived −1.6 ─┬─ the   −3.9
         │                └─ witch −3.7
         └─ the     −0.9 ─┬─ green −1.6 ─┬─ witch −1.8 ─┬─ arrived −2.0 ── </s> −2.1
                          │              │              └─ who     −4.0
                          │              └─ mage  −4.1
                          └─ witch −2.1 ─┬─ arrived −2.8 ── </s> −3.0
                                         └─ who     −3.6
    """
    words = Words(
        {
            "arrived": -1.6,
            "the": -0.9,
            "arrived the": -3.9,
            "arrived witch": -3.7,
            "the green": -1.6,
            "the witch": -2.1,
            "the green witch": -1.8,
            "the green mage": -4.1,
            "the witch arrived": -2.8,
            "the witch who": -3.6,
            "the green witch arrived": -2.0,
            "the green witch who": -4.0,
            "the witch arrived </s>": -3.0,
            "the green witch arrived </s>": -2.1,
        }
    )
    found, kept = words.walk(5)
    assert kept[0] == {"arrived", "the"}
    assert kept[1] == {"the green", "the witch"}
    assert kept[2] == {"the green witch", "the witch arrived"}
    assert found == ["the green witch arrived", "the witch arrived"]


def test_he_hit_me_with_a_pie() -> None:
    """A beam of 2, with the log p of each beginning; * is kept.

    he −0.7* ─┬─ hit −1.7* ─┬─ a  −2.8* ─┬─ tart −4.0
              │             │            └─ pie  −3.4* ─┬─ with −4.5
              │             │                           └─ at   −4.8
              │             └─ me −2.5* ─┬─ with −3.3* ─┬─ a   −3.7* ─┬─ tart −4.6*  ── </s> −4.8
              │                          │              │             └─ pie  −4.3*  ── </s> −4.4
              │                          │              └─ one −4.3* ─┬─ pie  −5.0
              └─ struck −2.9             └─ on   −3.5                 └─ tart −5.3
    I  −0.9* ─┬─ was −1.6* ─┬─ hit    −2.9
              │             └─ struck −3.8
              └─ got −1.8
    """
    words = Words(
        {
            "he": -0.7,
            "I": -0.9,
            "he hit": -1.7,
            "he struck": -2.9,
            "I was": -1.6,
            "I got": -1.8,
            "he hit a": -2.8,
            "he hit me": -2.5,
            "I was hit": -2.9,
            "I was struck": -3.8,
            "he hit a tart": -4.0,
            "he hit a pie": -3.4,
            "he hit me with": -3.3,
            "he hit me on": -3.5,
            "he hit a pie with": -4.5,
            "he hit a pie at": -4.8,
            "he hit me with a": -3.7,
            "he hit me with one": -4.3,
            "he hit me with a tart": -4.6,
            "he hit me with a pie": -4.3,
            "he hit me with one pie": -5.0,
            "he hit me with one tart": -5.3,
            "he hit me with a tart </s>": -4.8,
            "he hit me with a pie </s>": -4.4,
        }
    )
    found, kept = words.walk(8)
    assert kept[:6] == [
        {"he", "I"},
        {"he hit", "I was"},
        {"he hit a", "he hit me"},
        {"he hit a pie", "he hit me with"},
        {"he hit me with a", "he hit me with one"},
        {"he hit me with a pie", "he hit me with a tart"},
    ]
    assert found == ["he hit me with a pie", "he hit me with a tart"]


# -- required phrases ----------------------------------------------------------------------------------------------

PHRASES = [
    [[4]],
    [[4, 4]],
    [[3, 4], [4, 3]],
    [[3, 4, 3], [4, 3, 4]],
    [[4], [4]],
    [[4, 3, 3]],
    [[3], [4, 4], [4]],
    [],
]


def holds(y: Tokens, phrases: list[list[int]], ordered: bool) -> bool:
    """Whether y holds all phrases: each at places of its own if it comes twice; ordered, one behind the other."""

    def stands(phrase: list[int], start: int) -> bool:
        return list(y[start : start + len(phrase)]) == phrase

    if not ordered:
        counts = Counter(map(tuple, phrases))
        return all(sum(stands(list(p), s) for s in range(len(y))) >= n for p, n in counts.items())
    return any(
        all(stands(p, s) for p, s in zip(phrases, starts, strict=True))
        and all(s + len(p) <= later for p, s, later in zip(phrases, starts, starts[1:], strict=False))
        for starts in itertools.product(range(len(y) + 1), repeat=len(phrases))
    )


@given(seed=SEEDS, phrases=st.lists(st.sampled_from(PHRASES), min_size=2, max_size=2), ordered=st.booleans())
@settings(max_examples=25)
def test_a_wide_beam_finds_everything_that_holds_the_required_phrases(
    seed: int, phrases: list[list[list[int]]], ordered: bool
) -> None:
    tables = random_tables(seed, 2, 5, [4, 5])
    results = tables.run(beam(beam=160, early_stopping="never"), (ForcePhrasesProcessor(phrases, ordered),))
    for i, found in enumerate(results):
        truth = [one for one in everything(tables, i, RULES["mean"][1], 0) if holds(one[0], phrases[i], ordered)]
        assert_found([h for h in found if h.finish_reason == "eos"], [(y, end, score) for y, end, _, score in truth])


@given(
    seed=SEEDS,
    phrases=st.lists(st.sampled_from(PHRASES), min_size=3, max_size=3),
    ordered=st.booleans(),
    size=st.integers(2, 3),
    spare=st.integers(0, 2),
)
@settings(max_examples=40)
def test_a_narrow_beam_still_says_what_is_required_where_there_is_room(
    seed: int, phrases: list[list[list[int]]], ordered: bool, size: int, spare: int
) -> None:
    max_lengths = [max(sum(map(len, ones)) + spare, 1) for ones in phrases]
    tables = random_tables(seed, 3, 9, [2, 2, 2], sharp=3.0)
    tables.max_lengths = max_lengths  # beyond the table's depth every beginning has the same next tokens
    for i, found in enumerate(tables.run(beam(beam=size), (ForcePhrasesProcessor(phrases, ordered),))):
        assert holds(tuple(found[0].tokens), phrases[i], ordered)
        assert all(holds(tuple(h.tokens), phrases[i], ordered) for h in found if h.finish_reason == "eos")


@given(seed=SEEDS, ordered=st.booleans())
@settings(max_examples=10)
def test_required_phrases_of_other_sentences_change_nothing(seed: int, ordered: bool) -> None:
    tables, phrases = random_tables(seed, 4, 6, [4, 2, 3, 4]), [[[4, 5]], [], [[5], [5]], [[4], [5, 3]]]
    together = tables.run(beam(beam=3), (ForcePhrasesProcessor(phrases, ordered),))
    for i in range(4):
        assert tables.rows([i]).run(beam(beam=3), (ForcePhrasesProcessor([phrases[i]], ordered),)) == [together[i]]
