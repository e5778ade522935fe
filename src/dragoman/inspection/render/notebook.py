"""A prediction as HTML for notebooks: the text, its log-probability, and its attention.

    Prediction ─→ one <div> with an SVG: source tokens on top, target tokens at the left, a square for each weight;
                  over an image, a video or audio as in media_image.py

Notebooks run no script until they are trusted, so there is none. Weights are the opacity of one color, which is
readable on light and dark pages. Sizes are in pixels.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

import numpy as np
from rich.cells import cell_len

from dragoman.inspection import media_layout
from dragoman.inspection.media_layout import MediaPreview
from dragoman.inspection.render.terminal import shorten, visible

if TYPE_CHECKING:
    from dragoman.inference.prediction import Prediction

CELL, LETTER, GAP = 18, 7.2, 6  # a square, the width of a character, between labels and squares
MAX_LABEL = 24  # characters
BLUE = "#0072b2"
PICTURE, PER_ROW = 112, 6  # the side of an image, and how many stand side by side
SPECTROGRAM_WIDTH, SPECTROGRAM_HEIGHT, ROW = 640, 100, 14  # ROW: the height of a row of weights


def render_prediction(prediction: Prediction) -> str:
    """Render a prediction as HTML: text, log p, attention over source or media, and alternatives."""
    parts = [f"<div><b>{escape(prediction.text)}</b> <small>log p {prediction.log_prob:.3f}</small>"]
    if prediction.attention is not None:
        target = [*prediction.tokens, "</s>"][: len(prediction.attention)]
        parts.append(_render_weights(prediction.attention, prediction.source_tokens, target, prediction.media_preview))
    others = "".join(
        f"<li>{escape(other.text)} <small>log p {other.log_prob:.3f}</small></li>" for other in prediction.alternatives
    )
    return "".join([*parts, f"<ol start='2'>{others}</ol>" if others else "", "</div>"])


def render_attention(
    heading: str, weights: np.ndarray, source: Sequence[str], target: Sequence[str], preview: MediaPreview | None
) -> str:
    """Render weights (T, S) as HTML, over the source's tokens or its media."""
    return f"<div><b>{escape(heading)}</b>{_render_weights(weights, source, target, preview)}</div>"


def _render_weights(
    attention: np.ndarray, source: Sequence[str], target: Sequence[str], preview: MediaPreview | None
) -> str:
    weights = np.nan_to_num(attention)
    if preview is None:
        return _render_heat_map(weights, source, target)
    return (_render_spectrogram if preview["kind"] == "audio" else _render_pictures)(preview, weights, target)


def _render_heat_map(weights: np.ndarray, source: Sequence[str], target: Sequence[str]) -> str:
    above, left = ([_label(token) for token in tokens] for tokens in (source, target))
    x0 = GAP + LETTER * max(map(cell_len, left), default=0)
    y0 = GAP + LETTER * max(map(cell_len, above), default=0)
    width, height = x0 + CELL * len(source) + GAP, y0 + CELL * len(target) + GAP
    marks = [
        f"<text x='{x0 - GAP:.1f}' y='{y0 + CELL * (t + 0.7):.1f}' text-anchor='end'>{escape(label)}</text>"
        for t, label in enumerate(left)
    ]
    for s, label in enumerate(above):
        x, y = x0 + CELL * (s + 0.7), y0 - GAP
        marks.append(f"<text transform='translate({x:.1f},{y:.1f}) rotate(-90)'>{escape(label)}</text>")
    for t, row in enumerate(weights):
        for s, weight in enumerate(row.tolist()):
            pair = escape(f"{left[t]} ← {above[s]}: {weight:.2f}")
            marks.append(
                f"<rect x='{x0 + CELL * s:.1f}' y='{y0 + CELL * t:.1f}' width='{CELL - 1}' height='{CELL - 1}' "
                f"fill='{BLUE}' fill-opacity='{0.05 + 0.95 * min(max(weight, 0.0), 1.0):.3f}'>"
                f"<title>{pair}</title></rect>"
            )
    return _svg(width, height, marks)


def _render_pictures(preview: MediaPreview, weights: np.ndarray, target: Sequence[str]) -> str:
    """Render an image, or the frames of a video, once for each word as an SVG, veiled by its weights (T, S)."""
    urls = media_layout.picture_urls(preview)
    side = PICTURE if len(urls) == 1 else PICTURE / 2
    per_row = max(1, int(PER_ROW * PICTURE / (side * len(urls))))
    names, marks = media_layout.word_titles(preview, [_label(token) for token in target], weights), []
    across, down = side * len(urls) + GAP, side + CELL + GAP
    for t, (name, row) in enumerate(zip(names, weights, strict=True)):
        x, y = across * (t % per_row), down * (t // per_row)
        grids = media_layout.grid_weights(preview, row)
        high, wide = side / grids.shape[1], side / grids.shape[2]
        for k, a in enumerate(grids):
            marks.append(_image(urls[k], t == 0, x + k * side, y, side, side))
            for (i, j), weight in np.ndenumerate(a):
                box = _box(x + k * side + j * wide, y + i * high, wide, high)
                opacity = media_layout.VEIL_OPACITY * (1 - weight)
                marks.append(f"<rect {box} fill='{media_layout.VEIL}' fill-opacity='{opacity:.3f}'/>")
        peak = media_layout.strongest_cell(grids)
        if peak is not None:
            k, i, j = peak
            outline = f"M{x + k * side + j * wide:.1f},{y + i * high:.1f}h{wide:.1f}v{high:.1f}h{-wide:.1f}z"
            for color, width in ((media_layout.EDGE_OUTLINE, 4), (media_layout.EDGE, 2)):
                marks.append(f"<path d='{outline}' fill='none' stroke='{color}' stroke-width='{width}'/>")
        title = escape(f"{name}: {media_layout.describe_peak(preview, row)}")
        marks.append(f"<text x='{x:.1f}' y='{y + side + CELL * 0.7:.1f}'>{escape(name)}<title>{title}</title></text>")
    return _svg(across * min(per_row, len(target)), down * -(-len(target) // per_row), marks)


def _render_spectrogram(preview: MediaPreview, weights: np.ndarray, target: Sequence[str]) -> str:
    names = media_layout.word_titles(preview, [_label(token) for token in target], weights)
    x0 = GAP + LETTER * max(map(cell_len, names), default=0)
    marks = [_image(preview["src"], True, x0, 0, SPECTROGRAM_WIDTH, SPECTROGRAM_HEIGHT)]
    for t, (name, row) in enumerate(zip(names, weights, strict=True)):
        y, title = SPECTROGRAM_HEIGHT + GAP + ROW * t, escape(f"{name}: {media_layout.describe_peak(preview, row)}")
        marks.append(
            f"<text x='{x0 - GAP:.1f}' y='{y + ROW * 0.8:.1f}' text-anchor='end'>{escape(name)}"
            f"<title>{title}</title></text>"
        )
        for (start, end), weight in zip(preview["spans"], media_layout.scaled_weights(preview, row), strict=True):
            box = _box(x0 + SPECTROGRAM_WIDTH * start, y, SPECTROGRAM_WIDTH * (end - start), ROW - 1)
            marks.append(f"<rect {box} fill='{BLUE}' fill-opacity='{0.05 + 0.95 * weight:.3f}'/>")
    return _svg(x0 + SPECTROGRAM_WIDTH, SPECTROGRAM_HEIGHT + GAP + ROW * len(target), marks)


def _image(url: str, first: bool, x: float, y: float, width: float, height: float) -> str:
    """Render the SVG of a picture: embedded if it is `first` used, else a reference to the embedded one."""
    name = f"seen-{hashlib.sha256(url.encode()).hexdigest()[:12]}"
    if not first:
        return f"<use href='#{name}' x='{x:.1f}' y='{y:.1f}'/>"
    size = f"width='{width:.1f}' height='{height:.1f}' preserveAspectRatio='none'"
    image = f"<image id='{name}' href='{escape(url)}' {size} style='image-rendering: pixelated'/>"
    return f"<g transform='translate({x:.1f},{y:.1f})'>{image}</g>"


def _box(x: float, y: float, width: float, height: float) -> str:
    return f"x='{x:.1f}' y='{y:.1f}' width='{width:.2f}' height='{height:.2f}'"


def _svg(width: float, height: float, marks: Sequence[str]) -> str:
    style = "style='display: block' font-family='monospace' font-size='12' fill='currentColor'"
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' role='img' aria-label='attention' width='{width:.0f}' "
        f"height='{height:.0f}' {style}>{''.join(marks)}</svg>"
    )


def _label(token: str) -> str:
    return shorten(visible(token), MAX_LABEL)
