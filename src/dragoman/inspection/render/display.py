"""A view that draws itself: what `model.alignment(text)` and its like return in Python.

print(drawing)       the view as in a terminal, without color; rich.print adds color
a notebook's cell    an SVG of the attention, or the terminal's drawing in its colors
drawing.data         the plain data of the view
"""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console, ConsoleOptions
from rich.text import Text

from dragoman.inspection.render.notebook import render_attention
from dragoman.inspection.render.terminal import shorten
from dragoman.inspection.views import ViewData, find_view

if TYPE_CHECKING:
    from dragoman.core.types import Example
    from dragoman.inference.pipeline import Pipeline

HTML_WIDTH = 110  # characters
MAX_TEXT = 40  # characters of a text in a repr


class Drawing:
    """The data of a view, drawn in a terminal or a notebook."""

    def __init__(self, data: ViewData) -> None:
        self.data = data

    def __str__(self) -> str:
        out = Console(file=io.StringIO(), width=shutil.get_terminal_size().columns, color_system=None, highlight=False)
        find_view(self.data["view"]).print_view(out, self.data)
        text: str = out.file.getvalue()  # type: ignore[attr-defined]
        return text.rstrip("\n")

    def __repr__(self) -> str:
        texts = [self.data.get("source_text"), self.data.get("target_text")]
        if self.data.get("results"):  # of a beam
            texts[1] = self.data["results"][0]["text"]
        elif self.data.get("free"):  # of single steps
            texts[1] = self.data["free"]["text"]
        shown = " → ".join(repr(shorten(text, MAX_TEXT)) for text in texts if text is not None)
        return f"<{self.data['view']}: {shown}>"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        color: Any = console.color_system
        out = Console(
            file=io.StringIO(), width=options.max_width, force_terminal=True, color_system=color, highlight=False
        )
        find_view(self.data["view"]).print_view(out, self.data)
        yield Text.from_ansi(out.file.getvalue().rstrip("\n"), no_wrap=True)  # type: ignore[attr-defined]

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Draw the view in an IPython terminal."""
        printer.text(repr(self) if cycle else str(self))

    def _repr_html_(self) -> str:
        """Draw the view in a notebook."""
        if self.data["view"] == "alignment" and self.data["soft"] is not None:
            weights, preview = np.asarray(self.data["soft"], dtype=float), self.data["media_preview"]
            heading = f"{self.data['source_text']} → {self.data['target_text']}"
            return render_attention(heading, weights, self.data["source"], self.data["target"], preview)
        out = Console(
            file=io.StringIO(),
            width=HTML_WIDTH,
            record=True,
            force_terminal=True,
            color_system="truecolor",
            highlight=False,
        )
        find_view(self.data["view"]).print_view(out, self.data)
        style = "font-family: monospace; line-height: 1.2; overflow-x: auto"
        return out.export_html(code_format=f"<pre style='{style}'>{{code}}</pre>", inline_styles=True)


def draw_view(pipeline: Pipeline, name: str, source: str | Example, target: str | None, **options: Any) -> Drawing:
    """Compute a view of one source and an optional target; a model that cannot show it raises UserError."""
    view = find_view(name)
    given = {option: value for option, value in options.items() if value is not None}
    if view.fallback is not None and target is None and view.blocker(pipeline) is not None:
        return Drawing(view.fallback(pipeline, source, **given))
    return Drawing(view(pipeline, source, target, **given))
