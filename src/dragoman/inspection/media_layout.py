"""From a word's weights to places on a picture of its source, which medium.py describes.

    image, clip   weights (S,) → a grid over each picture, (n, rows, columns)
    sound         weights (S,) → the span of time around the largest, while they are at least half of it

Weights are drawn as shares of the word's largest one: spread over 64 cells, the absolute ones would all be faint.

What was not looked at lies under a gray veil, the thicker the less it was, and the strongest cell has a bright edge.
The gray is between dark and light and has no color: a white veil hid nothing of a light picture, a black one would hide
nothing of a dark one, and a colorful thing stood out whether it was looked at or not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dragoman.text.vocabulary import MARK

HALF = 0.5
VEIL, THICKEST = "#6b7280", 0.82  # over what was not looked at; static/medium.js has the same
SIGNAL, AROUND = "#ff2d95", "#ffffff"  # of the strongest cell: a color that few pictures have, within a light line

Array = NDArray[np.float64]
Modality = Mapping[str, Any]


def pictures(medium: Modality) -> list[str]:
    """The data URLs of an image, a sound, or the frames of a clip."""
    return list(medium["frames"]) if medium["kind"] == "clip" else [medium["src"]]


def states(medium: Modality) -> slice:
    """Which of a source's states lie on the picture."""
    if medium["kind"] == "image":
        count = medium["rows"] * medium["columns"]
    elif medium["kind"] == "sound":
        count = medium["count"]
    else:
        count = len(medium["frames"]) * medium["per_frame"]
    return slice(medium["first"], medium["first"] + count)


def grids(medium: Modality, weights: ArrayLike) -> Array:
    """A word's weights over an image or the frames of a clip, (n, rows, columns), from 0 to 1."""
    a = scaled(np.asarray(weights, dtype=float)[states(medium)])
    if medium["kind"] == "image":
        return a.reshape(1, medium["rows"], medium["columns"])
    side = math.isqrt(medium["per_frame"])
    return a.reshape(len(medium["frames"]), side, side)


def scaled(weights: ArrayLike) -> Array:
    """Shares of the largest."""
    known: Array = np.nan_to_num(np.asarray(weights, dtype=float))
    peak = float(known.max(initial=0.0))
    return known / peak if peak > 0 else known


def strongest(a: Array) -> tuple[int, int, int] | None:
    """The cell (frame, row, column) of such grids that was looked at most; None where all were alike."""
    if a.min() == a.max():
        return None
    frame, row, column = (int(i) for i in np.unravel_index(int(a.argmax()), a.shape))
    return frame, row, column


def titles(medium: Modality, target: Sequence[str], weights: ArrayLike) -> list[str]:
    """Each word without the mark of the space before it; where its attention may lie elsewhere, with its share here."""
    words = [word.removeprefix(MARK) or word for word in target]
    a = np.asarray(weights, dtype=float)  # (T, S)
    if not len(a) or not outside(medium, a.shape[1]):
        return words
    shares = a[:, states(medium)].sum(1) / a.sum(1).clip(min=1e-30)  # weights sum to 1, norms of gradients do not
    return [f"{word} {share:.0%}" for word, share in zip(words, shares, strict=True)]


def outside(medium: Modality, count: int) -> list[int]:
    """Which of so many states are another source's."""
    inside = states(medium)
    return [j for j in range(count) if not inside.start <= j < inside.stop]


def spoken(medium: Modality, weights: ArrayLike) -> str:
    """Where a word looked, in words."""
    if medium["kind"] == "sound":
        start, end = span(medium, weights)
        if medium["seconds"] is None:
            return f"looks mostly from {start:.0%} to {end:.0%}"
        return f"looks mostly from {start * medium['seconds']:.2f} s to {end * medium['seconds']:.2f} s"
    a = grids(medium, weights)
    frame, row, column = (int(i) + 1 for i in np.unravel_index(int(a.argmax()), a.shape))
    place = f"row {row}, column {column}" if a[0].size > 1 else ""
    shown = f"frame {frame}" if medium["kind"] == "clip" else ""
    return f"looks mostly at {', '.join(part for part in (shown, place) if part)}"


def span(medium: Modality, weights: ArrayLike) -> tuple[float, float]:
    """From where to where a word looked at a sound, as shares of its length."""
    a = scaled(np.asarray(weights, dtype=float)[states(medium)])
    low = high = int(a.argmax())
    while low > 0 and a[low - 1] >= HALF:
        low -= 1
    while high + 1 < len(a) and a[high + 1] >= HALF:
        high += 1
    return medium["spans"][low][0], medium["spans"][high][1]


def ticks(seconds: float) -> list[float]:
    """Round times for the axis of a sound, three to six of them."""
    rough = seconds / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * k for k in (1, 2, 5, 10) if power * k >= rough * (1 - 1e-9))
    return [i * step for i in range(int(seconds / step + 1e-9) + 1)]
