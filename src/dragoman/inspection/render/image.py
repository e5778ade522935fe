"""Image files of attention maps and of quality by length: PNG, SVG or PDF, by the suffix of the file.

Every cell of a map is a square of the same size: the image grows with the matrix, and no label is cut off. matplotlib
is imported only when an image is drawn, and its global state (pyplot, rcParams) is never changed. T target tokens,
S source tokens; sizes are in inches.
"""

from __future__ import annotations

import io
import itertools
import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.cells import cell_len

from dragoman.core import files
from dragoman.core.errors import MissingExtra, UserError
from dragoman.inspection.render.terminal import shorten, visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from numpy.typing import ArrayLike, NDArray

    from dragoman.evaluation.by_length import LengthBucket

FORMATS = (".png", ".svg", ".pdf")
CELL = 0.22  # the side of a cell
MAX_SIZE = 40.0  # of all cells together: beyond it they shrink, so that a huge matrix does not exhaust memory
GAP, EDGE = 0.3, 0.1  # between panels; around everything
DPI, MAX_PIXELS = 200, 6000  # the resolution of a PNG, and its longest side
MAX_LABEL = 40  # characters
INK, FAINT = "#24292f", "#d8dfe6"
# Okabe and Ito's colors, which color-blind readers can tell apart; the marks differ too, for print in gray.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
MARKS = "osD^vPX"


@dataclass(frozen=True)
class AttentionPanel:
    """One attention map: weights (T, S) in [0, 1], its tokens, and its title."""

    weights: ArrayLike
    source: Sequence[str]
    target: Sequence[str]
    title: str = ""


# -- attention maps ----------------------------------------------------------------------------------------------------


def draw_attention(path: str | Path, panels: Sequence[AttentionPanel]) -> None:
    """Draw attention maps on a grid into an image file, all on one color scale."""
    path = check_format(path)
    matrices = [np.asarray(panel.weights, dtype=float) for panel in panels]
    figure = new_figure()
    tokens = (visible(token) for panel in panels for token in (*panel.source, *panel.target))
    fonts = FontSet([*tokens, *(panel.title for panel in panels)])
    columns = _count_columns(matrices)
    size = columns * max(a.shape[1] for a in matrices), math.ceil(len(panels) / columns) * max(map(len, matrices))
    cell = min(CELL, MAX_SIZE / max(size))
    # Where all weights are small (long sources, flat heads) a scale up to 1 would leave the map white: the scale
    # then ends at the largest weight, and a color bar shows it.
    peak = max((float(a[np.isfinite(a)].max(initial=0.0)) for a in matrices), default=0.0)
    top = peak if 0.0 < peak < 0.5 else 1.0
    axes = [_draw_panel(figure, panel, a, cell, top, fonts) for panel, a in zip(panels, matrices, strict=True)]
    if top < 1.0:
        axes.append(_draw_colorbar(figure, axes[columns - 1], fonts))
    _arrange_panels(figure, axes, len(matrices), columns)
    save_figure(figure, path)


def _count_columns(matrices: Sequence[NDArray[np.float64]]) -> int:
    """Choose how many panels stand side by side, for an image of about 3 : 2 with few empty cells."""
    wide = max(a.shape[1] for a in matrices) + 4  # labels need about four cells
    high = max(a.shape[0] for a in matrices) + 4

    def cost(columns: int) -> float:
        rows = math.ceil(len(matrices) / columns)
        empty = rows * columns - len(matrices)
        return abs(math.log(columns * wide / (rows * high) / 1.5)) + empty / len(matrices)

    return min(range(1, len(matrices) + 1), key=cost)


def _draw_panel(
    figure: Figure, panel: AttentionPanel, a: NDArray[np.float64], cell: float, top: float, fonts: FontSet
) -> Axes:
    rows, columns = a.shape
    width, height = figure.get_size_inches()
    axes = figure.add_axes((0, 0, columns * cell / width, rows * cell / height))
    borders = 0.4 if cell > CELL / 2 else 0.0
    axes.pcolormesh(a, cmap="Blues", vmin=0.0, vmax=top, edgecolors=FAINT, linewidth=borders)
    axes.invert_yaxis()
    axes.set_facecolor("#f2d5d5")  # shows through where a weight is not a number
    style = fonts.style(0.55 * 72 * cell)
    source, target = (
        [shorten(fonts.drawable(visible(token)), MAX_LABEL) for token in tokens]
        for tokens in (panel.source, panel.target)
    )
    axes.set_xticks(np.arange(columns) + 0.5, labels=source, **style)
    axes.set_yticks(np.arange(rows) + 0.5, labels=target, **style)
    axes.tick_params(length=0, pad=3, top=True, labeltop=True, bottom=False, labelbottom=False)
    for label, rotated in zip(axes.get_xticklabels(), _rotated_labels(source), strict=True):
        label.set_rotation(90 if rotated else 0)
    for spine in axes.spines.values():
        spine.set(edgecolor=FAINT, linewidth=0.6)
    if panel.title:
        width = max(18, int(columns * cell / 0.09))  # a bold letter of 10 points is about 0.09 wide
        title = textwrap.fill(fonts.drawable(panel.title), width, break_long_words=False)
        axes.set_title(title, pad=6, fontweight="bold", **fonts.style(10))
    return axes


def _rotated_labels(labels: Sequence[str]) -> list[bool]:
    """Return for each label whether it is rotated: the long ones, or all where most are long."""
    long = [cell_len(label) > 2 for label in labels]
    return [True] * len(labels) if 2 * sum(long) > len(labels) else long


def _draw_colorbar(figure: Figure, axes: Axes, fonts: FontSet) -> Axes:
    """Draw the color scale of `axes` as a slim bar with three ticks; _arrange_panels moves it."""
    width, height = figure.get_size_inches()
    bar_axes = figure.add_axes((0, 0, 0.12 / width, min(axes.get_position().height, 2.5 / height)))
    bar = figure.colorbar(axes.collections[0], cax=bar_axes)
    bar.outline.set(edgecolor=FAINT, linewidth=0.6)
    low, high = bar.mappable.get_clim()
    ticks = np.linspace(low, high, 3)
    bar.set_ticks(list(ticks), labels=[f"{tick:.2g}" for tick in ticks], **fonts.style(8))
    bar_axes.tick_params(length=2, color=FAINT)
    return bar_axes


def _arrange_panels(figure: Figure, axes: Sequence[Axes], panels: int, columns: int) -> None:
    """Resize the figure and arrange its `panels` on a grid; a color bar, if any, stands right of the first row."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas: Any = FigureCanvasAgg(figure)
    renderer = canvas.get_renderer()
    # Each axes' own box and the margins around it: left, right, above, below.
    sizes, margins = [], []
    for each in axes:
        inner, outer = each.get_window_extent(renderer), each.get_tightbbox(renderer)
        assert outer is not None  # every panel is visible
        sizes.append((inner.width / figure.dpi, inner.height / figure.dpi))
        margin = (inner.x0 - outer.x0, outer.x1 - inner.x1, outer.y1 - inner.y1, inner.y0 - outer.y0)
        margins.append([max(0.0, side) / figure.dpi for side in margin])
    cells = [divmod(i, columns) for i in range(panels)] + [(0, columns) for _ in axes[panels:]]

    def lines(which: int, before: int, after: int) -> tuple[list[float], float]:
        starts, at = [], EDGE
        for line in range(max(cell[which] for cell in cells) + 1):
            own = [i for i, cell in enumerate(cells) if cell[which] == line]
            starts.append(at + max(margins[i][before] for i in own))
            at = starts[-1] + max(sizes[i][1 - which] + margins[i][after] for i in own) + GAP
        return starts, at - GAP + EDGE

    lefts, width = lines(1, 0, 1)
    tops, height = lines(0, 2, 3)
    figure.set_size_inches(width, height)
    for each, (row, column), (wide, high) in zip(axes, cells, sizes, strict=True):
        each.set_position((lefts[column] / width, 1 - (tops[row] + high) / height, wide / width, high / height))


# -- quality by length -------------------------------------------------------------------------------------------------


def draw_quality_curves(
    path: str | Path, series: Mapping[str, Sequence[LengthBucket]], *, xlabel: str, ylabel: str, title: str = ""
) -> None:
    """Draw each model's quality by length with intervals, and below it bars of pair counts, into an image file."""
    path = check_format(path)
    figure = new_figure()
    figure.set_layout_engine("constrained")
    figure.set_size_inches(6.4, 4.4)
    fonts = FontSet((*series, xlabel, ylabel, title))
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(6, 1))
    lines = [_draw_curve(above, i, buckets) for i, buckets in enumerate(series.values())]
    _draw_counts(below, max(series.values(), key=len))  # all models have the same pairs
    above.set_ylabel(fonts.drawable(ylabel), **fonts.style(10))
    below.set_ylabel("pairs", **fonts.style(8))
    below.set_xlabel(fonts.drawable(xlabel), **fonts.style(10))
    if title:
        above.set_title(fonts.drawable(title), loc="left", pad=10, fontweight="bold", **fonts.style(11))
    if len(series) > 1:
        _draw_legend(above, lines, list(series), fonts)
    for axes, ticks in ((above, 6), (below, 2)):
        _style_axes(axes, ticks, fonts)
    save_figure(figure, path)


def _middle(bucket: LengthBucket) -> float:
    return (bucket.low + bucket.high) / 2


def _draw_curve(axes: Axes, i: int, buckets: Sequence[LengthBucket]) -> Line2D:
    color, mark = COLORS[i % len(COLORS)], MARKS[i % len(MARKS)]
    x, y = list(map(_middle, buckets)), [bucket.score for bucket in buckets]
    low, high = ([bucket.interval[end] for bucket in buckets] for end in (0, 1))
    if len(buckets) == 1:  # a band needs two points
        axes.vlines(x, low, high, color=color, alpha=0.4, linewidth=1.2)
    axes.fill_between(x, low, high, color=color, alpha=0.15, linewidth=0)
    (line,) = axes.plot(x, y, color=color, marker=mark, markersize=4.5, linewidth=1.6, markeredgecolor="white")
    return line


def _draw_counts(axes: Axes, buckets: Sequence[LengthBucket]) -> None:
    xs = list(map(_middle, buckets))
    nearest = min((after - before for before, after in itertools.pairwise(xs)), default=1.0)
    axes.bar(xs, [bucket.count for bucket in buckets], width=0.7 * nearest, color="#afb8c1", linewidth=0)
    axes.set_xlim(xs[0] - 0.7 * nearest, xs[-1] + 0.7 * nearest)


def _draw_legend(axes: Axes, lines: Sequence[Line2D], names: Sequence[str], fonts: FontSet) -> None:
    # Names are set afterwards: a legend leaves out entries that begin with "_", and would read "$" as mathematics.
    legend = axes.legend(lines, [f"{i}" for i in range(len(lines))], frameon=False, loc="best", handlelength=1.8)
    for text, name in zip(legend.get_texts(), names, strict=True):
        text.set(text=fonts.drawable(name), **fonts.style(9))


def _style_axes(axes: Axes, ticks: int, fonts: FontSet) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(nbins=10, integer=True, min_n_ticks=1))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=ticks))
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#8c959f")
    axes.grid(axis="y", color="#eaeef2", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(length=3, color="#8c959f", labelcolor=INK, labelsize=8.5, labelfontfamily=fonts.families)


# -- fonts and files ---------------------------------------------------------------------------------------------------


class FontSet:
    """Fonts for the texts of one image: DejaVu, then installed fonts for characters that it lacks (CJK, say)."""

    def __init__(self, texts: Iterable[str]) -> None:
        from matplotlib import font_manager

        self.families = ["DejaVu Sans"]
        self.missing = {c for text in texts for c in text if c.isprintable()} - _font_characters(
            font_manager.findfont("DejaVu Sans")
        )
        if not self.missing:
            return
        fonts = {font.name: font.fname for font in font_manager.fontManager.ttflist if "Resort" not in font.name}
        covered = {name: self.missing & _font_characters(file) for name, file in sorted(fonts.items())}
        for name in sorted(covered, key=lambda name: -len(covered[name])):
            if covered[name] & self.missing:
                self.families.append(name)
                self.missing -= covered[name]

    def drawable(self, text: str) -> str:
        """Replace characters that no font can draw, or that are not printable, by <code point>."""
        return "".join(f"<{ord(c):04X}>" if c in self.missing or not c.isprintable() else c for c in text)

    def style(self, size: float) -> dict[str, Any]:
        """Return matplotlib's options for a text of this size; "$" is not read as mathematics."""
        return {"fontsize": size, "fontfamily": self.families, "color": INK, "parse_math": False, "usetex": False}


def _font_characters(font: str) -> set[str]:
    from matplotlib.font_manager import get_font

    try:
        return {chr(code) for code in get_font(font).get_charmap()}
    except (OSError, RuntimeError):  # a broken font file on this machine
        return set()


def check_format(path: str | Path) -> Path:
    """Return the path as a Path; raise UserError unless its suffix is an image format."""
    path = Path(path)
    if path.suffix.lower() not in FORMATS:
        raise UserError(f"{path}: an image cannot be written as '{path.suffix}'; use one of {', '.join(FORMATS)}")
    return path


def new_figure() -> Figure:
    """Create an empty figure; raise MissingExtra where matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtra("matplotlib", "plots", "Drawing images") from error
    return Figure(figsize=(10, 10), dpi=100, facecolor="white")


def save_figure(figure: Figure, path: Path) -> None:
    """Draw a figure into memory, in the format of the path's suffix, then write the whole file at once."""
    image = io.BytesIO()
    dpi = min(DPI, MAX_PIXELS / max(figure.get_size_inches()))
    figure.savefig(image, format=path.suffix.lower()[1:], dpi=dpi, facecolor="white")
    files.write_output(path, image.getvalue())
