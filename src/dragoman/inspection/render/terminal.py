"""Attention as a heat map of characters: a row for each target token, a column for each source token.

            d r a g o m a n             source tokens on top; tokens of several characters are written downwards
          D ██                          a weight of 1 is █ or the brightest shade, a weight of 0 is empty
          R   ██                        a matrix wider than the terminal goes on below, in blocks of columns
         AE     ██

Where the source is an image, each word has a grid of its own, and as many stand side by side as fit; shades there are
shares of the word's largest weight (places.py).

With color a weight is a shade of the background, from near black to near white in one hue, so that the map carries its
own ground and reads the same on dark and on light terminals. Without color it is one of " ·░▒▓█".

Tokens come from data and may hold anything. `visible` makes them fit to print: no control character, escape sequence or
direction mark reaches the terminal, and a combining mark without a base gets one, so that columns stay columns.
T target tokens, S source tokens.
"""

from __future__ import annotations

import shutil
import unicodedata
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.cells import cell_len
from rich.style import Style
from rich.text import Text

from dragoman.inspection.media_layout import grids, titles

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

GLYPHS = " ·░▒▓█"
# Equal steps of perceived lightness (OKLab) at one hue; each shade is a tenth. The first two are nearly gray: where a
# terminal has only 256 colors, its nearest dark blue would be teal, and small weights would shine.
SHADES = (
    *("#22252a", "#31383f", "#004a7b", "#005d9c", "#0071ba", "#0486d3"),
    *("#359ce7", "#5bb1f6", "#83c6ff", "#acdbff", "#d9eeff"),
)
STYLES = tuple(Style(bgcolor=shade) for shade in SHADES)
DEEPEST = 16  # lines of a heading; longer tokens are cut
EACH = "the most of each word"


def heat_map(
    weights: ArrayLike,
    source: Sequence[str],
    target: Sequence[str],
    *,
    color: bool,
    width: int | None = None,
    most: str = "1",
) -> Text:
    """The map of weights (T, S), each in [0, 1]; `width` is the terminal's unless given. Not a number shows as "?".

    `most` is what the strongest shade stands for.
    """
    a = np.asarray(weights, dtype=float)
    if a.shape != (len(target), len(source)):
        raise ValueError(f"weights are {a.shape}; {len(target)} target and {len(source)} source tokens were given")
    width = width or shutil.get_terminal_size().columns
    headings = [_clusters(visible(token)) for token in source]
    labels = _right([_cut(visible(token), max(8, width // 3)) for token in target])
    margin = max((cell_len(label) for label in labels), default=0) + 1
    cell = 1 + max((cell_len(cluster) for heading in headings for cluster in heading), default=1)
    columns = max(1, (width - margin) // cell)

    text = Text(no_wrap=True, overflow="ignore")
    for start in range(0, len(source), columns):
        block = slice(start, start + columns)
        _heading(text, headings[block], margin, cell)
        for label, row in zip(labels, a[:, block], strict=True):
            text.append(f"{label} ")
            _row(text, row, cell, color)
            text.append("\n")
        text.append("\n")
    _scale(text, color, most)
    return text


def grid_maps(
    medium: Mapping[str, Any],
    weights: Sequence[Sequence[float]],
    target: Sequence[str],
    *,
    color: bool,
    width: int | None = None,
) -> Text:
    """A grid of shades for each word, over the cells of an image or of a clip's frames."""
    width = width or shutil.get_terminal_size().columns
    every = [_in_a_row(grids(medium, row)) for row in weights]
    names = titles(medium, [visible(token) for token in target], weights)
    wide = 2 * every[0].shape[1] if every else 2
    wide = max(wide, min(max((cell_len(name) for name in names), default=0), max(wide, 10)))
    beside = max(1, (width + 2) // (wide + 2))
    text = Text(no_wrap=True, overflow="ignore")
    for start in range(0, len(every), beside):
        some = range(start, min(start + beside, len(every)))
        text.append("  ".join(_filled(_cut(names[i], wide), wide) for i in some).rstrip() + "\n")
        for row in range(len(every[start])):
            for i in some:
                _shades(text, every[i][row], wide, color)
                text.append("  " if color else "│ ")  # else nobody sees where a grid ends
            text.append("\n")
        text.append("\n")
    _scale(text, color, EACH)
    return text


def _in_a_row(a: NDArray[np.float64]) -> NDArray[np.float64]:
    """Grids (n, rows, columns) side by side, not a number between them."""
    return np.hstack([np.pad(one, ((0, 0), (0, 1)), constant_values=np.nan) for one in a])[:, :-1]


def _filled(text: str, width: int) -> str:
    return text + " " * (width - cell_len(text))


def _shades(text: Text, row: NDArray[np.float64], wide: int, color: bool) -> None:
    """A line of one grid; between the frames of a clip there is nothing."""
    for weight in row:
        if np.isnan(weight):
            text.append("  ")
        else:
            _row(text, np.array([weight]), 2, color)
    text.append(" " * (wide - 2 * len(row)))


def visible(token: str) -> str:
    """The token with everything that does not print as itself spelled out: ␣, <001B>, <202E>, ◌ under a lone mark."""
    shown = "".join(_sign(character) for character in token)
    lone = bool(shown) and (cell_len(shown[0]) == 0 or unicodedata.category(shown[0]).startswith("M"))
    return f"◌{shown}" if lone else shown


def _sign(character: str) -> str:
    if character == " ":
        return "␣"
    code = ord(character)
    # Variation selectors are marks that change how wide a character is, and terminals disagree about it.
    selector = 0xFE00 <= code <= 0xFE0F or 0xE0100 <= code <= 0xE01EF
    if selector or unicodedata.category(character)[0] in "CZ":
        return f"<{code:04X}>"
    return character


def _clusters(text: str) -> list[str]:
    """Characters, each with the marks that stand on it; of a long text the first few."""
    clusters: list[str] = []
    for character in text:
        if clusters and cell_len(character) == 0:
            clusters[-1] += character
        else:
            clusters.append(character)
    return clusters if len(clusters) <= DEEPEST else [*clusters[: DEEPEST - 1], "⋮"]


def _cut(text: str, limit: int) -> str:
    """At most `limit` cells of a text, with … where something is missing."""
    if cell_len(text) <= limit:
        return text
    kept = ""
    for character in text:
        if cell_len(kept + character) >= limit:
            break
        kept += character
    return f"{kept}…"


def _right(labels: list[str]) -> list[str]:
    widest = max((cell_len(label) for label in labels), default=0)
    return [" " * (widest - cell_len(label)) + label for label in labels]


def _heading(text: Text, headings: list[list[str]], margin: int, cell: int) -> None:
    """The source tokens written downwards, so that each ends on its column."""
    depth = max(len(heading) for heading in headings)
    stacked = [[""] * (depth - len(heading)) + heading for heading in headings]
    for line in zip(*stacked, strict=True):
        content = "".join(cluster + " " * (cell - cell_len(cluster)) for cluster in line)
        text.append(f"{' ' * margin}{content.rstrip(' ')}\n")


def _row(text: Text, row: NDArray[np.float64], cell: int, color: bool) -> None:
    for weight in row:
        if np.isnan(weight):
            text.append("?".ljust(cell))
        elif color:
            text.append(" " * cell, STYLES[_level(weight, len(STYLES))])
        else:
            text.append(GLYPHS[_level(weight, len(GLYPHS))] * cell)


def _level(weight: float, levels: int) -> int:
    """The nearest of `levels` equal steps from 0 to 1."""
    return int(min(1.0, max(0.0, weight)) * (levels - 1) + 0.5)


def _scale(text: Text, color: bool, most: str) -> None:
    """What the shades mean, from 0 to the most."""
    steps = np.linspace(0.0, 1.0, len(STYLES) if color else len(GLYPHS))
    text.append("0 ")
    _row(text, steps, 2, color)
    text.append(f" {most}")
