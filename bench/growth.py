"""How training grows: tokens a second and peak memory against sentence length, batch, depth and vocabulary.

Each point is a training of its own, `dragoman.training.run` in a new process, so that no point finds memory that
another has taken. Sentences of a point are all of one length. On a CPU, memory is the most that the process had, torch
itself included; on a GPU, the most that tensors took.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import Any

import torch

from bench import task, timing, train
from bench.task import ModelShape

AXES = ("length", "batch", "depth", "vocabulary")


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add = command.add_argument
    add("--axes", nargs="+", choices=AXES, default=list(AXES))
    add("--family", choices=task.FAMILIES, default="transformer")
    add("--batch-tokens", type=int, help="of the longer side; default: the shape's")
    add("--steps", type=int, help="of one turn; default: as for train")
    add("--workers", type=int, default=0, help="processes of the loader")
    add("--points", type=int, default=6, help="at most so many on an axis")


def points(axis: str, shape: ModelShape, most: int) -> Iterator[tuple[int, ModelShape]]:
    """The values of an axis, each twice the one before, and the shape at each."""
    if axis == "length":
        for length in [16, 32, 64, 128, 256, 512][:most]:
            yield length, replace(shape, length=length)
    elif axis == "batch":
        for tokens in [shape.tokens // 8 * 2**i for i in range(most)]:
            yield tokens, replace(shape, tokens=tokens)
    elif axis == "depth":
        for layers in [1, 2, 4, 8, 16, 32][:most]:
            yield layers, replace(shape, layers=layers)
    else:
        for vocabulary in [1_000 * 2**i for i in range(most)]:
            yield vocabulary, replace(shape, vocabulary=vocabulary)


def run(options: argparse.Namespace) -> timing.CommandResult:
    """Measure every point of every axis; the results for the record, and the lines to print."""
    base = task.SHAPES[options.shape]
    if options.batch_tokens:
        base = replace(base, tokens=options.batch_tokens)
    base = replace(base, spread=0.0, sentences=None)
    rows_by_axis: dict[str, list[dict[str, Any]]] = {}
    lines = []
    for axis in options.axes:
        rows_by_axis[axis] = [
            {axis: value, **measure_in_process(options, shape)} for value, shape in points(axis, base, options.points)
        ]
        lines += [timing.markdown_table(rows_by_axis[axis]), ""]
    return rows_by_axis, lines[:-1]


def measure_in_process(options: argparse.Namespace, shape: ModelShape) -> dict[str, Any]:
    """Measure one point in a fresh process."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(measure_point, options, shape).result()


def measure_point(options: argparse.Namespace, shape: ModelShape) -> dict[str, Any]:
    """Tokens a second and peak memory of one training."""
    options.competitors, options.profile, options.head_start = [], False, 0
    pairs_seen = shape.tokens * (options.steps or shape.steps) * (train.WARM + options.repeats) // shape.length
    pairs_needed = 2 * shape.vocabulary // shape.length  # pairs that hold all of the vocabulary
    shape = replace(shape, pairs=max(pairs_needed, min(pairs_seen, 20_000)))
    with task.data_folder(None, shape, options.seed) as folder:
        result = train.measure(options, shape, folder)
    if options.device == "cuda":
        peak = torch.cuda.max_memory_allocated()
    else:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "tokens/s": result["figures"]["Dragoman"],
        "peak GB": peak / 1e9,
        "tokens in a step": result["tokens_in_a_step"],
        "parameters": result["parameters"].split(": ")[1].split()[0],
    }
