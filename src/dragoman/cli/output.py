"""Results as lines of text, columns or JSON, and where they are written."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from dragoman.core.json import finite

if TYPE_CHECKING:
    from dragoman.inference.pipeline import Prediction


def render(line: int, prediction: Prediction, format: str) -> Iterator[str]:
    """The output lines of one source; a newline inside a result is escaped, so that lines stay in step."""
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
        yield json.dumps(finite(value | ({"alternatives": results[1:]} if results[1:] else {})), ensure_ascii=False)


def escape(text: str) -> str:
    return (
        text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
        if _odd(text)
        else text
    )


def _odd(text: str) -> bool:
    return any(c in text for c in "\n\r\t")


def write(lines: Iterable[str], output: object) -> None:
    """To the standard output as they come, or to a file that appears when it is whole; to a device as it is."""
    from pathlib import Path

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
    assert isinstance(output, Path)
    device = output.exists() and not output.is_file()  # /dev/null must not be replaced
    with files.writing(output, 0), output.open("wb") if device else files.aside(output) as file:
        for line in lines:
            file.write((line + "\n").encode())
