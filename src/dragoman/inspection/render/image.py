"""Pictures for papers and pages: attention maps, and quality by length. PNG, SVG or PDF, by the name of the file.

    alignment   one or more maps in a grid, source tokens on top, target tokens at the left; every cell is a square of
                the same size, so the picture grows with the matrix and no label is cut off
    curves      a line with its interval for each model, and below it how many pairs each point stands on

matplotlib is imported only when a picture is drawn, and its global state (pyplot, rcParams) is never touched. A file is
written aside and renamed, so that there is never half a picture. T target tokens, S source tokens; sizes are in inches.
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
from dragoman.inspection.render.terminal import visible

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

FORMATS = (".png", ".svg", ".pdf")
CELL = 0.22  # the side of a cell
LARGEST = 40.0  # of all cells together: beyond it they shrink, so that a huge matrix does not exhaust memory
GAP, EDGE = 0.3, 0.1  # between panels; around everything
DPI, PIXELS = 200, 6000  # the resolution of a PNG, and its longest side
LONGEST = 40  # characters of a label
INK, FAINT = "#24292f", "#d8dfe6"
# Okabe and Ito's colors, which color-blind readers can tell apart; the marks differ too, for print in gray.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
MARKS = "osD^vPX"


@dataclass(frozen=True)
class Panel:
    """One attention map: weights (T, S) in [0, 1], its tokens, and what to write above it."""

    weights: ArrayLike
    source: Sequence[str]
    target: Sequence[str]
    title: str = ""


@dataclass(frozen=True)
class Point:
    """Quality y of the `count` pairs of length x (or around it), with the interval from low to high."""

    x: float
    y: float
    low: float
    high: float
    count: int


# -- attention maps ----------------------------------------------------------------------------------------------------


def alignment(path: str | Path, panels: Sequence[Panel]) -> None:
    """Draw attention maps side by side, all on one scale."""
    path = checked(path)
    matrices = [_matrix(panel) for panel in panels]
    if not matrices:
        raise ValueError("there is no panel to draw")
    figure = paper()
    tokens = (visible(token) for panel in panels for token in (*panel.source, *panel.target))
    letters = Letters([*tokens, *(panel.title for panel in panels)])
    columns = _columns(matrices)
    cell = _cell(matrices, columns)
    # Where all weights are small (long sources, unsure heads) a scale up to 1 would leave the map white: the scale
    # then ends at the largest weight, and a color bar says so.
    peak = max((float(a[np.isfinite(a)].max(initial=0.0)) for a in matrices), default=0.0)
    top = peak if 0.0 < peak < 0.5 else 1.0
    axes = [_draw(figure, panel, a, cell, top, letters) for panel, a in zip(panels, matrices, strict=True)]
    if top < 1.0:
        axes.append(_colorbar(figure, axes[columns - 1], letters))
    _arrange(figure, axes, len(matrices), columns)
    save(figure, path)


def _matrix(panel: Panel) -> NDArray[np.float64]:
    a = np.asarray(panel.weights, dtype=float)
    if a.shape != (len(panel.target), len(panel.source)) or not a.size:
        raise ValueError(
            f"panel '{panel.title}': weights are {a.shape}; {len(panel.target)} target and {len(panel.source)} source "
            "tokens were given, and there must be at least one of each"
        )
    return a


def _columns(matrices: Sequence[NDArray[np.float64]]) -> int:
    """How many panels stand side by side: a picture about 3 wide and 2 high, with few empty places."""
    wide = max(a.shape[1] for a in matrices) + 4  # labels need about four cells
    high = max(a.shape[0] for a in matrices) + 4

    def badness(columns: int) -> float:
        rows = math.ceil(len(matrices) / columns)
        empty = rows * columns - len(matrices)
        return abs(math.log(columns * wide / (rows * high) / 1.5)) + empty / len(matrices)

    return min(range(1, len(matrices) + 1), key=badness)


def _cell(matrices: Sequence[NDArray[np.float64]], columns: int) -> float:
    rows = math.ceil(len(matrices) / columns)
    wide, high = (max(a.shape[side] for a in matrices) for side in (1, 0))
    return min(CELL, LARGEST / max(int(columns * wide), int(rows * high)))


def _draw(figure: Any, panel: Panel, a: NDArray[np.float64], cell: float, top: float, letters: Letters) -> Any:
    """The axes of one panel, of the right size and not yet in its place."""
    rows, columns = a.shape
    width, height = figure.get_size_inches()
    axes = figure.add_axes((0, 0, columns * cell / width, rows * cell / height))
    borders = 0.4 if cell > CELL / 2 else 0.0
    axes.pcolormesh(a, cmap="Blues", vmin=0.0, vmax=top, edgecolors=FAINT, linewidth=borders)
    axes.invert_yaxis()
    axes.set_facecolor("#f2d5d5")  # shows through where a weight is not a number
    style = letters.style(0.55 * 72 * cell)
    source, target = ([_label(token, letters) for token in tokens] for tokens in (panel.source, panel.target))
    axes.set_xticks(np.arange(columns) + 0.5, labels=source, **style)
    axes.set_yticks(np.arange(rows) + 0.5, labels=target, **style)
    axes.tick_params(length=0, pad=3, top=True, labeltop=True, bottom=False, labelbottom=False)
    for label, turned in zip(axes.get_xticklabels(), _turned(source), strict=True):
        label.set_rotation(90 if turned else 0)
    for spine in axes.spines.values():
        spine.set(edgecolor=FAINT, linewidth=0.6)
    if panel.title:
        room = max(18, int(columns * cell / 0.09))  # a bold letter of 10 points is about 0.09 wide
        title = textwrap.fill(letters.drawable(panel.title), room, break_long_words=False)
        axes.set_title(title, pad=6, fontweight="bold", **letters.style(10))
    return axes


def _label(token: str, letters: Letters) -> str:
    shown = letters.drawable(visible(token))
    return shown if len(shown) <= LONGEST else f"{shown[: LONGEST - 1]}…"


def _turned(labels: Sequence[str]) -> list[bool]:
    """Which labels must be turned to fit over their cell: the long ones, or all where most are long."""
    long = [cell_len(label) > 2 for label in labels]
    return [True] * len(labels) if 2 * sum(long) > len(labels) else long


def _colorbar(figure: Any, axes: Any, letters: Letters) -> Any:
    """A slim scale, not higher than the panel it will stand beside."""
    width, height = figure.get_size_inches()
    beside = figure.add_axes((0, 0, 0.12 / width, min(axes.get_position().height, 2.5 / height)))
    bar = figure.colorbar(axes.collections[0], cax=beside)
    bar.outline.set(edgecolor=FAINT, linewidth=0.6)
    low, high = bar.mappable.get_clim()
    ticks = np.linspace(low, high, 3)
    bar.set_ticks(ticks, labels=[f"{tick:.2g}" for tick in ticks], **letters.style(8))
    beside.tick_params(length=2, color=FAINT)
    return beside


def _arrange(figure: Any, axes: Sequence[Any], panels: int, columns: int) -> None:
    """Put panels on a grid with the room their labels ask for; what follows them stands right of the first row."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas: Any = FigureCanvasAgg(figure)
    renderer = canvas.get_renderer()
    # Each axes' own box and the room around it: left, right, above, below.
    sizes, rooms = [], []
    for each in axes:
        inner, outer = each.get_window_extent(renderer), each.get_tightbbox(renderer)
        sizes.append((inner.width / figure.dpi, inner.height / figure.dpi))
        room = (inner.x0 - outer.x0, outer.x1 - inner.x1, outer.y1 - inner.y1, inner.y0 - outer.y0)
        rooms.append([max(0.0, side) / figure.dpi for side in room])
    spots = [divmod(i, columns) for i in range(panels)] + [(0, columns) for _ in axes[panels:]]

    def lines(which: int, before: int, after: int) -> tuple[list[float], float]:
        """Where the cells of each row (0) or column (1) of the grid begin, and where the last one ends."""
        starts, at = [], EDGE
        for line in range(max(spot[which] for spot in spots) + 1):
            mine = [i for i, spot in enumerate(spots) if spot[which] == line]
            starts.append(at + max(rooms[i][before] for i in mine))
            at = starts[-1] + max(sizes[i][1 - which] + rooms[i][after] for i in mine) + GAP
        return starts, at - GAP + EDGE

    lefts, width = lines(1, 0, 1)
    tops, height = lines(0, 2, 3)
    figure.set_size_inches(width, height)
    for each, (row, column), (wide, high) in zip(axes, spots, sizes, strict=True):
        each.set_position((lefts[column] / width, 1 - (tops[row] + high) / height, wide / width, high / height))


# -- quality by length -------------------------------------------------------------------------------------------------


def curves(
    path: str | Path, series: Mapping[str, Sequence[Point]], *, xlabel: str, ylabel: str, title: str = ""
) -> None:
    """Draw quality by length for one or several models, each with its interval."""
    path = checked(path)
    if not any(series.values()):
        raise ValueError("there is no point to draw")
    figure = paper()
    figure.set_layout_engine("constrained")
    figure.set_size_inches(6.4, 4.4)
    letters = Letters((*series, xlabel, ylabel, title))
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(6, 1))
    lines = [_curve(above, i, points) for i, points in enumerate(series.values())]
    _counts(below, series)
    above.set_ylabel(letters.drawable(ylabel), **letters.style(10))
    below.set_ylabel("pairs", **letters.style(8))
    below.set_xlabel(letters.drawable(xlabel), **letters.style(10))
    if title:
        above.set_title(letters.drawable(title), loc="left", pad=10, fontweight="bold", **letters.style(11))
    if len(series) > 1:
        _legend(above, lines, list(series), letters)
    for axes, ticks in ((above, 6), (below, 2)):
        _plain(axes, ticks, letters)
    save(figure, path)


def _curve(axes: Any, i: int, points: Sequence[Point]) -> Any:
    color, mark = COLORS[i % len(COLORS)], MARKS[i % len(MARKS)]
    points = sorted(points, key=lambda point: point.x)
    x, y = [point.x for point in points], [point.y for point in points]
    low, high = [point.low for point in points], [point.high for point in points]
    if len(points) == 1:  # a band needs two points
        axes.vlines(x, low, high, color=color, alpha=0.4, linewidth=1.2)
    axes.fill_between(x, low, high, color=color, alpha=0.15, linewidth=0)
    (line,) = axes.plot(x, y, color=color, marker=mark, markersize=4.5, linewidth=1.6, markeredgecolor="white")
    return line


def _counts(axes: Any, series: Mapping[str, Sequence[Point]]) -> None:
    """How many pairs stand behind each point; models scored on the same pairs share their bars."""
    counts: dict[float, int] = {}
    for points in series.values():
        for point in points:
            counts[point.x] = max(point.count, counts.get(point.x, 0))
    places = sorted(counts)
    nearest = min((after - before for before, after in itertools.pairwise(places)), default=1.0)
    axes.bar(places, [counts[x] for x in places], width=0.7 * nearest, color="#afb8c1", linewidth=0)
    axes.set_xlim(places[0] - 0.7 * nearest, places[-1] + 0.7 * nearest)


def _legend(axes: Any, lines: Sequence[Any], names: Sequence[str], letters: Letters) -> None:
    # Names are put in afterwards: a legend leaves out entries that begin with "_", and would read "$" as mathematics.
    legend = axes.legend(lines, [f"{i}" for i in range(len(lines))], frameon=False, loc="best", handlelength=1.8)
    for text, name in zip(legend.get_texts(), names, strict=True):
        text.set(text=letters.drawable(name), **letters.style(9))


def _plain(axes: Any, ticks: int, letters: Letters) -> None:
    """Two spines, a light grid, whole numbers below."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(nbins=10, integer=True, min_n_ticks=1))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=ticks))
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#8c959f")
    axes.grid(axis="y", color="#eaeef2", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(length=3, color="#8c959f", labelcolor=INK, labelsize=8.5, labelfontfamily=letters.families)


# -- letters and files -------------------------------------------------------------------------------------------------


class Letters:
    """Fonts for the texts of one picture: DejaVu, then installed fonts for what it lacks (CJK, say)."""

    def __init__(self, texts: Iterable[str]) -> None:
        from matplotlib import font_manager

        self.families = ["DejaVu Sans"]
        self.missing = {c for text in texts for c in text if c.isprintable()} - _covered(
            font_manager.findfont("DejaVu Sans")
        )
        if not self.missing:
            return
        fonts = {font.name: font.fname for font in font_manager.fontManager.ttflist if "Resort" not in font.name}
        covered = {name: self.missing & _covered(file) for name, file in sorted(fonts.items())}
        for name in sorted(covered, key=lambda name: -len(covered[name])):
            if covered[name] & self.missing:
                self.families.append(name)
                self.missing -= covered[name]

    def drawable(self, text: str) -> str:
        """The text with characters that no font can draw as <code point>, not as boxes that all look the same."""
        return "".join(f"<{ord(c):04X}>" if c in self.missing or not c.isprintable() else c for c in text)

    def style(self, size: float) -> dict[str, Any]:
        """How a text is set; "$" in a token is a dollar sign, not mathematics."""
        return {
            "fontsize": size,
            "fontfamily": self.families,
            "color": INK,
            "parse_math": False,
            "usetex": False,
        }


def _covered(font: str) -> set[str]:
    from matplotlib.font_manager import get_font

    try:
        return {chr(code) for code in get_font(font).get_charmap()}
    except (OSError, RuntimeError):  # a broken font file on this machine
        return set()


def checked(path: str | Path) -> Path:
    """The path, if its ending names a format."""
    path = Path(path)
    if path.suffix.lower() not in FORMATS:
        raise UserError(
            f"{path}: a picture cannot be written as '{path.suffix}'. End its name in {', '.join(FORMATS)}."
        )
    return path


def paper() -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtra("matplotlib", "plots", "Drawing pictures") from error
    return Figure(figsize=(10, 10), dpi=100, facecolor="white")


def save(figure: Any, path: Path) -> None:
    """Draw into memory, then write all of it at once."""
    picture = io.BytesIO()
    dpi = min(DPI, PIXELS / max(figure.get_size_inches()))
    figure.savefig(picture, format=path.suffix.lower()[1:], dpi=dpi, facecolor="white")
    files.make_folder(path.parent)
    files.write(path, picture.getvalue())
