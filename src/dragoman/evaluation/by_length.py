"""Quality by source length: the corpus cut into buckets of similar length, each with its score and interval.

Edges e_1 < e_2 < … cut the lengths into (…, e_1], (e_1, e_2], …, (e_last, …): every item is in exactly one bucket, and
buckets without items are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dragoman.core.errors import DataError
from dragoman.evaluation.metrics import Array, Metric
from dragoman.evaluation.significance import interval

MOST_BUCKETS = 8
FEWEST_ITEMS = 10  # in a bucket, on average: an interval over fewer says nothing


@dataclass(frozen=True)
class Bucket:
    """The items whose source length is from low to high, both included."""

    low: int
    high: int
    count: int
    score: float
    interval: tuple[float, float]


def by_length(
    metric: Metric, stats: Array, lengths: Sequence[int], *, edges: Sequence[int] | None = None
) -> list[Bucket]:
    """The score of each bucket, shortest first; stats (N, F) and lengths (N) are of the same items."""
    if len(stats) != len(lengths) or not len(stats):
        raise DataError(
            f"there are statistics for {len(stats)} items and {len(lengths)} lengths; give as many, and at least one"
        )
    sizes = np.asarray(lengths, dtype=np.int64)
    cuts = quantile_edges(lengths) if edges is None else sorted(set(edges))
    places = np.searchsorted(cuts, sizes)  # (N,): item n lies in (cuts[place - 1], cuts[place]]
    buckets = []
    for place in np.unique(places):
        mine = stats[places == place]
        low = cuts[place - 1] + 1 if place > 0 else int(sizes.min())
        high = cuts[place] if place < len(cuts) else int(sizes.max())
        buckets.append(Bucket(low, high, len(mine), float(metric.score(mine.sum(axis=0))), interval(metric, mine)))
    return buckets


def quantile_edges(lengths: Sequence[int]) -> list[int]:
    """Edges that put about as many items into each of at most 8 buckets, rounded to whole lengths."""
    count = min(MOST_BUCKETS, max(1, len(lengths) // FEWEST_ITEMS))
    shares = [k / count for k in range(1, count)]
    return sorted({int(edge) for edge in np.round(np.quantile(lengths, shares))})
