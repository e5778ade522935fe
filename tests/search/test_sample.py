"""Draws follow the table they are made from, cut as a plain filter cuts it, and depend on a sentence's number alone."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dragoman.core.registry import Part
from dragoman.core.types import BOS, EOS, PAD, UNK, Batch, Capacity, Hypothesis
from dragoman.nn.seq2seq import Seq2Seq
from dragoman.search import LogitsProcessor, SearchConstraints, searches
from dragoman.search.sample import sample_tokens

from .test_searches import SEEDS, greedy, random_tables

A, B, V = 4, 5, 6
# p(next | last): nothing is left to <pad> and <s>, which a search never says.
TABLE = {
    BOS: {EOS: 0.1, UNK: 0.1, A: 0.6, B: 0.2},
    UNK: {EOS: 1.0},
    A: {EOS: 0.5, A: 0.1, B: 0.4},
    B: {EOS: 0.25, A: 0.75},
}
LOG_P = torch.full((V, V), -math.inf)
for last, row in TABLE.items():
    for token, p in row.items():
        LOG_P[last, token] = math.log(p)


def step(tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
    return LOG_P[tokens], state


def sample(
    numbers: list[int], max_lengths: int, rules: tuple[LogitsProcessor, ...] = (), **options: Any
) -> list[list[Hypothesis]]:
    def start(capacity: Capacity) -> Tensor:
        assert capacity == (options.get("num_samples", 1), max_lengths + 1)
        return torch.zeros(len(numbers), 1)

    limits = SearchConstraints(torch.full((len(numbers),), max_lengths), input_indices=numbers, processors=rules)
    return searches.build(Part("sample", options))(step, start, limits)


# -- what is drawn from --------------------------------------------------------------------------------------------


def share(p: dict[int, float]) -> dict[int, float]:
    return {token: value / sum(p.values()) for token, value in p.items()}


def until(p: dict[int, float], order: list[int], mass: float) -> dict[int, float]:
    kept: dict[int, float] = {}
    while sum(kept.values()) < mass and len(kept) < len(p):
        kept[order[len(kept)]] = p[order[len(kept)]]
    return kept


def plain(p: dict[int, float], options: dict[str, Any]) -> dict[int, float]:
    """The temperature and the filters on a dict of positive probabilities, one after the other."""
    p = share({v: x ** (1 / options.get("temperature", 1.0)) for v, x in p.items()})
    if k := options.get("top_k"):
        p = share({v: p[v] for v in sorted(p, key=lambda v: p[v], reverse=True)[:k]})
    if mass := options.get("top_p"):
        p = share(until(p, sorted(p, key=lambda v: p[v], reverse=True), mass))
    if least := options.get("min_p"):
        p = share({v: x for v, x in p.items() if x >= least * max(p.values())})
    if mass := options.get("typical_p"):
        entropy = -sum(x * math.log(x) for x in p.values())
        p = share(until(p, sorted(p, key=lambda v: abs(entropy + math.log(p[v]))), mass))
    if least := options.get("epsilon_cutoff"):
        p = share({v: x for v, x in p.items() if x >= least} or {max(p, key=lambda v: p[v]): 1.0})
    return p


FILTERS = {
    "temperature": st.floats(0.3, 3.0),
    "top_k": st.integers(1, 12),
    "top_p": st.floats(0.05, 0.99),
    "min_p": st.floats(0.05, 0.95),
    "typical_p": st.floats(0.05, 0.99),
    "epsilon_cutoff": st.floats(0.01, 0.9),
}


@pytest.mark.parametrize("names", [*([name] for name in FILTERS), list(FILTERS)], ids=" ".join)
@given(data=st.data(), seed=SEEDS)
def test_a_filter_keeps_what_a_plain_one_keeps(names: list[str], data: st.DataObject, seed: int) -> None:
    options = {name: data.draw(FILTERS[name], name) for name in names}
    log_p = (2 * torch.randn(2, 3, 10, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)).log_softmax(
        -1
    )
    log_p[0, :, [PAD, BOS]] = -math.inf
    search: Any = searches.build(Part("sample", options))
    for row, found in zip(log_p.flatten(0, 1), search.distribution(log_p).flatten(0, 1), strict=True):
        expected = plain({v: math.exp(x) for v, x in enumerate(row.tolist()) if x > -math.inf}, options)
        assert found.tolist() == pytest.approx([expected.get(v, 0.0) for v in range(10)], abs=1e-12)


def test_the_nucleus_holds_the_token_that_crosses_its_mass_and_a_typical_set_may_leave_out_the_best() -> None:
    log_p = torch.tensor([0.5, 0.2, 0.15, 0.15]).double().log()
    nucleus: Any = searches.build(Part("sample", {"top_p": 0.6}))
    assert nucleus.distribution(log_p).tolist() == pytest.approx([5 / 7, 2 / 7, 0, 0])
    # H = 1.24: the surprises 0.69, 1.61, 1.90, 1.90 lie 0.54, 0.37, 0.66, 0.66 from it.
    typical: Any = searches.build(Part("sample", {"typical_p": 0.1}))
    assert typical.distribution(log_p).tolist() == pytest.approx([0, 1, 0, 0])


@given(u=st.floats(0, 1, exclude_max=True), seed=SEEDS)
def test_a_number_of_the_unit_interval_draws_the_token_whose_stretch_it_falls_into(u: float, seed: int) -> None:
    p = torch.rand(8, generator=torch.Generator().manual_seed(seed)).double()
    p[[0, 3, 7]] = 0.0
    p = p / p.sum()
    drawn = int(sample_tokens(p, torch.tensor(u, dtype=torch.float64)))
    assert p[drawn] > 0
    assert p[:drawn].sum() - 1e-12 <= u <= p[: drawn + 1].sum() + 1e-12


# -- how often each result comes -----------------------------------------------------------------------------------


def distribution(max_lengths: int, options: dict[str, Any]) -> dict[tuple[tuple[int, ...], str], float]:
    """Every result with its probability: it ends by itself, or is cut at the limit."""
    table = {last: plain(row, options) for last, row in TABLE.items()}
    results = {}
    for n in range(max_lengths + 1):
        for tokens in itertools.product((UNK, A, B), repeat=n):
            path = math.prod(table[a].get(b, 0.0) for a, b in itertools.pairwise((BOS, *tokens)))
            end = table[tokens[-1] if tokens else BOS].get(EOS, 0.0)
            results[tokens, "eos"] = path * end
            if n == max_lengths:
                results[tokens, "length"] = path * (1 - end)
    assert sum(results.values()) == pytest.approx(1.0)
    return results


@pytest.mark.parametrize(
    "options",
    [{}, {"temperature": 0.5}, {"temperature": 2.0}, {"top_k": 2}, {"min_p": 0.3, "temperature": 1.5}],
    ids=str,
)
def test_results_are_as_frequent_as_the_table_says(options: dict[str, Any]) -> None:
    sentences, size = 500, 8
    count, seed = sentences * size, int(torch.randint(2**31, ()))
    drawn = sample(list(range(sentences)), 3, num_samples=size, seed=seed, **options)
    assert [len(found) for found in drawn] == [size] * sentences
    found = Counter((tuple(h.tokens), h.finish_reason) for best in drawn for h in best)
    expected = {result: count * p for result, p in distribution(3, options).items() if p > 1e-12}
    assert found.keys() <= expected.keys()
    often = [result for result, n in expected.items() if n >= 5]  # the others are one cell, if there is enough of them
    cells = [(found[result], expected[result]) for result in often]
    rest = count - sum(n for _, n in cells)
    cells += [(count - sum(n for n, _ in cells), rest)] if rest >= 5 else []
    chi2, d, x = sum((o - e) ** 2 / e for o, e in cells), len(cells) - 1, 18.0
    assert chi2 < d + 2 * math.sqrt(d * x) + 2 * x  # passed by chance once in e^18 (Laurent and Massart 2000)


def test_scores_are_log_p_of_the_model_whatever_was_sharpened_or_cut_and_the_best_comes_first() -> None:
    for best in sample(list(range(20)), 3, num_samples=4, temperature=3.0, top_k=3):
        for h in best:
            said = [BOS, *h.tokens, *([EOS] if h.finish_reason == "eos" else [])]
            wanted = [math.log(TABLE[a][b]) for a, b in itertools.pairwise(said)]
            assert h.log_probs == pytest.approx(wanted)
            assert h.score == pytest.approx(sum(wanted))
        assert [h.score for h in best] == sorted((h.score for h in best), reverse=True)


@pytest.mark.parametrize("options", [{"temperature": 1e-9}, {"temperature": 5e-324}, {"top_k": 1}, {"top_p": 1e-9}])
def test_a_temperature_near_zero_and_a_filter_that_leaves_one_token_are_greedy(options: dict[str, Any]) -> None:
    tables = random_tables(int(torch.randint(2**31, ())), 4, 7, [3, 1, 2, 3])
    found = tables.run(searches.build(Part("sample", {**options, "num_samples": 2})))
    for [best], draws in zip(tables.run(greedy()), found, strict=True):
        for h in draws:
            assert (h.tokens, h.finish_reason) == (best.tokens, best.finish_reason)
            assert h.log_probs == pytest.approx(best.log_probs)


# -- independence and limits ---------------------------------------------------------------------------------------


@given(seed=SEEDS, order=st.permutations(range(6)))
def test_draws_do_not_depend_on_the_batch_but_on_seed_and_number(seed: int, order: list[int]) -> None:
    tables = random_tables(seed, 6, 6, [3, 1, 2, 4, 1, 3])

    def run(rows: list[int], seed: int = 3) -> list[list[Hypothesis]]:
        part, some = Part("sample", {"num_samples": 3, "seed": seed, "top_p": 0.9}), tables.rows(rows)
        return searches.build(part)(
            some.step, some.start, SearchConstraints(torch.tensor(some.max_lengths), input_indices=rows)
        )

    together = run(list(range(6)))
    assert run(order) == [together[i] for i in order]
    assert [run([i])[0] for i in order[:3]] == [together[i] for i in order[:3]]


def test_another_seed_and_another_number_draw_other_results_and_more_draws_leave_the_first_as_they_are() -> None:
    numbers = list(range(40))
    assert sample(numbers, 6, seed=4) != sample(numbers, 6, seed=3)
    assert sample(numbers, 6, seed=3) != sample([n + 40 for n in numbers], 6, seed=3)
    drawn = [sample(numbers, 6, seed=3, num_samples=size) for size in (1, 2, 5)]
    for fewer, more in itertools.pairwise(drawn):
        for some, all_ in zip(fewer, more, strict=True):
            assert not Counter(map(str, some)) - Counter(map(str, all_))
    assert any(one != other for one, other in drawn[1])


def test_a_rule_sees_what_each_draw_has_said_and_what_it_forbids_is_never_drawn() -> None:
    def not_twice(log_p: Tensor, history: Tensor, rows: Tensor) -> Tensor:
        """No token twice; the last sentence never says B; nobody ends on A."""
        assert history.shape[:2] == log_p.shape[:2]
        assert len(rows) == len(history)
        used = torch.zeros_like(log_p, dtype=torch.bool).scatter(-1, history, True)
        used[..., EOS] = history[..., -1] == A if history.shape[2] else False
        used[rows == 19, :, B] = True
        return log_p.masked_fill(used, -math.inf)

    found = sample(list(range(20)), 3, (not_twice,), num_samples=6)
    for i, draws in enumerate(found):
        for h in draws:
            assert len(set(h.tokens)) == len(h.tokens)
            assert i != 19 or B not in h.tokens
            # After B and A, or A alone where B is forbidden, nothing is left: the draw is cut there.
            assert (h.finish_reason == "no_valid_token") == (h.tokens[-1:] == [A])
            assert len(h.log_probs) == len(h.tokens) + (h.finish_reason == "eos")
    assert {h.finish_reason for draws in found for h in draws} == {"eos", "no_valid_token"}


@pytest.mark.parametrize("decoder", ["rnn", "transformer"])
@torch.no_grad()
def test_what_is_said_of_a_model_is_what_the_model_says_of_each_draw(decoder: str) -> None:
    model = Seq2Seq(8, 8, width=8, encoder=Part("rnn"), decoder=Part(decoder)).eval()
    source, lengths = torch.randint(4, 8, (4, 6)), torch.tensor([6, 1, 3, 5])
    memory = model.encode(source, lengths)
    limits = SearchConstraints(torch.tensor([9, 3, 12, 1]))
    search = searches.build(Part("sample", {"num_samples": 3, "temperature": 1.5}))
    for i, found in enumerate(search(model.step, lambda capacity: model.start(memory, capacity), limits)):
        for h in found:
            target, n = torch.tensor([[BOS, *h.tokens, EOS]]), int(lengths[i])
            pair = Batch(source[i : i + 1, :n], lengths[i : i + 1], target, torch.tensor([target.shape[1]]))
            forced = model.token_log_probs(pair)[0].tolist()
            assert h.log_probs == pytest.approx(forced[: len(h.log_probs)], abs=1e-4)
