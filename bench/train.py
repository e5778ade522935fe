"""Tokens a second of training: ours is `dragoman.training.run`, rivals are plain loops over the same batches.

    rate = Σ real source and target tokens / Σ seconds, over the steps of a turn

Ours is the ordinary path with its loader, schedule, clipping, reports and metrics file; the validation and the
checkpoint at its end are timed apart. A turn is the same steps for everyone, so that everyone sees the same batches.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from bench import rivals, task, timing
from bench.task import Shape
from bench.timing import Contender, Figure, Turn
from dragoman import training
from dragoman.config import Config
from dragoman.core.types import Batch
from dragoman.data.batching import Batches, Cursor
from dragoman.data.loader import load
from dragoman.training import prepare

WARM = 2  # turns
ON_GPU = 40  # times the steps of a turn on a CPU


def measure(options: argparse.Namespace, shape: Shape, folder: Path) -> dict[str, Any]:
    """Figures of our training and of the rivals', in tokens a second."""
    torch.set_num_threads(options.threads)
    task.write_pairs(folder, shape, options.seed)
    per_turn = options.steps or shape.steps * (ON_GPU if options.device == "cuda" else 1)
    steps = options.head_start + per_turn * (WARM + options.repeats + options.profile)
    settings = {name: getattr(options, name) for name in ("device", "threads", "precision", "seed", "workers")}
    config = task.config(shape, options.family, folder, steps=steps, **settings)
    with tempfile.TemporaryDirectory(dir=folder) as run:
        ours = Ours(config, Path(run) / "run")
        sizes, mine = ours.sizes(steps)[options.head_start :], ours.steps()
        for _ in range(options.head_start):
            next(mine)
        contenders = {"Dragoman": turns(mine, sizes, per_turn, options)}
        left_out = []
        for name, model in rivals.training_loops(shape, ours.vocabulary, options.rivals, options.device):
            if isinstance(model, rivals.LeftOut):
                left_out.append(f"{name} is left out: {model}")
                continue
            theirs = itertools.islice(ours.batches(), options.head_start, None)
            losses = rivals.loop(model, theirs, options.device, options.precision)
            contenders[name] = turns(losses, sizes, per_turn, options)
        figures = timing.take_turns(contenders, options.repeats, WARM)
        profile = profiled(contenders["Dragoman"], options.device) if options.profile else ""
        end = ours.finish()
    return {
        "figures": figures,
        "left_out": left_out,
        "parameters": ours.parameters,
        "tokens_in_a_step": sum(sum(size[:2]) for size in sizes) / len(sizes),
        "padding": 1 - sum(sum(size[:2]) for size in sizes) / sum(size[2] for size in sizes),
        "end_seconds": end,
        "profile": profile,
    }


def profiled(turn: Contender, device: str) -> str:
    """Which of torch's operations the time of one more turn went to."""
    from torch.profiler import ProfilerActivity, profile

    kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device == "cuda" else [])]
    with profile(activities=kinds) as found:
        turn()
    key = f"self_{device}_time_total" if device == "cpu" else "self_device_time_total"
    table: str = found.key_averages().table(sort_by=key, row_limit=15, max_name_column_width=60)
    return table


class Ours:
    """A training of ours, step by step, and the batches it trains on."""

    def __init__(self, config: Config, folder: Path) -> None:
        self.reports = training.run(config, folder)
        start = next(report for report in self.reports if report.kind == "start")
        self.parameters = start.message
        codec, _ = prepare.open_codec(config)
        self.vocabulary = max(len(codec.source), len(codec.target))
        prepared = prepare.prepare(config, codec, Path(str(config.data.cache)))
        self.data = Batches(
            prepared.corpora,
            codec,
            tokens=config.training.batch_tokens,
            sentences=config.training.batch_sentences,
            seed=config.seed,
            objective=prepared.objective,
        )

    def steps(self) -> Iterator[float]:
        return (report.loss for report in self.reports if report.kind == "step")

    def batches(self) -> Iterator[Batch]:
        return (batch for batch, _ in load(self.data, Cursor(), 0))

    def sizes(self, steps: int) -> list[tuple[int, int, int]]:
        """Of each step's batch: source tokens, target tokens, and positions with padding."""
        return [
            (int(batch.source_lengths.sum()), batch.tokens, batch.source.numel() + batch.target.numel() - len(batch))
            for batch in itertools.islice(self.batches(), steps)
        ]

    def finish(self) -> float:
        """Seconds that the validation and the checkpoint at the end took."""
        start = time.perf_counter()
        for _ in self.reports:
            pass
        return time.perf_counter() - start


def turns(
    steps: Iterator[object], sizes: list[tuple[int, int, int]], count: int, options: argparse.Namespace
) -> Contender:
    """So many steps of a training as one turn."""
    settle, tokens = timing.settling(options.device), iter(sizes)

    def turn() -> Turn:
        settle()
        start = time.perf_counter()
        for _ in range(count):
            next(steps)
        settle()
        return Turn(sum(sum(size[:2]) for size in itertools.islice(tokens, count)), time.perf_counter() - start)

    return turn


def arguments(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--family", choices=task.FAMILIES, help="of our model; default: the shape's own preset")
    add("--batch-tokens", type=int, help="of the longer side with padding; default: the shape's")
    add("--steps", type=int, help=f"of one turn; default: the shape's, on a GPU {ON_GPU} times as many")
    add("--head-start", type=int, default=0, help="steps of ours before all turns, for its shapes to be captured")
    add("--workers", type=int, default=0, help="processes of our loader")
    add("--profile", action="store_true", help="say where the time of one more turn of ours went")
    add("--rivals", nargs="*", default=["hf"], help="hf, hf-compiled, plain (the demo's LSTMs in a plain loop)")


def run(options: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """The command: what is measured for the record, and lines to show."""
    shape = task.SHAPES[options.shape]
    if options.batch_tokens:
        shape = replace(shape, tokens=options.batch_tokens, sentences=None)
    with task.place(options.folder, shape, options.seed) as folder:
        found = measure(options, shape, folder)
    figures: dict[str, Figure] = found["figures"]
    rows = [{"training": name, "tokens/s": figure} for name, figure in figures.items()]
    lines = [
        found["parameters"],
        f"{found['tokens_in_a_step']:,.0f} real tokens in a step (source and target), {found['padding']:.1%} padding "
        f"besides; validation and checkpoint at the end, not counted: {found['end_seconds']:.1f} s",
        *found["left_out"],
        *([found["profile"]] if found["profile"] else []),
        timing.table(rows),
        *timing.ratios(figures, "Dragoman"),
    ]
    return found, lines
