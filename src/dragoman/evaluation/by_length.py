"""Scores by source length: the corpus in buckets of similar length, each with its score and bootstrap interval.

Edges e_1 < e_2 < … divide the lengths into (…, e_1], (e_1, e_2], …, (e_last, …). Buckets without items are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dragoman.core.errors import DataError
from dragoman.evaluation.metrics import Array, Metric
from dragoman.evaluation.significance import bootstrap_interval

MAX_BUCKETS = 8
MIN_ITEMS = 10  # in a bucket, on average: intervals over fewer are meaningless


@dataclass(frozen=True)
class LengthBucket:
    """The score of the items whose source length is from low to high, both included."""

    low: int
    high: int
    count: int
    score: float
    interval: tuple[float, float]


def score_by_length(
    metric: Metric, stats: Array, lengths: Sequence[int], *, edges: Sequence[int] | None = None
) -> list[LengthBucket]:
    """Score and interval of each length bucket, shortest first; stats (N, F) and lengths (N) of the same items."""
    if len(stats) != len(lengths) or not len(stats):
        raise DataError(
            f"there are statistics for {len(stats)} items and {len(lengths)} lengths; give equal numbers, at least one"
        )
    sizes = np.asarray(lengths, dtype=np.int64)
    bounds = quantile_edges(lengths) if edges is None else sorted(set(edges))
    numbers = np.searchsorted(bounds, sizes)  # (N,): bucket i is (bounds[i - 1], bounds[i]]
    buckets = []
    for i in np.unique(numbers):
        bucket_stats = stats[numbers == i]
        low = bounds[i - 1] + 1 if i > 0 else int(sizes.min())
        high = bounds[i] if i < len(bounds) else int(sizes.max())
        score = float(metric.score(bucket_stats.sum(axis=0)))
        interval = bootstrap_interval(metric, bucket_stats)
        buckets.append(LengthBucket(low, high, len(bucket_stats), score, interval))
    return buckets


def quantile_edges(lengths: Sequence[int]) -> list[int]:
    """Edges of at most 8 buckets with about equally many items, 10 or more on average, as whole lengths."""
    count = min(MAX_BUCKETS, max(1, len(lengths) // MIN_ITEMS))
    shares = [k / count for k in range(1, count)]
    return sorted({int(edge) for edge in np.round(np.quantile(lengths, shares))})
