"""Draws follow the table they are made from, and depend on a sentence's number alone."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor

from dragoman.core.interfaces import BOS, EOS, PAD, UNK, Capacity, Hypothesis
from dragoman.core.registry import Part
from dragoman.search import Limits, searches

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


def sample(numbers: list[int], longest: int, **options: Any) -> list[Hypothesis]:
    limits = Limits(torch.full((len(numbers),), longest), numbers=numbers)
    found = searches.build(Part("sample", options))(step, lambda capacity: capacity_of(capacity, len(numbers)), limits)
    return [best for [best] in found]


def capacity_of(capacity: Capacity, rows: int) -> Tensor:
    assert capacity.hypotheses == 1
    return torch.zeros(rows, 1)


def distribution(longest: int, temperature: float) -> dict[tuple[tuple[int, ...], str], float]:
    """Every result with its probability: it ends by itself, or is cut at the limit."""
    table = {}
    for last, row in TABLE.items():
        sharp = {token: p ** (1 / temperature) for token, p in row.items()}
        table[last] = {token: p / sum(sharp.values()) for token, p in sharp.items()}
    results = {}
    for n in range(longest + 1):
        for tokens in itertools.product((UNK, A, B), repeat=n):
            path = math.prod(table[a].get(b, 0.0) for a, b in itertools.pairwise((BOS, *tokens)))
            end = table[tokens[-1] if tokens else BOS].get(EOS, 0.0)
            results[tokens, "end"] = path * end
            if n == longest:
                results[tokens, "length"] = path * (1 - end)
    assert sum(results.values()) == pytest.approx(1.0)
    return results


@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
def test_results_are_as_frequent_as_the_table_says(temperature: float) -> None:
    count = 4000
    seed = int(torch.randint(2**31, ()))
    drawn = sample(list(range(count)), 3, temperature=temperature, seed=seed)
    found = Counter((tuple(h.tokens), h.ended) for h in drawn)
    expected = distribution(3, temperature)
    assert found.keys() <= {result for result, p in expected.items() if p > 0}
    for result, p in expected.items():
        assert abs(found[result] / count - p) < 6 * math.sqrt(p * (1 - p) / count) + 1e-9, result


def test_scores_are_log_p_of_the_model_whatever_the_temperature() -> None:
    for h in sample(list(range(50)), 3, temperature=3.0):
        said = [BOS, *h.tokens, *([EOS] if h.ended == "end" else [])]
        wanted = [math.log(TABLE[a][b]) for a, b in itertools.pairwise(said)]
        assert h.log_probs == pytest.approx(wanted)
        assert h.score == pytest.approx(sum(wanted))


def test_a_temperature_near_zero_is_greedy() -> None:
    for h in sample(list(range(20)), 4, temperature=1e-4):
        assert (h.tokens, h.ended) == ([A], "end")


def test_draws_do_not_depend_on_the_batch_but_on_seed_and_number() -> None:
    numbers = list(range(40))
    together = sample(numbers, 6, seed=3)
    apart = [sample([number], 6, seed=3)[0] for number in numbers]
    backwards = sample(numbers[::-1], 6, seed=3)[::-1]
    assert together == apart == backwards
    assert sample(numbers, 6, seed=4) != together


def test_a_number_at_either_end_of_the_unit_interval_draws_a_token_of_positive_probability() -> None:
    search: Any = searches.build(Part("sample"))
    p = torch.tensor([[0.0, 0.0, 0.3, 0.0, 0.7, 0.0]]).log()
    for u, wanted in ((0.0, EOS), (0.29, EOS), (0.31, A), (1 - 2**-53, A)):
        assert search.draw(p, [u]).tolist() == [wanted]
    assert PAD not in search.draw(p.expand(99, -1), [i / 99 for i in range(99)]).tolist()
