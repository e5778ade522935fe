"""A prediction as it shows itself in a notebook: the text, its log-probability, and where the model looked.

    Prediction ─→ one <div> with an SVG: source tokens on top, target tokens at the left, a square for each weight

No script: notebooks run none until they are trusted. Colors are set for light pages and for dark ones by opacity of one
ink, so that both are readable. Sizes are in pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

import numpy as np
from rich.cells import cell_len

from dragoman.inspection.terminal import visible

if TYPE_CHECKING:
    from dragoman.pipeline import Prediction

CELL, LETTER, GAP = 18, 7.2, 6  # a square, the width of a character, between labels and squares
LONGEST = 24  # characters of a label
BLUE = "#0072b2"


def html(prediction: Prediction) -> str:
    """The prediction as a piece of a page."""
    parts = [f"<div><b>{escape(prediction.text)}</b> <small>log p {prediction.log_prob:.3f}</small>"]
    if prediction.attention is not None:
        target = [*prediction.tokens, "</s>"][: len(prediction.attention)]
        parts.append(heat_map(prediction.attention, prediction.source_tokens, target))
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
    for t, row in enumerate(np.nan_to_num(weights)):
        for s, weight in enumerate(row.tolist()):
            pair = escape(f"{left[t]} ← {above[s]}: {weight:.2f}")
            marks.append(
                f"<rect x='{x0 + CELL * s:.1f}' y='{y0 + CELL * t:.1f}' width='{CELL - 1}' height='{CELL - 1}' "
                f"fill='{BLUE}' fill-opacity='{0.05 + 0.95 * min(max(weight, 0.0), 1.0):.3f}'>"
                f"<title>{pair}</title></rect>"
            )
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' role='img' aria-label='where the model looked' width='{width:.0f}' "
        f"height='{height:.0f}' font-family='monospace' font-size='12' fill='currentColor'>{''.join(marks)}</svg>"
    )


def _label(token: str) -> str:
    shown = visible(token)
    return shown if len(shown) <= LONGEST else f"{shown[: LONGEST - 1]}…"
