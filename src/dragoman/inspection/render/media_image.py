"""Image files of attention over an image, a video or audio: PNG, SVG or PDF, by the suffix of the file.

    image   the picture, then once more for each word, under a veil where its weights are small; the strongest cell has
            a bright edge (Xu et al. 2015, figure 3, but readable on light pictures; see media_layout.py)
    video   the same with all of its frames
    audio   its spectrogram, and below it a row of weights for each word, aligned in time

Sizes are in inches.
"""

from __future__ import annotations

import base64
import io
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from rich.cells import cell_len, chop_cells

from dragoman.inspection import media_layout
from dragoman.inspection.media_layout import MediaPreview
from dragoman.inspection.render.image import FAINT, INK, FontSet, check_format, new_figure, save_figure
from dragoman.inspection.render.terminal import shorten, visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 8.4  # of a page
MARGIN, GAP, TITLE, LINE, CAPTION = 0.15, 0.14, 0.42, 0.19, 0.24  # a title of one line, and each further one
IMAGE, FRAME = 1.23, 0.62  # the side of an image, and of a video's frame
SPECTROGRAM, ROW, LABELS, AXIS = 1.1, 0.19, 1.0, 0.5  # heights of a spectrogram and of a row; width of words; time axis
MAX_WORD = 18  # characters
MAX_NAME = 48  # characters of a source's name; a wide one counts twice
LINE_FILL = 0.95  # of a line's width: at another resolution letters are up to 4 % wider


@dataclass(frozen=True)
class MediaAttention:
    """The preview of a source, the weights (T, S) of T words over it, and the texts of its title."""

    media_preview: MediaPreview
    weights: Sequence[Sequence[float]]
    target: Sequence[str]
    source: str = ""
    result: str = ""
    model: str = ""

    @property
    def title(self) -> str:
        """The title on one line, model: source → result; the middle of long source names is left out."""
        source = " · ".join(shorten_name(part) for part in self.source.split("\t"))
        result = self.result.replace("\t", " ")
        return f"{self.model}: {source} → {result}" if self.model else f"{source} → {result}" if source else result


@dataclass
class Sheet:
    """A page that is filled from the top; `y` is where its free part begins."""

    figure: Figure
    fonts: FontSet
    height: float
    y: float = MARGIN

    def add_axes(self, x: float, y: float, width: float, height: float) -> Axes:
        """Add axes without ticks at x inches from the left and y from the top of the sheet, and return them."""
        box = (x / WIDTH, 1 - (y + height) / self.height, width / WIDTH, height / self.height)
        axes = self.figure.add_axes(box)
        axes.set(xticks=[], yticks=[])
        for spine in axes.spines.values():
            spine.set(edgecolor=FAINT, linewidth=0.6)
        return axes

    def write(self, x: float, y: float, text: str, size: float, *, va: str, bold: bool = False) -> None:
        """Write a text x inches from the left and y from the top; `va` is its vertical alignment."""
        weight, drawable = "bold" if bold else "normal", self.fonts.drawable(text)
        style = self.fonts.style(size)
        self.figure.text(x / WIDTH, 1 - y / self.height, drawable, va=va, fontweight=weight, **style)


def draw_media_attention(path: str | Path, items: Sequence[MediaAttention]) -> None:
    """Draw attention over images, videos or audio into an image file, one item below the other."""
    path = check_format(path)
    figure = new_figure()
    fonts = FontSet([text for item in items for text in (*map(visible, item.target), item.title, "…·%")])
    titles = [_wrap_title(figure, fonts, item.title) for item in items]
    heights = [_title_height(lines) + _content_height(item) for item, lines in zip(items, titles, strict=True)]
    sheet = Sheet(figure, fonts, 2 * MARGIN + sum(heights))
    figure.set_size_inches(WIDTH, sheet.height)
    for item, lines, height in zip(items, titles, heights, strict=True):
        for i, line in enumerate(lines):
            sheet.write(MARGIN, sheet.y + 0.1 + i * LINE, line, 10, va="top", bold=True)
        draw = _draw_spectrogram if item.media_preview["kind"] == "audio" else _draw_pictures
        draw(sheet, item, sheet.y + _title_height(lines))
        sheet.y += height
    save_figure(figure, path)


def shorten_name(name: str) -> str:
    """Replace the middle of a name longer than MAX_NAME cells by …."""
    if cell_len(name) <= MAX_NAME:
        return name
    return f"{chop_cells(name, MAX_NAME * 2 // 3)[0]}…{chop_cells(name[::-1], MAX_NAME // 3 - 1)[0][::-1]}"


def _wrap_title(figure: Figure, fonts: FontSet, title: str) -> list[str]:
    """Wrap a title into lines of the page's width, between words where possible."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas: Any = FigureCanvasAgg(figure)
    renderer, max_width = canvas.get_renderer(), LINE_FILL * (WIDTH - 2 * MARGIN)

    def width(text: str) -> float:
        artist = figure.text(0, 0, fonts.drawable(text), fontweight="bold", **fonts.style(10))
        inches: float = artist.get_window_extent(renderer).width / figure.dpi
        artist.remove()
        return inches

    lines, rest = [], title.strip()
    while rest:
        fits = max(1, bisect_right(range(1, len(rest) + 1), max_width, key=lambda n: width(rest[:n])))
        space = rest.rfind(" ", 0, fits + 1)
        cut = len(rest) if fits == len(rest) else space if space > 0 else fits
        lines.append(rest[:cut])
        rest = rest[cut:].lstrip()
    return lines


def _title_height(lines: Sequence[str]) -> float:
    return TITLE + (len(lines) - 1) * LINE if lines else 0.0


def _content_height(item: MediaAttention) -> float:
    if item.media_preview["kind"] == "audio":
        return SPECTROGRAM + ROW * len(item.target) + AXIS + GAP
    side, per_row = _panel_grid(item)
    return -(-(len(item.target) + 1) // per_row) * (side + CAPTION + GAP)


# -- images and videos -------------------------------------------------------------------------------------------------


def _panel_grid(item: MediaAttention) -> tuple[float, int]:
    """Return the side of a picture in inches, and how many panels fit side by side."""
    count = len(media_layout.picture_urls(item.media_preview))
    width = WIDTH - 2 * MARGIN
    side = min(IMAGE if count == 1 else FRAME, width / count)
    return side, max(1, int((width + GAP) / (count * side + GAP)))


def _draw_pictures(sheet: Sheet, item: MediaAttention, top: float) -> None:
    pictures = [decode_data_url(url) for url in media_layout.picture_urls(item.media_preview)]
    side, per_row = _panel_grid(item)
    names = ["", *_word_labels(item)]
    grids = [np.ones((len(pictures), 1, 1))]
    grids += [media_layout.grid_weights(item.media_preview, row) for row in item.weights]
    for i, (name, a) in enumerate(zip(names, grids, strict=True)):
        row, column = divmod(i, per_row)
        x = MARGIN + column * (len(pictures) * side + GAP)
        y = top + row * (side + CAPTION + GAP)
        sheet.write(x, y + CAPTION - 0.05, name, 9, va="baseline")
        peak = media_layout.strongest_cell(a)
        for k, (pixels, weights) in enumerate(zip(pictures, a, strict=True)):
            axes = sheet.add_axes(x + k * side, y + CAPTION, side, side)
            axes.set_gid(f"panel-{i}")
            axes.imshow(pixels, extent=(0, 1, 0, 1), interpolation="nearest")
            # Interpolated between the centers of cells; a single cell covers its whole picture.
            axes.imshow(veil_pixels(weights), extent=(0, 1, 0, 1), interpolation="bilinear")
            if peak is not None and peak[0] == k:
                _draw_edge(axes, *peak[1:], weights.shape)


def veil_pixels(a: NDArray[np.float64]) -> NDArray[np.float64]:
    """Turn weights from 0 to 1 into RGBA (rows, columns, 4): gray, and more transparent the larger the weight."""
    from matplotlib.colors import to_rgb

    gray = np.ones((*a.shape, 4))
    gray[..., :3] = to_rgb(media_layout.VEIL)
    gray[..., 3] = media_layout.VEIL_OPACITY * (1 - a)
    return gray


def _draw_edge(axes: Axes, row: int, column: int, shape: tuple[int, ...]) -> None:
    from matplotlib.patches import Rectangle

    high, wide = 1 / shape[0], 1 / shape[1]
    for color, width in ((media_layout.EDGE_OUTLINE, 2.6), (media_layout.EDGE, 1.4)):
        box = Rectangle((column * wide, 1 - (row + 1) * high), wide, high, fill=False, edgecolor=color, linewidth=width)
        box.set(clip_on=False, zorder=4, gid="strongest")  # also on the picture's own border
        axes.add_patch(box)


def decode_data_url(url: str) -> NDArray[Any]:
    """Decode the pixels of a base64 image in a data URL."""
    from matplotlib.image import imread

    pixels: NDArray[Any] = imread(io.BytesIO(base64.b64decode(url.partition(",")[2])))
    return pixels


def _word_labels(item: MediaAttention) -> list[str]:
    names = media_layout.word_titles(item.media_preview, [visible(word) for word in item.target], item.weights)
    return [shorten(name, MAX_WORD) for name in names]


# -- audio -------------------------------------------------------------------------------------------------------------


def _draw_spectrogram(sheet: Sheet, item: MediaAttention, top: float) -> None:
    preview, width = item.media_preview, WIDTH - 2 * MARGIN - LABELS
    above = sheet.add_axes(MARGIN + LABELS, top, width, SPECTROGRAM)
    above.imshow(
        decode_data_url(preview["src"]), extent=(0, 1, 0, 1), aspect="auto", cmap="gray", interpolation="nearest"
    )
    below = sheet.add_axes(MARGIN + LABELS, top + SPECTROGRAM, width, ROW * len(item.target))
    a = np.array([media_layout.scaled_weights(preview, row) for row in item.weights])
    edges = [0.0, *(end for _, end in preview["spans"])]
    below.pcolormesh(edges, np.arange(len(a) + 1), a, cmap="Blues", vmin=0.0, vmax=1.0)
    below.invert_yaxis()
    names = [sheet.fonts.drawable(name) for name in _word_labels(item)]
    style = sheet.fonts.style(8)
    below.set_yticks(np.arange(len(a)) + 0.5, labels=names, **style)
    below.tick_params(length=0, pad=4)
    times = media_layout.time_ticks(preview["seconds"])
    below.set_xticks([t / preview["seconds"] for t in times], labels=[f"{t:.10g}" for t in times], **style)
    below.set_xlabel("seconds", labelpad=2, **style)
    below.tick_params(axis="x", length=3, color=INK)
