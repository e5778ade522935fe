"""What is done with frames, (S, F) numbers at S moments, whatever they were made of.

    normalized   (x − mean) / deviation of each number over the utterance
    deltas       d_t = Σ_n n (x_{t+n} − x_{t−n}) / (2 Σ_n n²), n = 1, 2; beyond the ends, the first or last frame
    faster       frame t of the result is what stood at t · s: s > 1 is faster, linear between frames
    masked       SpecAugment (Park et al. 2019): some bands of numbers, and some spans of time, are 0, their mean

Normalization is by utterance: it takes out the microphone and the distance to it, needs no pass over the training data,
and makes a recording the same numbers in training and afterwards. Speed is changed here, on frames, and not on the
waveform: a store keeps one copy of an utterance instead of three, and no sound is decoded in training. Ten
seconds of 80 bins take 1.4 ms. A slower look has up to 1 / 0.9 of the positions that its batch was planned for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

SHARE = 0.2  # of an utterance: the most that one mask hides, or a short one would be gone


@dataclass(frozen=True)
class Looks:
    """How training looks at frames: one of the speeds, then so many masks of at most these widths."""

    speeds: Sequence[float] = (0.9, 1.0, 1.1)
    time_masks: int = 2
    time_width: int = 100  # frames
    band_masks: int = 2
    band_width: int = 27  # numbers

    def speed(self, rng: np.random.Generator) -> float:
        return float(self.speeds[int(rng.integers(len(self.speeds)))]) if self.speeds else 1.0

    def masked(self, x: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
        """A copy of (S, F) frames with bands and spans of zeros."""
        x = x.copy()
        S, F = x.shape
        for _ in range(self.band_masks):
            start, stop = span(F, min(self.band_width, F // 3), rng)
            x[:, start:stop] = 0
        for _ in range(self.time_masks):
            start, stop = span(S, min(self.time_width, int(SHARE * S)), rng)
            x[start:stop] = 0
        return x


def span(size: int, widest: int, rng: np.random.Generator) -> tuple[int, int]:
    """A random part of `size` places, of any width up to the widest, none and all of it included."""
    width = int(rng.integers(widest + 1))
    start = int(rng.integers(size - width + 1))
    return start, start + width


def normalized(x: NDArray[Any]) -> NDArray[Any]:
    """Mean 0 and deviation 1 of each column; one that never changes is 0."""
    x = x.astype(np.float32)
    deviation = x.std(0, dtype=np.float64)
    centered = x - x.mean(0, dtype=np.float64)
    # What varies only by rounding, as in silence, must not be blown up to noise.
    scaled: NDArray[Any] = (centered / np.where(deviation > 1e-4, deviation, np.inf)).astype(np.float32)
    return scaled


def with_deltas(x: NDArray[Any], order: int) -> NDArray[Any]:
    """(S, F) → (S, F · (order + 1)): the frames, their slopes, the slopes of those, …"""
    columns: list[NDArray[Any]] = [x.astype(np.float32)]
    for _ in range(order):
        last = np.pad(columns[-1], ((2, 2), (0, 0)), mode="edge")
        columns.append((last[3:-1] - last[1:-3] + 2 * (last[4:] - last[:-4])) / 10)
    return np.concatenate(columns, 1)


def faster(x: NDArray[Any], speed: float) -> NDArray[Any]:
    """(S, F) frames → (S / speed, F)."""
    count = max(1, round(len(x) / speed))
    return between(x, np.minimum(np.arange(count) * speed, len(x) - 1))


def between(x: NDArray[Any], places: NDArray[Any]) -> NDArray[Any]:
    """Rows of x at places that need not be whole."""
    low = np.floor(places).astype(np.int64)
    high, share = np.minimum(low + 1, len(x) - 1), (places - low).astype(np.float32)[:, None]
    mixed: NDArray[Any] = x[low] * (1 - share) + x[high] * share
    return mixed
