"""Format results as text, TSV, JSON lines or a table, and write them; views as a page."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import IO, TYPE_CHECKING, Any

from dragoman.cli.options import print_to_stderr
from dragoman.core.errors import DataError, RunError, Stopped
from dragoman.core.json import replace_nonfinite

if TYPE_CHECKING:
    from dragoman.data.documents import Document
    from dragoman.data.documents.segments import Translation
    from dragoman.data.readers import Row
    from dragoman.data.writers import FileFormat, LineFormat, Results
    from dragoman.inference.prediction import Prediction
    from dragoman.inspection.views import ViewData


def render(line: int, prediction: Prediction, format: str, results: Mapping[str, Any] | None = None) -> Iterator[str]:
    """Yield the output lines of one source as text, TSV (a line per alternative) or JSON; line breaks are escaped.

    `results` are its further columns, such as the probability. An n-best list in text is Moses's:
    number of the source from 0 ||| text ||| score.
    """
    from dragoman.data.writers import result_text
    from dragoman.data.writers.lines import escape

    ranked = [prediction, *prediction.alternatives]
    further = [result_text(value) for value in (results or {}).values()]
    if format == "nbest":
        for p in ranked:
            yield f"{line - 1} ||| {escape(p.text).replace('|||', '&#124;&#124;&#124;')} ||| {p.score:.6f}"
    elif format == "text":
        yield "\t".join(map(escape, [prediction.text, *further]))
    elif format == "tsv":
        for rank, p in enumerate(ranked, 1):
            cells = further if rank == 1 else [""] * len(further)
            yield "\t".join([str(line), str(rank), f"{p.score:.6f}", escape(p.text), *cells])
    else:
        fields = ("text", "score", "log_prob", "tokens", "log_probs", "finish_reason")
        values = [{name: getattr(p, name) for name in fields} for p in ranked]
        value = {
            "line": line,
            "source_tokens": prediction.source_tokens,
            "source_truncated": prediction.source_truncated,
            **values[0],
            **(results or {}),
        }
        if prediction.attention is not None:
            value["attention"] = [[round(float(a), 4) for a in row] for row in prediction.attention]
        if prediction.trace is not None:
            value["trace"] = prediction.trace
        yield json.dumps(
            replace_nonfinite(value | ({"alternatives": values[1:]} if values[1:] else {})), ensure_ascii=False
        )


def write_results(results: Iterable[str], output: Path | None, inputs: Iterable[str | Path] = ()) -> None:
    """Write the lines of each result to the standard output (None) or to a file that is none of the inputs.

    Ctrl-C and SIGTERM raise Stopped, which says how many results are kept, and where.
    """
    from dragoman.core import files

    done, size = 0, 0
    with stop_by_signal() as received:
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
                    raise_pending(received)
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
                    raise_pending(received)
            except KeyboardInterrupt:
                if done == 0 or isinstance(file.name, int):  # a pipe or a device, which keeps what it got
                    raise _stopped(received, done, f"were written to {output}") from None
                file.truncate(size)  # whole results alone
                kept = files.set_aside(Path(file.name), "partial", Path(os.path.realpath(output)))
                raise _stopped(received, done, f"are kept in {kept}, and {_as_before(output)}") from None


def _as_before(output: Path) -> str:
    return f"{output} is as before" if output.exists() else f"there is no {output}"


def write_table(
    rows: Iterable[tuple[Row, Results]],
    open_format: Callable[[IO[bytes]], FileFormat],
    journal_format: LineFormat,
    output: Path,
    inputs: Iterable[str | Path] = (),
) -> None:
    """Write rows and their results to a file that is whole only at its end (XLSX, Parquet).

    Until then they are in a file of JSON lines beside it, which a signal, an error of the format or the next command
    after a killed one keeps as OUTPUT.jsonl.partial-N.
    """
    from dragoman.core import files

    def keep() -> Path:
        journal.flush()
        return files.set_aside(Path(journal.name), "partial", Path(f"{os.path.realpath(output)}.jsonl"))

    done, target = 0, Path(os.path.realpath(output))
    with stop_by_signal() as received, files.open_output(output, inputs) as file:
        folder = target.parent if not isinstance(file.name, int) else Path.cwd()
        with files.open_journal(folder / target.name) as journal, files.open_scratch(folder) as scratch:
            table, is_complete = open_format(scratch), False
            try:
                for row, results in rows:
                    try:
                        table.write(row, results)
                    except DataError as error:
                        raise RunError(f"{output}: {error}. The first {done:,} results are kept in {keep()}") from None
                    journal.write(f"{journal_format.line(row, results)}\n".encode())
                    done += 1
                    raise_pending(received)
                table.close()
                is_complete = True
            except KeyboardInterrupt:
                if done == 0:
                    raise _stopped(received, done, "") from None
                raise _stopped(received, done, f"are kept in {keep()}, and {_as_before(output)}") from None
            finally:
                if not is_complete:
                    with suppress(Exception):  # it was cut anywhere, and goes with the scratch file
                        table.close()
            scratch.seek(0)
            shutil.copyfileobj(scratch, file)


def write_document(
    translations: Iterable[Translation], document: Document, output: Path, inputs: Iterable[str | Path] = ()
) -> None:
    """Write a translators' file when all its segments are translated.

    A signal keeps it with those that are as OUTPUT.partial-N, and raises Stopped, which says so.
    """
    from dragoman.core import files

    done: list[Translation] = []
    with stop_by_signal() as received, files.open_output(output, inputs) as file:
        try:
            for translation in translations:
                done.append(translation)
                raise_pending(received)
        except KeyboardInterrupt:
            if not done or isinstance(file.name, int):
                raise _stopped(received, 0, "") from None
            document.write([*done, *[None] * (len(document.segments) - len(done))], file)
            kept = files.set_aside(Path(file.name), "partial", Path(os.path.realpath(output)))
            stopped = f"stopped by {signal_name(received)}: the document with its first {len(done):,} segments"
            code = 128 + signal.Signals[signal_name(received)]
            raise Stopped(f"{stopped} translated is kept in {kept}, and {_as_before(output)}", code) from None
        document.write(done, file)


@contextmanager
def stop_by_signal() -> Iterator[list[int]]:
    """Let SIGTERM raise KeyboardInterrupt inside the block, as Ctrl-C does; yields a list with its number if it did."""
    from dragoman.core.processes import handle_signal

    received: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        received.append(number)
        raise KeyboardInterrupt

    with handle_signal(signal.SIGTERM, stop):
        yield received


def raise_pending(received: Sequence[int]) -> None:
    """Raise KeyboardInterrupt if a signal has come: an exception that comes while Python forks is lost."""
    if received:
        raise KeyboardInterrupt


def _stopped(received: Sequence[int], done: int, outcome: str) -> Stopped:
    name = signal_name(received)
    if done == 0:
        return Stopped(f"stopped by {name} before the first result", 128 + signal.Signals[name])
    text = f"stopped by {name}: the first {done:,} results {outcome}; to go on, give the inputs from {done + 1:,} on"
    return Stopped(text, 128 + signal.Signals[name])


def signal_name(received: Sequence[int]) -> str:
    return signal.Signals(received[0] if received else signal.SIGINT).name


def write_page(path: Path, views: Sequence[ViewData], title: str) -> None:
    """Write views as an HTML page, and say so on the standard error."""
    from dragoman.core import files
    from dragoman.inspection.render.page import render_page

    files.write_output(path, render_page(views, title).encode())
    print_to_stderr(f"wrote {path}")
