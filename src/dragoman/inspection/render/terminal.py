"""Attention as a heat map of characters: a row for each target token, a column for each source token.

            d r a g o m a n             source tokens on top; tokens of several characters are written downwards
          D ██                          a weight of 1 is █ or the brightest shade, a weight of 0 is empty
          R   ██                        a matrix wider than the terminal goes on below, in blocks of columns
         AE     ██

With color a weight is a shade of the background, which looks the same on dark and on light terminals.

Tokens come from data and may hold anything. `visible` makes them printable: no control character, escape sequence or
direction mark reaches the terminal, and a combining mark without a base gets one, so that columns stay aligned.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from rich.cells import cell_len, chop_cells
from rich.style import Style
from rich.text import Text

from dragoman.inspection import media_layout
from dragoman.inspection.media_layout import MediaPreview

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray
    from rich.console import Console

    from dragoman.inspection.views import ViewData

GLYPHS = " ·░▒▓█"
# Equal steps of perceived lightness (OKLab) at one hue; each shade is a tenth. The first two are nearly gray: where a
# terminal has only 256 colors, its nearest dark blue would be teal, and small weights would shine.
SHADES = (
    *("#22252a", "#31383f", "#004a7b", "#005d9c", "#0071ba", "#0486d3"),
    *("#359ce7", "#5bb1f6", "#83c6ff", "#acdbff", "#d9eeff"),
)
STYLES = tuple(Style(bgcolor=shade) for shade in SHADES)
MAX_HEADING_LINES = 16  # longer tokens are cut
PEAK_OF_WORD = "the most of each word"


def render_heat_map(
    weights: ArrayLike, source: Sequence[str], target: Sequence[str], *, color: bool, width: int, peak_label: str = "1"
) -> Text:
    """Render weights (T, S) in [0, 1] as shades, in blocks of columns that fit the width; NaN shows as "?"."""
    a = np.asarray(weights, dtype=float)
    if a.shape != (len(target), len(source)):
        raise ValueError(f"weights are {a.shape}; {len(target)} target and {len(source)} source tokens are needed")
    headings = [_split_clusters(visible(token)) for token in source]
    labels = [cut(visible(token), max(8, width // 3)) for token in target]
    margin = max(map(cell_len, labels), default=0) + 1
    cell = 1 + max((cell_len(cluster) for heading in headings for cluster in heading), default=1)
    columns = max(1, (width - margin) // cell)

    text = Text(no_wrap=True, overflow="ignore")
    for start in range(0, len(source), columns):
        block = slice(start, start + columns)
        _append_heading(text, headings[block], margin, cell)
        for label, row in zip(labels, a[:, block], strict=True):
            text.append(f"{' ' * (margin - 1 - cell_len(label))}{label} ")
            _append_weights(text, row, cell, color)
            text.append("\n")
        text.append("\n")
    _append_scale(text, color, peak_label)
    return text


def render_grid_maps(
    preview: MediaPreview, weights: Sequence[Sequence[float]], target: Sequence[str], *, color: bool, width: int
) -> Text:
    """Render a grid of shades with a title for each word, over the cells of an image or of a video's frames."""
    grids = [_join_frames(media_layout.grid_weights(preview, row)) for row in weights]
    names = media_layout.word_titles(preview, [visible(token) for token in target], weights)
    wide = 2 * grids[0].shape[1] if grids else 2
    wide = max(wide, min(max((cell_len(name) for name in names), default=0), max(wide, 10)))
    per_row = max(1, (width + 2) // (wide + 2))
    text = Text(no_wrap=True, overflow="ignore")
    for start in range(0, len(grids), per_row):
        some = range(start, min(start + per_row, len(grids)))
        text.append("  ".join(fit(names[i], wide) for i in some).rstrip() + "\n")
        for row in range(len(grids[start])):
            for i in some:
                _append_weights(text, grids[i][row], 2, color, missing=" ")
                text.append(" " * (wide - 2 * grids[i].shape[1]))
                text.append("  " if color else "│ ")  # without color the end of a grid is invisible
            text.append("\n")
        text.append("\n")
    _append_scale(text, color, PEAK_OF_WORD)
    return text


def _join_frames(a: NDArray[np.float64]) -> NDArray[np.float64]:
    """Put grids (n, rows, columns) side by side, with a column of NaN between them."""
    return np.hstack([np.pad(grid, ((0, 0), (0, 1)), constant_values=np.nan) for grid in a])[:, :-1]


def visible(token: str) -> str:
    """Spell out what does not print as itself: ␣, <001B>; ◌ is put before a lone combining mark."""
    shown = "".join(_spell_character(character) for character in token)
    lone = bool(shown) and (cell_len(shown[0]) == 0 or unicodedata.category(shown[0]).startswith("M"))
    return f"◌{shown}" if lone else shown


def _spell_character(character: str) -> str:
    if character == " ":
        return "␣"
    code = ord(character)
    # Variation selectors are marks that change how wide a character is, and terminals disagree about it.
    selector = 0xFE00 <= code <= 0xFE0F or 0xE0100 <= code <= 0xE01EF
    if selector or unicodedata.category(character)[0] in "CZ":
        return f"<{code:04X}>"
    return character


def _split_clusters(text: str) -> list[str]:
    """Split a text into characters with their combining marks; ⋮ ends one that exceeds MAX_HEADING_LINES."""
    clusters: list[str] = []
    for character in text:
        if clusters and cell_len(character) == 0:
            clusters[-1] += character
        else:
            clusters.append(character)
    return clusters if len(clusters) <= MAX_HEADING_LINES else [*clusters[: MAX_HEADING_LINES - 1], "⋮"]


def shorten(text: str, max_length: int) -> str:
    """Cut a text to at most `max_length` characters, with … at the end if anything is cut."""
    return text if len(text) <= max_length else f"{text[: max_length - 1]}…"


def cut(text: str, limit: int) -> str:
    """Cut a text to at most `limit` cells, with … at the end if anything is cut."""
    return text if cell_len(text) <= limit else f"{chop_cells(text, limit - 1)[0]}…"


def fit(text: str, cells: int) -> str:
    """Cut a text with …, or pad it with spaces, to exactly `cells` cells."""
    kept = cut(text, cells)
    return kept + " " * (cells - cell_len(kept))


def _append_heading(text: Text, headings: list[list[str]], margin: int, cell: int) -> None:
    depth = max(len(heading) for heading in headings)
    stacked = [[""] * (depth - len(heading)) + heading for heading in headings]
    for line in zip(*stacked, strict=True):
        content = "".join(cluster + " " * (cell - cell_len(cluster)) for cluster in line)
        text.append(f"{' ' * margin}{content.rstrip(' ')}\n")


def _append_weights(text: Text, row: NDArray[np.float64], cell: int, color: bool, missing: str = "?") -> None:
    """Append one shade of `cell` cells for each weight: a color, or a glyph without color; `missing` for NaN."""
    for weight in row:
        if np.isnan(weight):
            text.append(missing.ljust(cell))
        elif color:
            text.append(" " * cell, STYLES[_level(weight, len(STYLES))])
        else:
            text.append(GLYPHS[_level(weight, len(GLYPHS))] * cell)


def _level(weight: float, levels: int) -> int:
    return int(min(1.0, max(0.0, weight)) * (levels - 1) + 0.5)


def _append_scale(text: Text, color: bool, peak_label: str) -> None:
    steps = np.linspace(0.0, 1.0, len(STYLES) if color else len(GLYPHS))
    text.append("0 ")
    _append_weights(text, steps, 2, color)
    text.append(f" {peak_label}")


# -- printing a view ---------------------------------------------------------------------------------------------------


def print_heat_map(
    out: Console, weights: ArrayLike, source: Sequence[str], target: Sequence[str], peak_label: str = "1"
) -> None:
    """Print a heat map (T, S) in the colors and the width of a console."""
    color = out.color_system is not None
    out.print(render_heat_map(weights, source, target, color=color, width=out.width, peak_label=peak_label))


def print_source_weights(out: Console, data: ViewData, weights: Sequence[Sequence[float]]) -> None:
    """Print a view's weights (T, S): grids over an image or a video, a heat map over tokens or the times of audio."""
    preview, source, target = data["media_preview"], data["source"], data["target"]
    if preview is None:
        print_heat_map(out, weights, source, target)
        return
    if preview["kind"] == "audio" or preview.get("per_frame") == 1:  # the states are a sequence already
        labels = [label.removesuffix(" s") for label in source]
        scaled = [media_layout.scale_to_peak(row) for row in weights]
        print_heat_map(out, scaled, labels, target, PEAK_OF_WORD)
        return
    out.print(render_grid_maps(preview, weights, target, color=out.color_system is not None, width=out.width))
    others = media_layout.other_states(preview, len(source))
    if others:
        print_heat_map(out, [[row[j] for j in others] for row in weights], [source[j] for j in others], target)


def scale_rows(rows: Sequence[Sequence[float]]) -> list[list[float]]:
    """Scale a matrix to 0 … 1: the smallest value, or 0 if that is smaller, becomes 0, the largest 1."""
    values = [x for row in rows for x in row]
    low, high = min(0.0, min(values, default=0.0)), max(values, default=0.0)
    return [[(x - low) / ((high - low) or 1.0) for x in row] for row in rows]
