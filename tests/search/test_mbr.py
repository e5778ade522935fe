"""Minimum Bayes risk against its equation as two loops, with metrics of the toolkit as utilities."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.core.registry import Part
from dragoman.evaluation.metrics import corpus_score, metrics
from dragoman.search.mbr import expected_utilities, pairwise_utilities, posterior_weights, rank_by_utility

WORDS = st.lists(st.sampled_from(["the", "cat", "cats", "sat", "a", "mat"]), min_size=1, max_size=5).map(" ".join)


@pytest.mark.parametrize(("name", "sign"), [("chrf", 1), ("wer", -1)])
@given(candidates=st.lists(WORDS, min_size=1, max_size=6), data=st.data())
def test_candidates_come_by_expected_utility(name: str, sign: int, candidates: list[str], data: st.DataObject) -> None:
    metric = metrics.build(Part(name))

    def utility(hypotheses: Sequence[str], references: Sequence[str]) -> np.ndarray:
        return sign * metric.score(metric.statistics(hypotheses, [[r] for r in references]))

    n = len(candidates)
    weights = data.draw(st.none() | st.lists(st.floats(0.1, 3.0), min_size=n, max_size=n))
    u = []
    for one in candidates:
        u.append(0.0)
        for other, w in zip(candidates, weights or [1.0] * n, strict=True):
            u[-1] += w / sum(weights or [1.0] * n) * sign * corpus_score(metric, [one], [[other]])
    order = rank_by_utility(candidates, utility, weights)
    assert sorted(order) == list(range(n))
    assert [u[i] for i in order] == pytest.approx(sorted(u, reverse=True))
    assert expected_utilities(pairwise_utilities(candidates, utility), weights).tolist() == pytest.approx(u)


def test_the_choice_is_the_middle_of_the_candidates_and_not_the_most_probable_one() -> None:
    """Nearness of numbers on a line: the best by itself, 9, is far from the mass around 2."""
    candidates, p = ["9", "1", "2", "3"], [0.4, 0.2, 0.2, 0.2]

    def nearness(hypotheses: list[str], references: list[str]) -> list[float]:
        return [-abs(float(a) - float(b)) for a, b in zip(hypotheses, references, strict=True)]

    # u = −4.2, −3.8, −3.2, −3.0 by hand, with equal weights −5.25, −2.75, −2.25, −2.25
    assert rank_by_utility(candidates, nearness, p) == [3, 2, 1, 0]
    assert rank_by_utility(candidates, nearness) == [2, 3, 1, 0]
    assert rank_by_utility(candidates, nearness, [0, 1, 0, 0]) == [1, 2, 3, 0]


def test_rows_are_hypotheses_and_columns_references() -> None:
    longer = pairwise_utilities(
        ["a", "bbb"],
        lambda hypotheses, references: [len(h) - 2.0 * len(r) for h, r in zip(hypotheses, references, strict=True)],
    )
    assert longer.tolist() == [[-1, -5], [1, -3]]


def test_a_text_that_comes_again_counts_again_but_is_compared_once() -> None:
    asked = []

    def same(hypotheses: list[str], references: list[str]) -> list[float]:
        asked.extend(zip(hypotheses, references, strict=True))
        return [float(h == r) for h, r in zip(hypotheses, references, strict=True)]

    assert rank_by_utility(["x", "y", "z", "y", "y", "z"], same) == [1, 3, 4, 2, 5, 0]
    assert len(asked) == len(set(asked)) == 9
    assert rank_by_utility([], same) == []


@given(scores=st.lists(st.floats(-50, 0), min_size=1, max_size=6))
def test_the_weights_of_an_n_best_list_are_the_softmax_of_its_scores(scores: list[float]) -> None:
    whole = math.fsum(math.exp(s) for s in scores)
    assert posterior_weights(scores).tolist() == pytest.approx([math.exp(s) / whole for s in scores])
    assert posterior_weights([s - 2000 for s in scores]).tolist() == pytest.approx(posterior_weights(scores).tolist())


@pytest.mark.parametrize("weights", [[1.0], [1.0, -1.0], [0.0, 0.0], [1.0, math.nan]])
def test_weights_that_are_no_weights_are_refused(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="2 weights"):
        rank_by_utility(["a", "b"], lambda hypotheses, references: [1.0, 0.0, 0.0, 1.0], weights)


def test_utilities_that_are_not_one_for_each_pair_are_refused() -> None:
    with pytest.raises(ValueError, match="4 pairs"):
        rank_by_utility(["a", "b"], lambda hypotheses, references: [1.0])
