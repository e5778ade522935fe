"""Pictures for papers of where a model looked in an image, a clip or a sound. PNG, SVG or PDF, by the name of the file.

    image   the picture, then once more for each word: what was not looked at fades    (as in Xu et al. 2015, figure 3)
    clip    the same with all of its frames
    sound   its frames, time to the right, and below them a row of weights for each word, aligned in time

Several looks (of two models, of several sources) stand one below the other. Sizes are in inches.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.inspection.picture import FAINT, INK, Letters, checked, paper, save
from dragoman.inspection.places import grids, pictures, scaled, states, ticks, titles
from dragoman.inspection.terminal import visible

WIDTH = 8.4  # of a page
EDGE, GAP, TITLE, CAPTION = 0.15, 0.14, 0.42, 0.24
IMAGE, FRAME = 1.23, 0.62  # the side of an image, and of a clip's frame
SOUND, ROW, LABELS, AXIS = 1.1, 0.19, 1.0, 0.5  # heights of frames and of a row; room for words, and for times
VEIL = 0.88  # how white the least looked at places are
LONGEST = 18  # characters of a word


@dataclass(frozen=True)
class Look:
    """Where a model looked: the picture of its source (medium.py), weights (T, S), T words, and what to write above."""

    medium: Mapping[str, Any]
    weights: Sequence[Sequence[float]]
    target: Sequence[str]
    title: str = ""


@dataclass
class Sheet:
    """A page that is filled from the top; `y` is how far down it is used."""

    figure: Any
    letters: Letters
    height: float
    y: float = EDGE

    def axes(self, x: float, y: float, width: float, height: float) -> Any:
        """Axes at so many inches from the left and from the top, without ticks."""
        box = (x / WIDTH, 1 - (y + height) / self.height, width / WIDTH, height / self.height)
        axes = self.figure.add_axes(box)
        axes.set(xticks=[], yticks=[])
        for spine in axes.spines.values():
            spine.set(edgecolor=FAINT, linewidth=0.6)
        return axes

    def write(self, x: float, y: float, text: str, size: float, **look: Any) -> None:
        shown = self.letters.drawable(text)
        self.figure.text(x / WIDTH, 1 - y / self.height, shown, **self.letters.style(size), **look)


def looks(path: str | Path, every: Sequence[Look]) -> None:
    """Draw where models looked, one look below the other."""
    path = checked(path)
    if not every:
        raise ValueError("there is no look to draw")
    figure = paper()
    height = 2 * EDGE + sum(map(_height, every))
    figure.set_size_inches(WIDTH, height)
    letters = Letters([text for look in every for text in (*map(visible, look.target), look.title, "…·%")])
    sheet = Sheet(figure, letters, height)
    for look in every:
        sheet.write(EDGE, sheet.y + 0.1, _title(look.title), 10, fontweight="bold", va="top")
        draw = _sound if look.medium["kind"] == "sound" else _images
        draw(sheet, look, sheet.y + (TITLE if look.title else 0.0))
        sheet.y += _height(look)
    save(figure, path)


def _title(text: str) -> str:
    """On one line, whatever was in it."""
    shown = text.replace("\t", " · ")
    return shown if len(shown) <= 100 else f"{shown[:99]}…"


def _height(look: Look) -> float:
    title = TITLE if look.title else 0.0
    if look.medium["kind"] == "sound":
        return title + SOUND + ROW * len(look.target) + AXIS + GAP
    side, beside = _panels(look)
    return title + -(-(len(look.target) + 1) // beside) * (side + CAPTION + GAP)


# -- images and clips --------------------------------------------------------------------------------------------------


def _panels(look: Look) -> tuple[float, int]:
    """The side of a picture, and how many panels of them stand side by side."""
    count = len(pictures(look.medium))
    room = WIDTH - 2 * EDGE
    side = min(IMAGE if count == 1 else FRAME, room / count)
    return side, max(1, int((room + GAP) / (count * side + GAP)))


def _images(sheet: Sheet, look: Look, top: float) -> None:
    """The picture, and a panel for each word."""
    seen = [opened(url) for url in pictures(look.medium)]
    side, beside = _panels(look)
    names = ["", *_words(look)]
    every = [np.ones((len(seen), 1, 1)), *(grids(look.medium, row) for row in look.weights)]
    for i, (name, a) in enumerate(zip(names, every, strict=True)):
        row, column = divmod(i, beside)
        x = EDGE + column * (len(seen) * side + GAP)
        y = top + row * (side + CAPTION + GAP)
        sheet.write(x, y + CAPTION - 0.05, name, 9, va="baseline")
        for k, (pixels, weights) in enumerate(zip(seen, a, strict=True)):
            axes = sheet.axes(x + k * side, y + CAPTION, side, side)
            axes.set_gid(f"panel-{i}")
            axes.imshow(pixels, extent=(0, 1, 0, 1), interpolation="nearest")
            # Smooth between the middles of cells; a single cell is all of its picture.
            axes.imshow(veil(weights), extent=(0, 1, 0, 1), interpolation="bilinear")


def veil(a: NDArray[np.float64]) -> NDArray[np.float64]:
    """Weights from 0 to 1 → white, the thinner the more was looked at, (rows, columns, 4)."""
    white = np.ones((*a.shape, 4))
    white[..., 3] = VEIL * (1 - a)
    return white


def opened(url: str) -> NDArray[Any]:
    """The pixels of a data URL."""
    from matplotlib.image import imread

    pixels: NDArray[Any] = imread(io.BytesIO(base64.b64decode(url.partition(",")[2])))
    return pixels


def _words(look: Look) -> list[str]:
    names = titles(look.medium, [visible(word) for word in look.target], look.weights)
    return [name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…" for name in names]


# -- sounds ------------------------------------------------------------------------------------------------------------


def _sound(sheet: Sheet, look: Look, top: float) -> None:
    """The frames, and a row for each word below them."""
    medium, width = look.medium, WIDTH - 2 * EDGE - LABELS
    above = sheet.axes(EDGE + LABELS, top, width, SOUND)
    above.imshow(opened(medium["src"]), extent=(0, 1, 0, 1), aspect="auto", cmap="gray", interpolation="nearest")
    below = sheet.axes(EDGE + LABELS, top + SOUND, width, ROW * len(look.target))
    a = np.array([scaled(np.asarray(row, dtype=float)[states(medium)]) for row in look.weights])
    edges = [0.0, *(end for _, end in medium["spans"])]
    below.pcolormesh(edges, np.arange(len(a) + 1), a, cmap="Blues", vmin=0.0, vmax=1.0)
    below.invert_yaxis()
    names = [sheet.letters.drawable(name) for name in _words(look)]
    style = sheet.letters.style(8)
    below.set_yticks(np.arange(len(a)) + 0.5, labels=names, **style)
    below.tick_params(length=0, pad=4)
    if medium["seconds"]:
        times = ticks(medium["seconds"])
        below.set_xticks([t / medium["seconds"] for t in times], labels=[f"{t:.10g}" for t in times], **style)
        below.set_xlabel("seconds", labelpad=2, **style)
        below.tick_params(axis="x", length=3, color=INK)
