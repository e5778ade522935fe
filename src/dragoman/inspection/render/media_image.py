"""Pictures for papers of where a model looked in an image, a clip or a sound. PNG, SVG or PDF, by the name of the file.

    image   the picture, then once more for each word: what was not looked at lies under a veil, the strongest cell has
            a bright edge (Xu et al. 2015, figure 3, but readable on light pictures; see places.py)
    clip    the same with all of its frames
    sound   its frames, time to the right, and below them a row of weights for each word, aligned in time

Several looks (of two models, of several sources) stand one below the other. Sizes are in inches.
"""

from __future__ import annotations

import base64
import io
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.cells import cell_len, chop_cells

from dragoman.inspection.media_layout import (
    AROUND,
    SIGNAL,
    THICKEST,
    VEIL,
    grids,
    pictures,
    scaled,
    states,
    strongest,
    ticks,
    titles,
)
from dragoman.inspection.render.image import FAINT, INK, Letters, checked, paper, save
from dragoman.inspection.render.terminal import visible

WIDTH = 8.4  # of a page
EDGE, GAP, TITLE, LINE, CAPTION = 0.15, 0.14, 0.42, 0.19, 0.24  # a title of one line, and each further one
IMAGE, FRAME = 1.23, 0.62  # the side of an image, and of a clip's frame
SOUND, ROW, LABELS, AXIS = 1.1, 0.19, 1.0, 0.5  # heights of frames and of a row; room for words, and for times
LONGEST = 18  # characters of a word
NAME = 48  # and of a source's name, a wide one counting twice
SLACK = 0.95  # of a line is filled: at another resolution letters are up to 4 % wider
TITLED = {"fontweight": "bold"}


@dataclass(frozen=True)
class Look:
    """Where a model looked: the picture of its source (medium.py), weights (T, S), T words; the source's name and what
    was said of it are written above."""

    media_preview: Mapping[str, Any]
    weights: Sequence[Sequence[float]]
    target: Sequence[str]
    source: str = ""
    result: str = ""
    model: str = ""

    @property
    def title(self) -> str:
        """On one line, whatever was in it; of long names the middle is left out, of a result nothing."""
        source = " · ".join(shortened(part) for part in self.source.split("\t"))
        result = self.result.replace("\t", " ")
        return f"{self.model}: {source} → {result}" if self.model else f"{source} → {result}" if source else result


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
    letters = Letters([text for look in every for text in (*map(visible, look.target), look.title, "…·%")])
    titles = [_lines(figure, letters, look.title) for look in every]
    heights = [_above(lines) + _height(look) for look, lines in zip(every, titles, strict=True)]
    sheet = Sheet(figure, letters, 2 * EDGE + sum(heights))
    figure.set_size_inches(WIDTH, sheet.height)
    for look, lines, height in zip(every, titles, heights, strict=True):
        for i, line in enumerate(lines):
            sheet.write(EDGE, sheet.y + 0.1 + i * LINE, line, 10, va="top", **TITLED)
        draw = _sound if look.media_preview["kind"] == "sound" else _images
        draw(sheet, look, sheet.y + _above(lines))
        sheet.y += height
    save(figure, path)


def shortened(name: str) -> str:
    """A long name without its middle: how it begins and how it ends tell it from others."""
    if cell_len(name) <= NAME:
        return name
    return f"{chop_cells(name, NAME * 2 // 3)[0]}…{chop_cells(name[::-1], NAME // 3 - 1)[0][::-1]}"


def _lines(figure: Any, letters: Letters, title: str) -> list[str]:
    """A title in lines that the page has room for, broken between words, or where a word has no room on a line."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas: Any = FigureCanvasAgg(figure)
    renderer, room = canvas.get_renderer(), SLACK * (WIDTH - 2 * EDGE)

    def width(text: str) -> float:
        drawn = figure.text(0, 0, letters.drawable(text), **letters.style(10), **TITLED)
        inches: float = drawn.get_window_extent(renderer).width / figure.dpi
        drawn.remove()
        return inches

    lines, rest = [], title.strip()
    while rest:
        fits = max(1, bisect_right(range(1, len(rest) + 1), room, key=lambda n: width(rest[:n])))
        space = rest.rfind(" ", 0, fits + 1)
        cut = len(rest) if fits == len(rest) else space if space > 0 else fits
        lines.append(rest[:cut])
        rest = rest[cut:].lstrip()
    return lines


def _above(lines: Sequence[str]) -> float:
    """The room that a title takes."""
    return TITLE + (len(lines) - 1) * LINE if lines else 0.0


def _height(look: Look) -> float:
    if look.media_preview["kind"] == "sound":
        return SOUND + ROW * len(look.target) + AXIS + GAP
    side, beside = _panels(look)
    return -(-(len(look.target) + 1) // beside) * (side + CAPTION + GAP)


# -- images and clips --------------------------------------------------------------------------------------------------


def _panels(look: Look) -> tuple[float, int]:
    """The side of a picture, and how many panels of them stand side by side."""
    count = len(pictures(look.media_preview))
    room = WIDTH - 2 * EDGE
    side = min(IMAGE if count == 1 else FRAME, room / count)
    return side, max(1, int((room + GAP) / (count * side + GAP)))


def _images(sheet: Sheet, look: Look, top: float) -> None:
    """The picture, and a panel for each word."""
    seen = [opened(url) for url in pictures(look.media_preview)]
    side, beside = _panels(look)
    names = ["", *_words(look)]
    every = [np.ones((len(seen), 1, 1)), *(grids(look.media_preview, row) for row in look.weights)]
    for i, (name, a) in enumerate(zip(names, every, strict=True)):
        row, column = divmod(i, beside)
        x = EDGE + column * (len(seen) * side + GAP)
        y = top + row * (side + CAPTION + GAP)
        sheet.write(x, y + CAPTION - 0.05, name, 9, va="baseline")
        peak = strongest(a)
        for k, (pixels, weights) in enumerate(zip(seen, a, strict=True)):
            axes = sheet.axes(x + k * side, y + CAPTION, side, side)
            axes.set_gid(f"panel-{i}")
            axes.imshow(pixels, extent=(0, 1, 0, 1), interpolation="nearest")
            # Smooth between the middles of cells; a single cell is all of its picture.
            axes.imshow(veil(weights), extent=(0, 1, 0, 1), interpolation="bilinear")
            if peak is not None and peak[0] == k:
                edge(axes, *peak[1:], weights.shape)


def veil(a: NDArray[np.float64]) -> NDArray[np.float64]:
    """Weights from 0 to 1 → gray, the thinner the more was looked at, (rows, columns, 4)."""
    from matplotlib.colors import to_rgb

    gray = np.ones((*a.shape, 4))
    gray[..., :3] = to_rgb(VEIL)
    gray[..., 3] = THICKEST * (1 - a)
    return gray


def edge(axes: Any, row: int, column: int, shape: tuple[int, ...]) -> None:
    """A line around one cell of the grid over a picture, within a lighter one."""
    from matplotlib.patches import Rectangle

    high, wide = 1 / shape[0], 1 / shape[1]
    for color, width in ((AROUND, 2.6), (SIGNAL, 1.4)):
        box = Rectangle((column * wide, 1 - (row + 1) * high), wide, high, fill=False, edgecolor=color, linewidth=width)
        box.set(clip_on=False, zorder=4, gid="strongest")  # also where it lies on the picture's own edge
        axes.add_patch(box)


def opened(url: str) -> NDArray[Any]:
    """The pixels of a data URL."""
    from matplotlib.image import imread

    pixels: NDArray[Any] = imread(io.BytesIO(base64.b64decode(url.partition(",")[2])))
    return pixels


def _words(look: Look) -> list[str]:
    names = titles(look.media_preview, [visible(word) for word in look.target], look.weights)
    return [name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…" for name in names]


# -- sounds ------------------------------------------------------------------------------------------------------------


def _sound(sheet: Sheet, look: Look, top: float) -> None:
    """The frames, and a row for each word below them."""
    medium, width = look.media_preview, WIDTH - 2 * EDGE - LABELS
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
