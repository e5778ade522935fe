"""Many inputs through one pipeline in several processes, with the results in the order of the inputs.

    inputs ─cut_windows→ windows ─workers→ results of each ─→ one by one, in order

No result depends on the number of processes but for the last bits of its score: sampling is seeded by the input's
index, and an error of an input comes after the results of all inputs before it.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from functools import partial
from typing import TypeVar

import torch

from dragoman.core import processes
from dragoman.core.errors import DataError, UserError
from dragoman.core.generation import GenerationOptions
from dragoman.core.types import Example
from dragoman.engines.cpu.engine import CPUEngine
from dragoman.inference.pipeline import Pipeline
from dragoman.inference.prediction import Prediction
from dragoman.inference.scoring import PairLike
from dragoman.inference.windows import SMALLEST, SMALLEST_THREADED, Window, cut_windows

Input = TypeVar("Input")
Result = TypeVar("Result")


def predict_stream(
    pipeline: Pipeline,
    sources: Iterable[str | Example],
    options: GenerationOptions | None = None,
    *,
    workers: int | None = None,
    attention: bool = False,
    trace: bool = False,
    token_log_probs: bool = True,
) -> Generator[Prediction, None, None]:
    """Yield predictions in order, computed in `workers` processes; 1 is this process, None as many as pay."""
    request = pipeline.request(options, attention=attention, trace=trace, token_log_probs=token_log_probs)
    predict = partial(pipeline.predict_window, request=request)
    inputs = zip(sources, itertools.repeat(request.options), strict=False)
    count = count_workers(pipeline, workers)
    has_threads = count > 1 and pipeline.engine_name(request) == "ctranslate2"
    return map_windows(pipeline, predict, inputs, count, SMALLEST_THREADED if has_threads else SMALLEST)


def score_stream(
    pipeline: Pipeline, pairs: Iterable[PairLike], *, workers: int | None = None, skip: bool = False
) -> Generator[list[float], None, None]:
    """Yield the token scores of each pair in order, computed in `workers` processes; `skip` as in score_window."""
    score = partial(pipeline.score_window, skip=skip)
    return map_windows(pipeline, score, pairs, count_workers(pipeline, workers))


def count_workers(pipeline: Pipeline, requested: int | None) -> int:
    """Return the number of processes: as requested, else the config's, else torch's number of threads; 1 on a GPU.

    One process fills a GPU. A program with threads of its own is not forked unless it asks for it: a lock that a thread
    holds stays locked in a fork.
    """
    on_cpu = pipeline.device.type == "cpu"
    if requested is not None:
        if requested < 1:
            raise UserError(f"workers is {requested}; it must be at least 1, which is one process")
        if requested > 1 and not on_cpu:
            raise UserError(f"workers is {requested}, and the model is on {pipeline.device}; only a CPU has several")
        return requested
    if not on_cpu or not processes.can_fork() or threading.active_count() > 1:
        return 1
    return pipeline.config.runtime.workers or torch.get_num_threads()


def map_windows(
    pipeline: Pipeline,
    function: Callable[[Window[Input]], Iterator[Result]],
    inputs: Iterable[Input],
    workers: int,
    smallest: int = SMALLEST,
) -> Generator[Result, None, None]:
    """Yield the results of a function of each window of inputs, in order; without forking for one worker or window."""

    def collect(window: Window[Input]) -> tuple[list[Result], DataError | None]:
        results: list[Result] = []
        try:
            for result in function(window):
                results.append(result)  # noqa: PERF402 - results before an error are kept
        except DataError as error:  # of an input, after the results of those before it
            return results, error
        return results, None

    windows = cut_windows(inputs, workers, pipeline.window_size, smallest=smallest)
    for first in windows:
        if workers == 1 or first.is_last:
            yield from function(first)
            continue
        warm_up(pipeline)
        with closing(processes.map_in_order(collect, itertools.chain([first], windows), workers, str)) as collected:
            for results, error in collected:
                yield from results
                if error is not None:
                    raise error


def warm_up(pipeline: Pipeline) -> None:
    """Build what a pipeline builds on first use (packed weights), so that forked workers share it."""
    pipeline.model.eval()
    getattr(pipeline.input_processor, "objective")  # noqa: B009 - built on access
    if isinstance(pipeline.engine, CPUEngine):
        pipeline.engine.prepare_weights()
