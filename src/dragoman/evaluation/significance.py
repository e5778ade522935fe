"""Confidence intervals and paired significance tests by the bootstrap over items (Efron 1979; Koehn 2004).

    interval   the middle 95 % of the scores of M corpora of N items, sampled with replacement (percentile bootstrap)
    paired     d = score(a) − score(b); both systems are resampled with the same items, which gives d*_1 … d*_M, and

                   p = (1 + #{m : |d*_m − mean d*| ≥ |d|}) / (1 + M)

p is the probability of a difference at least as large as d, of either sign, if there is no true difference: subtracting
the mean centers the d* at 0. sacreBLEU's `PairedTest` (type "bs") differs in two ways: it centers |d*| and so counts
one tail (for clear differences its p is about half of ours), and it counts ">", so that two identical systems get the
smallest p, 1 / (1 + M), where "≥" gives them 1.

N items, F statistics for each, M resamples.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dragoman.core.errors import DataError
from dragoman.evaluation.metrics import Array, Metric

SEED = 12345  # sacreBLEU's


@dataclass(frozen=True)
class PairedResult:
    """The difference of two systems' scores, its 95 % interval, and the two-sided p-value."""

    difference: float
    low: float
    high: float
    p: float


def bootstrap_interval(
    metric: Metric, stats: Array, *, samples: int = 1000, level: float = 0.95, seed: int = SEED
) -> tuple[float, float]:
    """The bootstrap confidence interval of a corpus score from `samples` resamples; stats (N, F)."""
    return central_interval(metric.score(resample_totals(stats, samples, seed)), level)


def paired_bootstrap(metric: Metric, a: Array, b: Array, *, samples: int = 1000, seed: int = SEED) -> PairedResult:
    """Test whether system a differs from system b; statistics a and b (N, F) of the same items in the same order."""
    if a.shape != b.shape:
        raise DataError(
            f"the statistics of the two systems have the shapes {a.shape} and {b.shape}; "
            "score both with the same metric on the same items"
        )
    both = resample_totals(np.concatenate([a, b], axis=1), samples, seed)  # (M, 2F): the same items for both
    totals_a, totals_b = np.split(both, 2, axis=1)
    differences = metric.score(totals_a) - metric.score(totals_b)  # (M,)
    difference = float(metric.score(a.sum(axis=0)) - metric.score(b.sum(axis=0)))
    extreme = np.abs(differences - differences.mean()) >= abs(difference)
    return PairedResult(difference, *central_interval(differences, 0.95), (1 + int(extreme.sum())) / (1 + samples))


def resample_totals(stats: Array, samples: int, seed: int) -> Array:
    """(M, F): the summed statistics of M corpora of N items, sampled from stats (N, F) with replacement."""
    n = len(stats)
    if n == 0:
        raise DataError("there are no items to resample; score at least one")
    rng = np.random.default_rng(seed)
    # One resample at a time, as counts of the items: 100,000 items then need 1 MB rather than gigabytes of indices.
    # Counting sampled indices is several times faster than sampling multinomial counts.
    samples_of_counts = (np.bincount(rng.integers(n, size=n), minlength=n) for _ in range(samples))
    return np.stack([counts.astype(np.float64) @ stats for counts in samples_of_counts])


def central_interval(scores: Array, level: float) -> tuple[float, float]:
    """The central interval that contains a share `level` of the scores."""
    low, high = np.quantile(scores, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def format_score(label: str, value: float, low: float, high: float, unit: str = "%") -> str:
    """Format a score with its interval: `PER 11.8 % [11.2, 12.4]`; points, as of BLEU, are not named."""
    shown = " %" if unit == "%" else ""
    return f"{label} {value:.1f}{shown} [{low:.1f}, {high:.1f}]"
