"""Show the progress of a command: a bar on a terminal; for a training, plain lines elsewhere."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Generator, Iterable
from typing import TYPE_CHECKING

from dragoman.cli.options import console

if TYPE_CHECKING:
    from rich.console import Console

    from dragoman.cli.documents import DocumentInputs
    from dragoman.cli.inputs import LineInputs, MediaInputs
    from dragoman.inference.prediction import Prediction
    from dragoman.training import Report

LINE_INTERVAL_S = 15.0  # seconds between plain lines
RESULT_INTERVAL_S = 60.0  # seconds between plain lines while results are written
REDRAW_INTERVAL_S = 0.2  # seconds between two updates of a bar


def show_training(reports: Iterable[Report]) -> Report | None:
    """Show the reports of a training as they come, in a bar or as lines, and return the last."""
    out = console(error=True)
    return _show_bar(reports, out) if out.is_terminal else _print_lines(reports, out)


def _show_bar(reports: Iterable[Report], out: Console) -> Report | None:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = [
        TextColumn("training"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]}"),
        TextColumn("{task.fields[rate]} tokens/s"),
        TimeElapsedColumn(),
        TextColumn("left {task.fields[left]}"),
    ]
    last, loss = None, "–"
    with Progress(*columns, console=out, refresh_per_second=5) as bar:
        task = bar.add_task("training", total=None, loss=loss, rate="–", left="–")
        for report in reports:
            last = report
            if report.kind in ("step", "log"):
                if report.kind == "log" or report.step <= 20:  # later, single steps are too noisy
                    loss = f"{report.loss:.3f}"
                rate, left = f"{report.tokens_per_second:,.0f}", format_duration(report.seconds_left)
                bar.update(task, completed=report.step, total=report.steps, loss=loss, rate=rate, left=left)
            elif report.kind == "start":
                bar.update(task, completed=report.step, total=report.steps)
                bar.console.print(report.message, markup=False)
            elif report.kind != "saved":
                bar.console.print(_describe(report), markup=False)
    return last


def _print_lines(reports: Iterable[Report], out: Console) -> Report | None:
    """Print a line for each report but steps and saves, log lines at most every LINE_INTERVAL_S; return the last."""
    last, printed = None, -math.inf
    for report in reports:
        last = report
        if report.kind in ("step", "saved"):
            continue
        if report.kind == "log":
            if time.monotonic() - printed < LINE_INTERVAL_S and report.step < report.steps:
                continue
            printed = time.monotonic()
        out.print(_describe(report), markup=False, soft_wrap=True)
    return last


def _describe(report: Report) -> str:
    values = report.values
    if report.kind == "log":
        return (
            f"step {report.step:,} of {report.steps:,}: loss {report.loss:.3f}, "
            f"{report.tokens_per_second:,.0f} tokens/s, {format_duration(report.seconds_left)} left"
        )
    if report.kind == "validation":
        shown = ", ".join(_describe_score(k, v) for k, v in values.items() if isinstance(v, float))
        return (
            f"step {report.step:,}: {'validation' if values['kind'] == 'valid' else 'average of checkpoints'}: {shown}"
        )
    return report.message


def _describe_score(name: str, value: float) -> str:
    """A validation score with the label and the unit of its metric: PER 12.3 %."""
    from dragoman.core.registry import Part
    from dragoman.evaluation.metrics import metrics

    if name not in metrics.names:
        return f"{name} {value:.3f}"
    metric = metrics.build(Part(name))
    return f"{metric.label} {value:.1f}{' %' if metric.unit == '%' else ''}"


def format_duration(seconds: float) -> str:
    """Format seconds as 1:05, or as 2:03:04 from an hour on; – if they are not finite."""
    if not math.isfinite(seconds):
        return "–"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def with_progress_bar(
    results: Iterable[Prediction], inputs: LineInputs | MediaInputs | DocumentInputs, out: Console
) -> Generator[Prediction, None, None]:
    """Yield results unchanged, and show their number, their rate and the time left in a bar."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=30),
        TextColumn("{task.completed:,} lines"),
        TextColumn("{task.fields[rate]} lines/s"),
        TimeElapsedColumn(),
        TextColumn("left {task.fields[left]}"),
    )
    start, drawn_at, done = time.monotonic(), -math.inf, 0
    with Progress(*columns, console=out, refresh_per_second=5) as bar:
        task = bar.add_task(os.path.basename(inputs.file), total=None, rate="–", left="–")

        def draw(done: int, seconds: float) -> None:
            total = inputs.expected
            left = math.nan if total is None else seconds * (total - done) / done
            bar.update(task, completed=done, total=total, rate=f"{done / seconds:,.0f}", left=format_duration(left))

        for done, result in enumerate(results, 1):
            now = time.monotonic()
            if now - drawn_at > REDRAW_INTERVAL_S:
                draw(done, now - start)
                drawn_at = now
            yield result
        if done:
            draw(done, time.monotonic() - start)


def with_progress_lines(
    results: Iterable[Prediction], inputs: LineInputs | MediaInputs | DocumentInputs, out: Console
) -> Generator[Prediction, None, None]:
    """Yield results unchanged, and print how many there are, their rate and the time left once a minute."""
    start = printed_at = time.monotonic()
    for done, result in enumerate(results, 1):
        now = time.monotonic()
        if now - printed_at > RESULT_INTERVAL_S:
            printed_at, total = now, inputs.expected
            rate = done / (now - start)
            of = "" if total is None else f" of about {total:,.0f}"
            left = "" if total is None else f", {format_duration(max(total - done, 0) / rate)} left"
            name = os.path.basename(inputs.file)
            out.print(f"{name}: {done:,}{of} lines, {rate:,.1f} lines/s{left}", markup=False, soft_wrap=True)
        yield result
