"""Tokens a second of the batches alone: how far training can go before it waits for data.

    memory-mapped ids ─Batches→ padded arrays ─load→ tensors          with 0, 1, 2 workers, and a thread ahead

A token is a real one, source or target. CPU time is that of the training's own process for a million tokens: what the
loader takes from it. The time to the first batch is that of planning a block of a million pairs.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bench import task, timing
from bench.task import ModelShape
from bench.timing import Contender, Turn
from dragoman.core.types import EOS, SPECIALS, Batch, Example
from dragoman.data.batching import BatchStream, Cursor
from dragoman.data.loader import load_batches
from dragoman.data.store import builder, store
from dragoman.data.store.store import TokenStore


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add = command.add_argument
    add("--pairs", type=int, default=2_000_000)
    add("--batch-tokens", type=int, help="of the longer side with padding; default: the shape's")
    add("--workers", type=int, nargs="+", default=[0, 1, 2], help="numbers of processes to try")
    add("--ahead", type=int, nargs="+", default=[0, 4], help="batches that a thread keeps ready, to try")


def run(options: argparse.Namespace) -> timing.CommandResult:
    """Measure every number of workers and of batches ahead."""
    shape = replace(task.SHAPES[options.shape], pairs=options.pairs)
    if options.batch_tokens:
        shape = replace(shape, tokens=options.batch_tokens)
    with task.data_folder(options.folder, shape, options.seed) as folder:
        codec = RandomCodec(shape)
        data = BatchStream(
            [(build_store(folder, shape, codec, options.seed), 1.0)], codec, tokens=shape.tokens, seed=options.seed
        )
        cases = {
            f"{workers} worker{'s' * (workers != 1)}, {ahead} ahead": (workers, ahead)
            for workers, ahead in itertools.product(options.workers, options.ahead)
        }
        rows = []
        for name, (workers, ahead) in cases.items():
            with closing(load_batches(data, Cursor(), workers, prefetch=ahead)) as stream:
                rows.append({"loader": name, **measure(stream, options)})
    return {"rows": rows}, [timing.markdown_table(rows)]


def measure(stream: Iterator[tuple[Batch, Cursor]], options: argparse.Namespace) -> dict[str, Any]:
    """Tokens a second, CPU time and seconds to the first batch of one stream."""
    start = time.perf_counter()
    next(stream)
    first, before, tokens = time.perf_counter() - start, time.process_time(), [0.0]
    figures = timing.measure_in_turns({"loader": make_contender(stream, options.seconds, tokens)}, options.repeats)
    spent = time.process_time() - before
    return {
        "M tokens/s": timing.Measurement(tuple(rate / 1e6 for rate in figures["loader"].samples)),
        "CPU ms of this process for 1 M tokens": 1e9 * spent / tokens[0],
        "s to the first batch": first,
    }


def make_contender(stream: Iterator[tuple[Batch, Cursor]], seconds: float, total: list[float]) -> Contender:
    """A contender that takes batches for some seconds."""

    def turn() -> Turn:
        done, start = 0, time.perf_counter()
        while (spent := time.perf_counter() - start) < seconds:
            batch, _ = next(stream)
            done += int(batch.source_lengths.sum()) + batch.tokens
        total[0] += done
        return Turn(done, spent)

    return turn


class RandomCodec:
    """A codec whose texts are numbers: it encodes a text as so many random ids."""

    is_stochastic = False
    modality = second_source = None

    def __init__(self, shape: ModelShape) -> None:
        self.source = self.target = range(shape.vocabulary)
        self.pool = np.random.default_rng(0).integers(len(SPECIALS), shape.vocabulary, 1 << 16).tolist()

    def encode_source(self, example: Example) -> list[int]:
        """The ids of a source."""
        return self.draw(example.source)

    def encode_target(self, example: Example) -> list[int]:
        """The ids of a target."""
        return self.draw(example.target or "0")

    def draw(self, text: str) -> list[int]:
        """As many ids as the text says, and </s>."""
        start = int(text) * 7919 % (len(self.pool) - 1000)
        return [*self.pool[start : start + int(text)], EOS]


def build_store(folder: Path, shape: ModelShape, codec: RandomCodec, seed: int) -> TokenStore:
    """Build a token store of random pairs, or open the one that an earlier run has kept."""
    if (folder / "store").exists():
        return store.open_store(folder / "store")
    sides = task.sample_lengths(shape, shape.pairs, np.random.default_rng(seed))
    examples = (
        Example(f"{s}", f"{t}", line=i) for i, (s, t) in enumerate(zip(*(x.tolist() for x in sides), strict=True))
    )
    return builder.build_store(examples, codec, folder / "store", max_source=1001, max_target=1001, keep_text=False)
