"""The bootstrap against known distributions, sacreBLEU's paired test, and what must hold by symmetry."""

from __future__ import annotations

import math

import numpy as np
import pytest
import sacrebleu
from hypothesis import given, settings
from hypothesis import strategies as st
from sacrebleu.significance import PairedTest

from dragoman.core.errors import DataError
from dragoman.core.registry import Part
from dragoman.evaluation.metrics import metrics
from dragoman.evaluation.significance import bootstrap_interval, format_score, paired_bootstrap, resample_totals

EXACT, BLEU, PER = (metrics.build(Part(name)) for name in ("exact", "bleu", "per"))


def flips(rng, n, p):
    """The statistics of exact match for n items that are right with probability p."""
    return np.stack([rng.random(n) < p, np.ones(n)], axis=1).astype(np.float64)


@pytest.mark.parametrize("level", [0.8, 0.95])
def test_the_interval_of_a_share_is_that_of_the_normal_approximation(level):
    n = 2000
    stats = flips(np.random.default_rng(0), n, 0.3)
    share = stats[:, 0].mean()
    z = {0.8: 1.2816, 0.95: 1.9600}[level]
    half = 100 * z * math.sqrt(share * (1 - share) / n)
    low, high = bootstrap_interval(EXACT, stats, samples=4000, level=level)
    assert low == pytest.approx(100 * share - half, abs=half / 8)
    assert high == pytest.approx(100 * share + half, abs=half / 8)


def test_about_95_of_100_intervals_contain_the_true_share():
    rng = np.random.default_rng(1)
    intervals = [bootstrap_interval(EXACT, flips(rng, 200, 0.4), samples=200, seed=seed) for seed in range(150)]
    covered = sum(low <= 40 <= high for low, high in intervals)
    assert 150 * 0.88 <= covered <= 150  # the expected 0.93 to 0.95, four standard deviations below it and more


def test_more_items_make_the_interval_narrower_as_the_root_of_their_number():
    stats = flips(np.random.default_rng(2), 400, 0.5)
    low, high = bootstrap_interval(EXACT, stats)
    low4, high4 = bootstrap_interval(EXACT, np.tile(stats, (4, 1)))
    assert (high - low) / (high4 - low4) == pytest.approx(2, rel=0.2)


def test_resampled_corpora_have_as_many_items_and_only_those_given():
    stats = np.array([[1.0, 0, 0], [0, 1.0, 0], [0, 0, 1.0]])
    totals = resample_totals(stats, 500, 0)
    assert (totals.sum(axis=1) == 3).all()
    assert totals.mean(axis=0) == pytest.approx([1, 1, 1], abs=0.15)
    assert totals.var(axis=0) == pytest.approx([2 / 3] * 3, abs=0.15)  # multinomial: n · 1/3 · 2/3


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**32), st.integers(1, 20))
def test_the_same_seed_gives_the_same_interval_and_the_bounds_are_in_order(seed, n):
    stats = flips(np.random.default_rng(n), n, 0.5)
    low, high = bootstrap_interval(EXACT, stats, samples=50, seed=seed)
    assert (low, high) == bootstrap_interval(EXACT, stats, samples=50, seed=seed)
    assert 0 <= low <= high <= 100


def test_another_seed_gives_another_interval():
    stats = PER.statistics(["a b c", "d", "e f"] * 9, [["a x c"], ["d"], ["e f g h i"]] * 9)
    assert bootstrap_interval(PER, stats, samples=50, seed=1) != bootstrap_interval(PER, stats, samples=50, seed=2)


def test_a_single_item_has_an_interval_of_no_width():
    stats = PER.statistics(["a b"], [["a c"]])
    assert bootstrap_interval(PER, stats) == (50, 50)


def test_no_items_are_refused():
    with pytest.raises(DataError, match="no items"):
        bootstrap_interval(EXACT, np.zeros((0, 2)))


# -- two systems -------------------------------------------------------------------------------------------------------


def translations(rng, n, error):
    """n references, and hypotheses in which each word is wrong with probability `error`."""
    references = [[str(word) for word in rng.integers(0, 50, size=12)] for _ in range(n)]
    hypotheses = [[word if rng.random() > error else "wrong" for word in line] for line in references]
    return [" ".join(line) for line in hypotheses], [[" ".join(line)] for line in references]


@pytest.mark.parametrize("name", metrics.names)
def test_identical_systems_do_not_differ(name):
    metric = metrics.build(Part(name))
    stats = metric.statistics(*translations(np.random.default_rng(3), 20, 0.3))
    result = paired_bootstrap(metric, stats, stats, samples=100)
    assert (result.difference, result.low, result.high, result.p) == (0, 0, 0, 1)


@pytest.mark.parametrize("name", metrics.names)
def test_a_clearly_better_system_is_told_from_a_worse_one(name):
    metric = metrics.build(Part(name))
    good, references = translations(np.random.default_rng(4), 100, 0.02)
    bad = [line.rsplit(" ", 4)[0] + " x y z w" for line in good]
    a, b = metric.statistics(good, references), metric.statistics(bad, references)
    result = paired_bootstrap(metric, a, b, samples=300)
    assert result.p < 0.01
    assert result.low <= result.difference <= result.high
    assert (result.low > 0) if metric.higher_is_better else (result.high < 0)


def test_swapping_the_systems_turns_the_sign_and_keeps_p():
    rng = np.random.default_rng(5)
    a, b = flips(rng, 200, 0.5), flips(rng, 200, 0.55)
    one, other = paired_bootstrap(EXACT, a, b), paired_bootstrap(EXACT, b, a)
    assert one.difference == -other.difference
    assert (one.low, one.high) == pytest.approx((-other.high, -other.low))
    assert one.p == other.p


def test_p_is_that_of_the_normal_approximation_for_paired_shares():
    rng = np.random.default_rng(6)
    a, b = flips(rng, 1000, 0.50), flips(rng, 1000, 0.53)
    d = a[:, 0] - b[:, 0]
    z = abs(d.mean()) / (d.std() / math.sqrt(len(d)))
    assert paired_bootstrap(EXACT, a, b, samples=4000).p == pytest.approx(math.erfc(z / math.sqrt(2)), abs=0.03)


def test_systems_that_differ_by_chance_are_called_different_about_as_often_as_p_says():
    rng = np.random.default_rng(7)
    ps = [paired_bootstrap(EXACT, flips(rng, 150, 0.5), flips(rng, 150, 0.5), samples=200).p for _ in range(200)]
    assert 2 <= sum(p <= 0.05 for p in ps) <= 24  # 10 expected
    assert 70 <= sum(p <= 0.5 for p in ps) <= 130  # 100 expected


def test_p_is_twice_that_of_sacrebleu_whose_test_has_one_tail():
    rng = np.random.default_rng(8)
    first, references = translations(rng, 200, 0.3)
    second = [" ".join(w if rng.random() > 0.31 else "wrong" for w in line.split()) for (line,) in references]
    theirs = PairedTest(
        [("first", first), ("second", second)],
        {"bleu": sacrebleu.BLEU()},
        [[line for (line,) in references]],
        test_type="bs",
        n_samples=1000,
    )()[1]["BLEU"]
    ours = paired_bootstrap(BLEU, BLEU.statistics(first, references), BLEU.statistics(second, references))
    assert ours.difference == theirs[0].score - theirs[1].score
    assert ours.p == pytest.approx(2 * theirs[1].p_value, abs=0.05)


def test_systems_scored_on_different_items_are_refused():
    with pytest.raises(DataError, match=r"\(3, 2\) and \(4, 2\)"):
        paired_bootstrap(EXACT, np.ones((3, 2)), np.ones((4, 2)))


# -- in print ----------------------------------------------------------------------------------------------------------


def test_scores_are_printed_with_their_interval_and_a_percent_sign_for_shares():
    assert format_score("PER", 11.8, 11.2, 12.4) == "PER 11.8 % [11.2, 12.4]"
    assert format_score("BLEU", 28.3, 27.1, 29.5, "points") == "BLEU 28.3 [27.1, 29.5]"


def test_only_metrics_that_are_no_shares_have_no_percent_sign():
    plain = {name for name in metrics.names if metrics.build(Part(name)).unit == "points"}
    assert plain == {"bleu", "bleu1", "bleu2", "bleu3", "chrf", "cider", "rouge1", "rouge2", "rougel"}
