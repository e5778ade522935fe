"""Format results as text, TSV or JSON lines, and write them; views as a page."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from dragoman.cli.options import print_to_stderr
from dragoman.core.json import replace_nonfinite

if TYPE_CHECKING:
    from pathlib import Path

    from dragoman.inference.pipeline import Prediction
    from dragoman.inspection.views import ViewData


def render(line: int, prediction: Prediction, format: str) -> Iterator[str]:
    """Yield the output lines of one source as text, TSV (a line per alternative) or JSON; line breaks are escaped."""
    ranked = [prediction, *prediction.alternatives]
    if format == "text":
        yield escape(prediction.text)
    elif format == "tsv":
        for rank, p in enumerate(ranked, 1):
            yield f"{line}\t{rank}\t{p.score:.6f}\t{escape(p.text)}"
    else:
        fields = ("text", "score", "log_prob", "tokens", "log_probs", "finish_reason")
        results = [{name: getattr(p, name) for name in fields} for p in ranked]
        value = {
            "line": line,
            "source_tokens": prediction.source_tokens,
            "source_truncated": prediction.source_truncated,
            **results[0],
        }
        if prediction.attention is not None:
            value["attention"] = [[round(float(a), 4) for a in row] for row in prediction.attention]
        if prediction.trace is not None:
            value["trace"] = prediction.trace
        yield json.dumps(
            replace_nonfinite(value | ({"alternatives": results[1:]} if results[1:] else {})), ensure_ascii=False
        )


def escape(text: str) -> str:
    """Escape line breaks, tabs and then also backslashes of a text; one without line breaks or tabs stays as it is."""
    if not any(c in text for c in "\n\r\t"):
        return text
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")


def write_lines(lines: Iterable[str], output: Path | None) -> None:
    """Write lines to the standard output (None), atomically to a file, or to a device such as /dev/null."""
    from dragoman.core import files

    if output is None:
        out = sys.stdout
        if hasattr(out, "reconfigure"):
            out.reconfigure(encoding="utf-8", newline="\n")
        for line in lines:
            out.write(line + "\n")
            if out.isatty():
                out.flush()
        out.flush()
        return
    is_device = output.exists() and not output.is_file()  # /dev/null must not be replaced
    with files.explain_write_errors(output, 0), output.open("wb") if is_device else files.open_atomic(output) as file:
        for line in lines:
            file.write((line + "\n").encode())


def write_page(path: Path, views: Sequence[ViewData], title: str) -> None:
    """Write views as an HTML page, and say so on the standard error."""
    from dragoman.core import files
    from dragoman.inspection.render.page import render_page

    files.make_folder(path.parent)
    files.write_file(path, render_page(views, title).encode())
    print_to_stderr(f"wrote {path}")
