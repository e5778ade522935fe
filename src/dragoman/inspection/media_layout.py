"""Lay a word's attention weights out over the preview of its source (media_preview.py).

    image, video   weights (S,) → a grid over each picture, (n, rows, columns)
    audio          weights (S,) → the span of time around the largest weight in which weights are at least half of it

Weights are drawn relative to the word's largest weight: spread over 64 cells, the absolute ones would all be faint. A
gray veil covers the picture, thickest where the weight is 0 (a white one hid nothing of a light picture, a black one
would hide nothing of a dark one), and the cell of the largest weight has a bright edge.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dragoman.text.vocabulary import SPACE_MARKER

SPAN_THRESHOLD = 0.5  # of the largest weight
VEIL, VEIL_OPACITY = "#6b7280", 0.82  # where the weight is 0; static/media_preview.js has the same
EDGE, EDGE_OUTLINE = "#ff2d95", "#ffffff"  # of the strongest cell: a color that few pictures have, in a light line

Array = NDArray[np.float64]
MediaPreview = Mapping[str, Any]


def picture_urls(preview: MediaPreview) -> list[str]:
    """Return the data URLs of a preview: one of an image or a spectrogram, or each frame's of a video."""
    return list(preview["frames"]) if preview["kind"] == "video" else [preview["src"]]


def state_range(preview: MediaPreview) -> slice:
    """Return the slice of the source's states that the preview shows."""
    if preview["kind"] == "image":
        count = preview["rows"] * preview["columns"]
    elif preview["kind"] == "audio":
        count = preview["count"]
    else:
        count = len(preview["frames"]) * preview["per_frame"]
    return slice(preview["first"], preview["first"] + count)


def other_states(preview: MediaPreview, count: int) -> list[int]:
    """Return the indices among `count` states that the preview does not show: those of the other source."""
    own = state_range(preview)
    return [j for j in range(count) if not own.start <= j < own.stop]


def grid_weights(preview: MediaPreview, weights: ArrayLike) -> Array:
    """Arrange a word's weights as grids (n, rows, columns) over an image or a video's frames, the largest being 1."""
    a = scaled_weights(preview, weights)
    if preview["kind"] == "image":
        return a.reshape(1, preview["rows"], preview["columns"])
    side = math.isqrt(preview["per_frame"])
    return a.reshape(len(preview["frames"]), side, side)


def scaled_weights(preview: MediaPreview, weights: ArrayLike) -> Array:
    """Return a word's weights on the states of the preview, the largest being 1."""
    return scale_to_peak(np.asarray(weights, dtype=float)[state_range(preview)])


def scale_to_peak(weights: ArrayLike) -> Array:
    """Divide weights by the largest, if that is above 0; NaN counts as 0."""
    known: Array = np.nan_to_num(np.asarray(weights, dtype=float))
    peak = float(known.max(initial=0.0))
    return known / peak if peak > 0 else known


def strongest_cell(a: Array) -> tuple[int, int, int] | None:
    """Return (frame, row, column) of the largest weight in a grid; None where all weights are equal."""
    if a.min() == a.max():
        return None
    frame, row, column = (int(i) for i in np.unravel_index(int(a.argmax()), a.shape))
    return frame, row, column


def word_titles(preview: MediaPreview, target: Sequence[str], weights: ArrayLike) -> list[str]:
    """Return each word without its space marker; with two sources, also the fraction of its weight on the preview."""
    words = [word.removeprefix(SPACE_MARKER) or word for word in target]
    a = np.asarray(weights, dtype=float)  # (T, S)
    if not len(a) or not other_states(preview, a.shape[1]):
        return words
    fractions = a[:, state_range(preview)].sum(1) / a.sum(1).clip(min=1e-30)  # gradient norms do not sum to 1
    return [f"{word} {fraction:.0%}" for word, fraction in zip(words, fractions, strict=True)]


def describe_peak(preview: MediaPreview, weights: ArrayLike) -> str:
    """Say in words where a word's largest weight lies: row and column, frame, or time."""
    if preview["kind"] == "audio":
        start, end = peak_span(preview, weights)
        return f"looks mostly from {start * preview['seconds']:.2f} s to {end * preview['seconds']:.2f} s"
    a = grid_weights(preview, weights)
    frame, row, column = (int(i) + 1 for i in np.unravel_index(int(a.argmax()), a.shape))
    parts = [f"frame {frame}"] if preview["kind"] == "video" else []
    if a[0].size > 1:
        parts.append(f"row {row}, column {column}")
    return f"looks mostly at {', '.join(parts)}"


def peak_span(preview: MediaPreview, weights: ArrayLike) -> tuple[float, float]:
    """Return start and end of the span around the largest weight of an audio source, as fractions of its length."""
    a = scaled_weights(preview, weights)
    low = high = int(a.argmax())
    while low > 0 and a[low - 1] >= SPAN_THRESHOLD:
        low -= 1
    while high + 1 < len(a) and a[high + 1] >= SPAN_THRESHOLD:
        high += 1
    return preview["spans"][low][0], preview["spans"][high][1]


def time_ticks(seconds: float) -> list[float]:
    """Return round times from 0 on for an axis of this many seconds, at most six steps."""
    rough = seconds / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * k for k in (1, 2, 5, 10) if power * k >= rough * (1 - 1e-9))
    return [i * step for i in range(int(seconds / step + 1e-9) + 1)]
