"""Format results as text, TSV or JSON lines, and write them; views as a page."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from dragoman.cli.options import print_to_stderr
from dragoman.core.errors import Stopped
from dragoman.core.json import replace_nonfinite

if TYPE_CHECKING:
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


def write_results(results: Iterable[str], output: Path | None, inputs: Iterable[str | Path] = ()) -> None:
    """Write the lines of each result to the standard output (None) or to a file that is none of the inputs.

    Ctrl-C and SIGTERM raise Stopped, which says how many results are kept, and where.
    """
    from dragoman.core import files

    done, size = 0, 0
    with _stop_by_signal() as received:
        if output is None:
            out = sys.stdout
            if hasattr(out, "reconfigure"):
                out.reconfigure(encoding="utf-8", newline="\n")
            try:
                for result in results:
                    out.write(result + "\n")
                    done += 1
                    if out.isatty():
                        out.flush()
                    _raise_pending(received)
                out.flush()
            except KeyboardInterrupt:
                out.flush()
                raise _stopped(received, done, "were written") from None
            return
        with files.open_output(output, inputs) as file:
            try:
                for result in results:
                    data = (result + "\n").encode()
                    file.write(data)
                    done, size = done + 1, size + len(data)
                    _raise_pending(received)
            except KeyboardInterrupt:
                if done == 0 or isinstance(file.name, int):  # a pipe or a device, which keeps what it got
                    raise _stopped(received, done, f"were written to {output}") from None
                file.truncate(size)  # whole results alone
                kept = files.set_aside(Path(file.name), "partial", Path(os.path.realpath(output)))
                raise _stopped(received, done, f"are kept in {kept}, and {output} is as before") from None


@contextmanager
def _stop_by_signal() -> Iterator[list[int]]:
    """Let SIGTERM raise KeyboardInterrupt inside the block, as Ctrl-C does; yields a list with its number if it did."""
    from dragoman.core.processes import handle_signal

    received: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        received.append(number)
        raise KeyboardInterrupt

    with handle_signal(signal.SIGTERM, stop):
        yield received


def _raise_pending(received: Sequence[int]) -> None:
    """Raise KeyboardInterrupt if a signal has come: an exception that comes while Python forks is lost."""
    if received:
        raise KeyboardInterrupt


def _stopped(received: Sequence[int], done: int, outcome: str) -> Stopped:
    name = signal.Signals(received[0] if received else signal.SIGINT).name
    if done == 0:
        return Stopped(f"stopped by {name} before the first result", 128 + signal.Signals[name])
    text = f"stopped by {name}: the first {done:,} results {outcome}; to go on, give the inputs from {done + 1:,} on"
    return Stopped(text, 128 + signal.Signals[name])


def write_page(path: Path, views: Sequence[ViewData], title: str) -> None:
    """Write views as an HTML page, and say so on the standard error."""
    from dragoman.core import files
    from dragoman.inspection.render.page import render_page

    files.write_output(path, render_page(views, title).encode())
    print_to_stderr(f"wrote {path}")
