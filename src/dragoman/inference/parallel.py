"""Many sources through one pipeline, by as many processes as the machine has cores, in the order of the sources.

    sources ─read ahead→ windows ─workers→ results of each ─→ one by one, in order

A window is what is sorted by length and cut into batches together; batches fill better the larger it is (greedy, a
Transformer of 4 + 4 layers of 128, lines a second on one core: 88 with windows of 64, 146 of 256, 169 of 1,024, 193 of
2,048). So it has WINDOW sources, but what is left when the input ends, or all of a short one, is shared out evenly, so
that the workers finish together.

Nothing of a result depends on this but the last bits of its score: not its place, which `first` hands on to what draws,
nor when an error comes, which is after the results of all sources before it.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch

from dragoman.core import processes
from dragoman.core.errors import DataError, UserError
from dragoman.core.registry import Part
from dragoman.core.types import Example
from dragoman.inference.constraints import Constraints
from dragoman.inference.pipeline import WINDOW, Pipeline, Prediction

Source = TypeVar("Source")
Result = TypeVar("Result")

ENOUGH = 1024  # sources in a window whose batches are nearly full
LEAST = 64  # sources that are worth a window at all


@dataclass(frozen=True)
class Window(Generic[Source]):
    """Some sources in a row, and the place of the first of them in the whole input."""

    sources: list[Source]
    first: int
    last: bool = False  # nothing comes after it

    def __str__(self) -> str:
        return f"lines {self.first + 1:,} to {self.first + len(self.sources):,}"


def stream(
    pipeline: Pipeline,
    sources: Iterable[str | Example],
    *,
    workers: int | None = None,
    beam: int | None = None,
    nbest: int = 1,
    search: Part | None = None,
    attention: bool = False,
    constraints: Constraints | None = None,
    trace: bool = False,
) -> Generator[Prediction, None, None]:
    """What Pipeline.stream gives, by `workers` processes; 1 is this process itself, None as many as pay."""
    count = how_many(pipeline, workers)

    def answer(window: Window[str | Example]) -> Iterator[Prediction]:
        return pipeline.stream(
            window.sources,
            beam=beam,
            nbest=nbest,
            search=search,
            attention=attention,
            constraints=constraints,
            trace=trace,
            first=window.first,
        )

    return in_order(pipeline, answer, sources, count)


def token_scores(
    pipeline: Pipeline,
    pairs: Iterable[tuple[str, str] | Example | str],
    *,
    workers: int | None = None,
    skip: bool = False,
) -> Generator[list[float], None, None]:
    """What Pipeline.stream_scores gives, by `workers` processes."""

    def answer(window: Window[tuple[str, str] | Example | str]) -> Iterator[list[float]]:
        return pipeline.stream_scores(window.sources, skip)

    return in_order(pipeline, answer, pairs, how_many(pipeline, workers))


def how_many(pipeline: Pipeline, asked: int | None) -> int:
    """The processes to use: as asked, else as the config has it, else one for each thread that torch would take.

    A GPU is filled by one process. A program with threads of its own is not forked without being asked: what a thread
    has locked stays locked in a fork.
    """
    on_cpu = pipeline.device.type == "cpu"
    if asked is not None:
        if asked < 1:
            raise UserError(f"workers is {asked}; it must be at least 1, which is one process")
        if asked > 1 and not on_cpu:
            raise UserError(f"workers is {asked}, and the model is on {pipeline.device}; several share a CPU alone")
        return asked
    if not on_cpu or not processes.possible() or threading.active_count() > 1:
        return 1
    return pipeline.config.runtime.workers or torch.get_num_threads()


def in_order(
    pipeline: Pipeline, answer: Callable[[Window[Source]], Iterator[Result]], sources: Iterable[Source], count: int
) -> Generator[Result, None, None]:
    """The results of every window, one by one; in this process where there is one worker, or one window."""

    def whole(window: Window[Source]) -> tuple[list[Result], DataError | None]:
        results: list[Result] = []
        try:
            for result in answer(window):
                results.append(result)  # noqa: PERF402 - what was found before an error is kept
        except DataError as error:  # of a source, after what was found of those before it
            return results, error
        return results, None

    windows = cut(sources, count)
    for first in windows:
        if count == 1 or first.last:
            yield from answer(first)
            continue
        prepare(pipeline)
        with closing(processes.ordered(whole, itertools.chain([first], windows), count, str)) as found:
            for results, error in found:
                yield from results
                if error is not None:
                    raise error


def prepare(pipeline: Pipeline) -> None:
    """Make what a pipeline makes on first use, so that its workers share it: weights, packed for its engine."""
    pipeline.model.eval()
    getattr(pipeline.reading, "objective")  # noqa: B009 - made when it is looked at
    getattr(pipeline.engine, "model", None)  # a CPU's engine packs its weights when they are looked at


def cut(sources: Iterable[Source], count: int) -> Iterator[Window[Source]]:
    """Windows of the sources for `count` workers. An error of the sources comes after the windows before it."""
    ahead: deque[Source] = deque()
    iterator: Iterator[Any] = iter(sources)
    error: Exception | None = None
    first, size = 0, WINDOW
    while True:
        try:
            ahead.extend(itertools.islice(iterator, count * WINDOW - len(ahead)))
        except Exception as found:  # what was read before it is in `ahead`
            error, iterator = found, iter(())
        if not ahead:
            break
        ended = len(ahead) < count * WINDOW
        if ended and size == WINDOW:
            size = share(len(ahead), count)
        window = [ahead.popleft() for _ in range(min(size, len(ahead)))]
        yield Window(window, first, ended and not ahead)
        first += len(window)
    if error is not None:
        raise error


def share(left: int, count: int) -> int:
    """The size of even windows for what is left: two for each worker, but one where two would be small."""
    if count == 1 or left < 2 * LEAST:
        return WINDOW
    return max(-(-left // (2 * count)), min(ENOUGH, -(-left // count)), LEAST)
