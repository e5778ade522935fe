"""A prediction as it shows itself in a notebook: the text, its log-probability, and where the model looked.

    Prediction ─→ one <div> with an SVG: source tokens on top, target tokens at the left, a square for each weight
                  of an image or a clip: it, once more for each word, under a veil where the word did not look, and with
                  an edge where it looked most
                  of a sound: its frames, and a row of weights for each word below them

No script: notebooks run none until they are trusted. Colors are set for light pages and for dark ones by opacity of one
ink, so that both are readable. Sizes are in pixels.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.cells import cell_len

from dragoman.inspection.media_layout import (
    AROUND,
    SIGNAL,
    THICKEST,
    VEIL,
    grids,
    pictures,
    scaled,
    spoken,
    states,
    strongest,
    titles,
)
from dragoman.inspection.render.terminal import visible

if TYPE_CHECKING:
    from dragoman.inference.pipeline import Prediction

CELL, LETTER, GAP = 18, 7.2, 6  # a square, the width of a character, between labels and squares
LONGEST = 24  # characters of a label
BLUE = "#0072b2"
PICTURE, BESIDE = 112, 6  # the side of an image, and how many stand side by side
SOUND, HIGH, ROW = 640, 100, 14  # the width and height of a sound's frames, and the height of a row of weights


def html(prediction: Prediction) -> str:
    """The prediction as a piece of a page."""
    parts = [f"<div><b>{escape(prediction.text)}</b> <small>log p {prediction.log_prob:.3f}</small>"]
    if prediction.attention is not None:
        weights = np.nan_to_num(prediction.attention)
        target = [*prediction.tokens, "</s>"][: len(weights)]
        if prediction.media_preview is None:
            parts.append(heat_map(weights, prediction.source_tokens, target))
        else:
            draw = lanes if prediction.media_preview["kind"] == "sound" else strip
            parts.append(draw(prediction.media_preview, weights, target))
    others = "".join(
        f"<li>{escape(other.text)} <small>log p {other.log_prob:.3f}</small></li>" for other in prediction.alternatives
    )
    return "".join([*parts, f"<ol start='2'>{others}</ol>" if others else "", "</div>"])


def heat_map(weights: np.ndarray, source: Sequence[str], target: Sequence[str]) -> str:
    """Weights (T, S) in [0, 1] as an SVG."""
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


def strip(medium: Mapping[str, Any], weights: np.ndarray, target: Sequence[str]) -> str:
    """An image, or the frames of a clip, for each word; weights (T, S)."""
    seen = pictures(medium)
    side = PICTURE if len(seen) == 1 else PICTURE / 2
    beside = max(1, int(BESIDE * PICTURE / (side * len(seen))))
    names, marks = titles(medium, [_label(token) for token in target], weights), []
    across, down = side * len(seen) + GAP, side + CELL + GAP
    for t, (name, row) in enumerate(zip(names, weights, strict=True)):
        x, y = across * (t % beside), down * (t // beside)
        every = grids(medium, row)
        high, wide = side / every.shape[1], side / every.shape[2]
        for k, a in enumerate(every):
            marks.append(_image(seen[k], t == 0, x + k * side, y, side, side))
            for (i, j), weight in np.ndenumerate(a):
                box = _box(x + k * side + j * wide, y + i * high, wide, high)
                marks.append(f"<rect {box} fill='{VEIL}' fill-opacity='{THICKEST * (1 - weight):.3f}'/>")
        peak = strongest(every)
        if peak is not None:
            k, i, j = peak
            place = f"M{x + k * side + j * wide:.1f},{y + i * high:.1f}h{wide:.1f}v{high:.1f}h{-wide:.1f}z"
            for color, width in ((AROUND, 4), (SIGNAL, 2)):
                marks.append(f"<path d='{place}' fill='none' stroke='{color}' stroke-width='{width}'/>")
        about = escape(f"{name}: {spoken(medium, row)}")
        marks.append(f"<text x='{x:.1f}' y='{y + side + CELL * 0.7:.1f}'>{escape(name)}<title>{about}</title></text>")
    return _svg(across * min(beside, len(target)), down * -(-len(target) // beside), marks)


def lanes(medium: Mapping[str, Any], weights: np.ndarray, target: Sequence[str]) -> str:
    """The frames of a sound, and a row of weights (T, S) for each word."""
    names = titles(medium, [_label(token) for token in target], weights)
    x0 = GAP + LETTER * max(map(cell_len, names), default=0)
    marks = [_image(medium["src"], True, x0, 0, SOUND, HIGH)]
    for t, (name, row) in enumerate(zip(names, weights, strict=True)):
        y, about = HIGH + GAP + ROW * t, escape(f"{name}: {spoken(medium, row)}")
        marks.append(
            f"<text x='{x0 - GAP:.1f}' y='{y + ROW * 0.8:.1f}' text-anchor='end'>{escape(name)}"
            f"<title>{about}</title></text>"
        )
        for (start, end), weight in zip(medium["spans"], scaled(row[states(medium)]), strict=True):
            box = _box(x0 + SOUND * start, y, SOUND * (end - start), ROW - 1)
            marks.append(f"<rect {box} fill='{BLUE}' fill-opacity='{0.05 + 0.95 * weight:.3f}'/>")
    return _svg(x0 + SOUND, HIGH + GAP + ROW * len(target), marks)


def _image(url: str, first: bool, x: float, y: float, width: float, height: float) -> str:
    """A picture, written out where it stands first; elsewhere, the same again."""
    name = f"seen-{hashlib.sha256(url.encode()).hexdigest()[:12]}"
    if not first:
        return f"<use href='#{name}' x='{x:.1f}' y='{y:.1f}'/>"
    size = f"width='{width:.1f}' height='{height:.1f}' preserveAspectRatio='none'"
    inside = f"<image id='{name}' href='{escape(url)}' {size} style='image-rendering: pixelated'/>"
    return f"<g transform='translate({x:.1f},{y:.1f})'>{inside}</g>"


def _box(x: float, y: float, width: float, height: float) -> str:
    return f"x='{x:.1f}' y='{y:.1f}' width='{width:.2f}' height='{height:.2f}'"


def _svg(width: float, height: float, marks: Sequence[str]) -> str:
    look = "style='display: block' font-family='monospace' font-size='12' fill='currentColor'"
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' role='img' aria-label='where the model looked' width='{width:.0f}' "
        f"height='{height:.0f}' {look}>{''.join(marks)}</svg>"
    )


def _label(token: str) -> str:
    shown = visible(token)
    return shown if len(shown) <= LONGEST else f"{shown[: LONGEST - 1]}…"
