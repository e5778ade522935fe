"""Buckets by length: every item in one of them, and together the whole corpus."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.core.errors import DataError
from dragoman.core.registry import Part
from dragoman.evaluation.by_length import score_by_length
from dragoman.evaluation.metrics import metrics
from dragoman.evaluation.significance import bootstrap_interval

PER, BLEU, EXACT = (metrics.build(Part(name)) for name in ("per", "bleu", "exact"))

lengths_lists = st.lists(st.integers(0, 60), min_size=1, max_size=120)
edge_lists = st.none() | st.lists(st.integers(-5, 70), max_size=6)


def one_hot(n):
    """Statistics that show which items went into a sum."""
    return np.eye(n)


class WhichItems:
    """A metric whose score is the sum of 2^n over its items: no two sets of items have the same."""

    label, higher_is_better, signature = "items", True, None

    def statistics(self, hypotheses, references):
        raise NotImplementedError

    def score(self, totals):
        return totals @ (2.0 ** np.arange(totals.shape[-1]))


@settings(deadline=None, max_examples=15)
@given(st.lists(st.integers(0, 30), min_size=1, max_size=50), edge_lists)
def test_every_item_is_in_the_one_bucket_whose_bounds_hold_its_length(lengths, edges):
    buckets = score_by_length(WhichItems(), one_hot(len(lengths)), lengths, edges=edges)
    for bucket in buckets:
        mine = [n for n, length in enumerate(lengths) if bucket.low <= length <= bucket.high]
        assert bucket.count == len(mine) > 0
        assert bucket.score == sum(2.0**n for n in mine)
    assert sum(bucket.count for bucket in buckets) == len(lengths)
    assert all(before.high < after.low for before, after in itertools.pairwise(buckets))


@settings(deadline=None, max_examples=10)
@given(lengths_lists)
def test_there_are_at_most_eight_buckets_of_whole_lengths(lengths):
    buckets = score_by_length(EXACT, np.ones((len(lengths), 2)), lengths)
    assert 1 <= len(buckets) <= 8
    assert all(isinstance(bound, int) for bucket in buckets for bound in (bucket.low, bucket.high))
    assert (buckets[0].low, buckets[-1].high) == (min(lengths), max(lengths))


def test_even_lengths_give_eight_buckets_of_about_the_same_size():
    lengths = list(range(1, 801))
    counts = [bucket.count for bucket in score_by_length(EXACT, np.ones((800, 2)), lengths)]
    assert len(counts) == 8
    assert max(counts) - min(counts) <= 2


def test_buckets_recompose_to_the_corpus_score():
    rng = np.random.default_rng(0)
    references = [" ".join(str(x) for x in rng.integers(0, 9, size=n)) for n in rng.integers(1, 40, size=200)]
    hypotheses = [" ".join(x for x in line.split() if rng.random() > 0.2) for line in references]
    lengths = [len(line.split()) for line in references]
    for metric in (PER, BLEU):
        stats = metric.statistics(hypotheses, [[line] for line in references])
        buckets = score_by_length(metric, stats, lengths)
        held = [[b.low <= length <= b.high for length in lengths] for b in buckets]
        parts = [stats[rows].sum(axis=0) for rows in held]
        assert [b.score for b in buckets] == [float(metric.score(part)) for part in parts]
        assert [b.interval for b in buckets] == [bootstrap_interval(metric, stats[rows]) for rows in held]
        assert float(metric.score(np.sum(parts, axis=0))) == float(metric.score(stats.sum(axis=0)))


def test_edges_belong_to_the_bucket_below_them():
    stats = EXACT.statistics(list("aabba"), [["a"]] * 5)
    buckets = score_by_length(EXACT, stats, [3, 10, 11, 20, 35], edges=[20, 10, 30])
    assert [(b.low, b.high, b.count, b.score) for b in buckets] == [(3, 10, 2, 100), (11, 20, 2, 0), (31, 35, 1, 100)]


def test_few_items_are_one_bucket():
    assert [bucket.count for bucket in score_by_length(EXACT, np.ones((9, 2)), range(9))] == [9]


def test_lengths_must_be_those_of_the_items():
    with pytest.raises(DataError, match="3 items and 2 lengths"):
        score_by_length(EXACT, np.ones((3, 2)), [1, 2])
