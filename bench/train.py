"""Tokens a second of training: ours is `dragoman.training.run`, competitors are plain loops over the same batches.

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

from bench import competitors, task, timing
from bench.task import ModelShape
from bench.timing import Contender, Measurement, Turn
from dragoman import training
from dragoman.config import Config
from dragoman.core.types import Batch
from dragoman.data.batching import BatchStream, Cursor
from dragoman.data.loader import load_batches
from dragoman.training import prepare
from dragoman.training.tokenizer_learning import load_or_learn_codec

WARM = 2  # turns
ON_GPU = 40  # times the steps of a turn on a CPU


def measure(options: argparse.Namespace, shape: ModelShape, folder: Path) -> dict[str, Any]:
    """Tokens a second of our training and of the competitors."""
    torch.set_num_threads(options.threads)
    task.write_pairs(folder, shape, options.seed)
    per_turn = options.steps or shape.steps * (ON_GPU if options.device == "cuda" else 1)
    steps = options.head_start + per_turn * (WARM + options.repeats + options.profile)
    settings = {name: getattr(options, name) for name in ("device", "threads", "precision", "seed", "workers")}
    config = task.training_config(shape, options.family, folder, steps=steps, **settings)
    with tempfile.TemporaryDirectory(dir=folder) as run:
        ours = DragomanTraining(config, Path(run) / "run")
        sizes, our_steps = ours.sizes(steps)[options.head_start :], ours.steps()
        for _ in range(options.head_start):
            next(our_steps)
        contenders = {"Dragoman": make_contender(our_steps, sizes, per_turn, options)}
        left_out = []
        for name, model in competitors.build_training_models(
            shape, ours.vocabulary, options.competitors, options.device
        ):
            if isinstance(model, competitors.Unavailable):
                left_out.append(f"{name} is left out: {model}")
                continue
            theirs = itertools.islice(ours.batches(), options.head_start, None)
            losses = competitors.training_loop(model, theirs, options.device, options.precision)
            contenders[name] = make_contender(losses, sizes, per_turn, options)
        figures = timing.measure_in_turns(contenders, options.repeats, WARM)
        profile = profile_turn(contenders["Dragoman"], options.device) if options.profile else ""
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


def profile_turn(turn: Contender, device: str) -> str:
    """A table of the torch operations that took most time in one more turn."""
    from torch.profiler import ProfilerActivity, profile

    kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device == "cuda" else [])]
    with profile(activities=kinds) as profiler:
        turn()
    key = f"self_{device}_time_total" if device == "cpu" else "self_device_time_total"
    table: str = profiler.key_averages().table(sort_by=key, row_limit=15, max_name_column_width=60)
    return table


class DragomanTraining:
    """A training by Dragoman, step by step, and the batches it trains on."""

    def __init__(self, config: Config, folder: Path) -> None:
        self.reports = training.run(config, folder)
        start = next(report for report in self.reports if report.kind == "start")
        self.parameters = start.message
        codec, _ = load_or_learn_codec(config)
        self.vocabulary = max(len(codec.source), len(codec.target))
        prepared = prepare.prepare_data(config, codec, Path(str(config.data.cache)))
        self.data = BatchStream(
            prepared.corpora,
            codec,
            tokens=config.training.batch_tokens,
            sentences=config.training.batch_sentences,
            seed=config.seed,
            objective=prepared.objective,
        )

    def steps(self) -> Iterator[float]:
        """The loss of each step, as it is trained."""
        return (report.loss for report in self.reports if report.kind == "step")

    def batches(self) -> Iterator[Batch]:
        """The batches of the training, from the first."""
        return (batch for batch, _ in load_batches(self.data, Cursor(), 0))

    def sizes(self, steps: int) -> list[tuple[int, int, int]]:
        """The source tokens, target tokens and positions with padding of each batch."""
        return [
            (int(batch.source_lengths.sum()), batch.tokens, batch.source.numel() + batch.target.numel() - len(batch))
            for batch in itertools.islice(self.batches(), steps)
        ]

    def finish(self) -> float:
        """Finish the training; the seconds of its last validation and checkpoint."""
        start = time.perf_counter()
        for _ in self.reports:
            pass
        return time.perf_counter() - start


def make_contender(
    steps: Iterator[object], sizes: list[tuple[int, int, int]], count: int, options: argparse.Namespace
) -> Contender:
    """A contender that does `count` steps of a training in each turn."""
    synchronize, tokens = timing.device_synchronizer(options.device), iter(sizes)

    def turn() -> Turn:
        synchronize()
        start = time.perf_counter()
        for _ in range(count):
            next(steps)
        synchronize()
        return Turn(sum(sum(size[:2]) for size in itertools.islice(tokens, count)), time.perf_counter() - start)

    return turn


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add = command.add_argument
    add("--family", choices=task.FAMILIES, help="of our model; default: the shape's own preset")
    add("--batch-tokens", type=int, help="of the longer side with padding; default: the shape's")
    add("--steps", type=int, help=f"of one turn; default: the shape's, on a GPU {ON_GPU} times as many")
    add("--head-start", type=int, default=0, help="steps of ours before all turns, for its shapes to be captured")
    add("--workers", type=int, default=0, help="processes of our loader")
    add("--profile", action="store_true", help="say where the time of one more turn of ours went")
    add("--competitors", nargs="*", default=["hf"], help="hf, hf-compiled, plain (the demo's LSTMs in a plain loop)")


def run(options: argparse.Namespace) -> timing.CommandResult:
    """Measure; the results for the record, and the lines to print."""
    shape = task.SHAPES[options.shape]
    if options.batch_tokens:
        shape = replace(shape, tokens=options.batch_tokens, sentences=None)
    with task.data_folder(options.folder, shape, options.seed) as folder:
        result = measure(options, shape, folder)
    figures: dict[str, Measurement] = result["figures"]
    rows = [{"training": name, "tokens/s": figure} for name, figure in figures.items()]
    lines = [
        result["parameters"],
        f"{result['tokens_in_a_step']:,.0f} real tokens in a step (source and target), {result['padding']:.1%} padding "
        f"besides; validation and checkpoint at the end, not counted: {result['end_seconds']:.1f} s",
        *result["left_out"],
        *([result["profile"]] if result["profile"] else []),
        timing.markdown_table(rows),
        *timing.format_ratios(figures, "Dragoman"),
    ]
    return result, lines
