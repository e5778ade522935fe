"""Normalization, deltas and augmentation of frames, (S, F) numbers at S moments.

    normalize_utterance   (x − mean) / standard deviation of each number over the utterance
    append_deltas         d_t = Σ_n n (x_{t+n} − x_{t−n}) / (2 Σ_n n²), n = 1, 2; the ends repeat the outer frames
    change_speed          frame t of the result is the input at t · speed, linear between frames
    apply_masks           SpecAugment (Park et al. 2019): some bands and some spans of time become 0, the mean

Normalization per utterance removes the microphone and its distance, and needs no pass over the
training data. Speed changes the frames, not the waveform: the store keeps one copy of an utterance
instead of three, and training decodes no audio.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Frames = NDArray[np.floating]  # (S, F)

MAX_TIME_MASK_SHARE = 0.2  # of the utterance: longer masks would hide all of a short one


@dataclass(frozen=True)
class FrameAugmentation:
    """Random changes of frames in training: one of the speeds, then time and band masks of at most these widths."""

    speeds: Sequence[float] = (0.9, 1.0, 1.1)
    time_masks: int = 2
    time_width: int = 100  # frames
    band_masks: int = 2
    band_width: int = 27  # numbers

    def sample_speed(self, rng: np.random.Generator) -> float:
        """One of the speeds at random; 1.0 if there are none."""
        return float(self.speeds[int(rng.integers(len(self.speeds)))]) if self.speeds else 1.0

    def apply(
        self,
        x: NDArray[np.float16],
        rng: np.random.Generator,
        band_positions: Callable[[float], NDArray[np.float64]] | None = None,
    ) -> NDArray[np.float16]:
        """A random variant of (S, F) frames: other speed, masked bands and spans; `band_positions` of a speed."""
        frames: Frames = x
        speed = self.sample_speed(rng)
        if speed != 1.0:
            frames = change_speed(x.astype(np.float32), speed)
            if band_positions is not None:
                frames = interpolate_rows(frames.T, band_positions(speed)).T
        return self.apply_masks(frames, rng).astype(np.float16)

    def apply_masks(self, x: Frames, rng: np.random.Generator) -> Frames:
        """A copy of (S, F) frames in which random bands and spans of time are 0."""
        x = x.copy()
        S, F = x.shape
        for _ in range(self.band_masks):
            start, stop = sample_span(F, min(self.band_width, F // 3), rng)
            x[:, start:stop] = 0
        for _ in range(self.time_masks):
            start, stop = sample_span(S, min(self.time_width, int(MAX_TIME_MASK_SHARE * S)), rng)
            x[start:stop] = 0
        return x


def sample_span(size: int, max_width: int, rng: np.random.Generator) -> tuple[int, int]:
    """Start and stop of a random span, 0 to max_width wide, in `size` positions; max_width must not exceed size."""
    width = int(rng.integers(max_width + 1))
    start = int(rng.integers(size - width + 1))
    return start, start + width


def normalize_utterance(x: Frames) -> NDArray[np.float32]:
    """Scale each column to mean 0 and standard deviation 1; one that hardly varies becomes 0."""
    x = x.astype(np.float32)
    deviation = x.std(0, dtype=np.float64)
    centered = x - x.mean(0, dtype=np.float64)
    # Columns that vary only by rounding, as in silence, must not be blown up to noise.
    scaled: NDArray[np.float32] = (centered / np.where(deviation > 1e-4, deviation, np.inf)).astype(np.float32)
    return scaled


def append_deltas(x: Frames, order: int) -> Frames:
    """(S, F) → (S, F · (order + 1)): the frames, their deltas, the deltas of those, …"""
    columns: list[Frames] = [x.astype(np.float32)]
    for _ in range(order):
        last = np.pad(columns[-1], ((2, 2), (0, 0)), mode="edge")
        columns.append((last[3:-1] - last[1:-3] + 2 * (last[4:] - last[:-4])) / 10)
    return np.concatenate(columns, 1)


def change_speed(x: Frames, speed: float) -> Frames:
    """(S, F) → (about S / speed, F): the frames played faster (speed > 1) or slower."""
    count = max(1, round(len(x) / speed))
    return interpolate_rows(x, np.minimum(np.arange(count) * speed, len(x) - 1))


def interpolate_rows(x: Frames, positions: NDArray[np.float64]) -> Frames:
    """The rows of x at fractional positions, by linear interpolation between neighbors."""
    low = np.floor(positions).astype(np.int64)
    high, share = np.minimum(low + 1, len(x) - 1), (positions - low).astype(np.float32)[:, None]
    mixed: Frames = x[low] * (1 - share) + x[high] * share
    return mixed
