"""How far a command is, as a person likes to see it: a bar on a terminal; of a training, plain lines elsewhere."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Generator, Iterable
from typing import TYPE_CHECKING, Any

from dragoman.cli.options import console

if TYPE_CHECKING:
    from rich.console import Console

    from dragoman.cli.inputs import Input, Media
    from dragoman.inference.pipeline import Prediction
    from dragoman.training import Report

LINE_EVERY = 15.0  # seconds between plain lines
REDRAW = 0.2  # seconds between two states of a bar


def show(reports: Iterable[Report]) -> Report | None:
    """Draw every report as it comes; returns the last."""
    out = console(error=True)
    return _bar(reports, out) if out.is_terminal else _lines(reports, out)


def _bar(reports: Iterable[Report], out: Console) -> Report | None:
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
    last = None
    with Progress(*columns, console=out, refresh_per_second=5) as bar:
        task = bar.add_task("training", total=None, loss="–", rate="–", left="–")
        for report in reports:
            last = report
            if report.kind in ("step", "log"):
                bar.update(
                    task, completed=report.step, total=report.steps, **_fields(report, smooth=report.kind == "log")
                )
            elif report.kind == "start":
                bar.update(task, completed=report.step, total=report.steps)
                bar.console.print(report.message, markup=False)
            elif report.kind != "saved":
                bar.console.print(_sentence(report), markup=False)
    return last


def _fields(report: Report, smooth: bool) -> dict[str, Any]:
    fields: dict[str, Any] = {"rate": f"{report.rate:,.0f}", "left": clock(report.seconds_left)}
    return fields | ({"loss": f"{report.loss:.3f}"} if smooth or report.step <= 20 else {})


def _lines(reports: Iterable[Report], out: Console) -> Report | None:
    import time

    last, printed = None, -math.inf
    for report in reports:
        last = report
        if report.kind in ("step", "saved"):
            continue
        if report.kind == "log":
            if time.monotonic() - printed < LINE_EVERY and report.step < report.steps:
                continue
            printed = time.monotonic()
        out.print(_sentence(report), markup=False, soft_wrap=True)
    return last


def _sentence(report: Report) -> str:
    values = report.values
    if report.kind == "log":
        return (
            f"step {report.step:,} of {report.steps:,}: loss {report.loss:.3f}, "
            f"{report.rate:,.0f} tokens/s, {clock(report.seconds_left)} left"
        )
    if report.kind == "validation":
        shown = ", ".join(f"{k} {v:.3f}" for k, v in values.items() if isinstance(v, float))
        return (
            f"step {report.step:,}: {'validation' if values['kind'] == 'valid' else 'average of checkpoints'}: {shown}"
        )
    return report.message


def clock(seconds: float) -> str:
    """1:05, or 2:03:04 where hours are needed."""
    if not math.isfinite(seconds):
        return "–"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def counted(results: Iterable[Prediction], given: Input | Media, out: Console) -> Generator[Prediction, None, None]:
    """The same results; a bar shows how many there are, how fast they come, and how long the rest will take."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=30),
        TextColumn("{task.completed:,} lines"),
        TextColumn("{task.fields[rate]} lines/s"),
        TimeElapsedColumn(),
        TextColumn("left {task.fields[left]}"),
    )
    began, drawn, done = time.monotonic(), -math.inf, 0
    with Progress(*columns, console=out, refresh_per_second=5) as bar:
        task = bar.add_task(os.path.basename(given.file), total=None, rate="–", left="–")

        def draw(done: int, seconds: float) -> None:
            total = given.expected
            left = math.nan if total is None else seconds * (total - done) / done
            bar.update(task, completed=done, total=total, rate=f"{done / seconds:,.0f}", left=clock(left))

        for done, result in enumerate(results, 1):
            now = time.monotonic()
            if now - drawn > REDRAW:
                draw(done, now - began)
                drawn = now
            yield result
        if done:
            draw(done, time.monotonic() - began)
