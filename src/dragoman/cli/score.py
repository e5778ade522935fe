"""dragoman score: log p(target | source) of every pair, and the perplexity over all pairs."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from dragoman.cli import bulk, options
from dragoman.cli.output import write_results
from dragoman.cli.source_columns import read_pairs_for
from dragoman.core.errors import UserError

if TYPE_CHECKING:
    from dragoman.core.types import Example


def score(
    model: options.Model,
    pairs: options.Pairs,
    output: options.Output = None,
    columns: options.Columns = "",
    on_error: options.OnError = "stop",
    device: options.Device = "auto",
    workers: options.Workers = None,
    precision: options.Precision = None,
    reference: options.Reference = False,
    tokens: Annotated[bool, typer.Option(help="Print the log-probability of every token, not only their sum.")] = False,
    worst: Annotated[
        int, typer.Option(min=0, help="Print only so many pairs: those with the lowest log-probability per token.")
    ] = 0,
    plugins: options.Plugins = [],
    files: options.MediaFolders = [],
    shards: bulk.ShardsFolder = None,
    shard: bulk.ShardChoice = None,
    executor: bulk.ExecutorName = "local",
    ray_address: bulk.RayAddress = None,
    as_json: bulk.JSONStatus = False,
) -> None:
    """Print one log-probability for each pair; the perplexity goes to the standard error.

    Wrong pairs of the training data are among its --worst: log p per token, file:line, source and target.
    """
    if worst and tokens:
        raise UserError("--worst and --tokens go apart: of the worst pairs the mean over their tokens is printed")
    chosen_bulk = bulk.BulkOptions(shards, shard, executor, ray_address, workers, as_json)
    chosen_bulk.check()
    options.load_plugins(plugins)
    from dragoman.data.lines import format_count
    from dragoman.data.readers import spec_files
    from dragoman.inference import parallel, pipeline

    source, model, pairs = model, options.fetch_model(model), options.fetch_files(pairs)
    own_device = "cpu" if executor == "ray" else device  # Ray's workers have the others
    loaded = pipeline.load(model, own_device, precision=precision, reference=reference).with_media_roots(files)
    waiting: deque[Example] = deque()  # for their scores
    if shards is None:
        examples = read_pairs_for(pairs, columns, loaded, on_error=on_error)
        examples = options.warn_untagged(
            loaded.codec, options.skip_unreadable(loaded, examples, on_error, keep_blank=False)
        )
        watched, skip = _watch(examples, waiting), on_error == "skip"
        token_scores = parallel.score_stream(loaded, watched, workers=workers, skip=skip)
    else:
        from dragoman.cli.pair_shards import score_in_shards
        from dragoman.cli.shard_results import ModelSpec

        spec = ModelSpec.of(
            loaded, model, own_device if executor == "local" else device, None, 0.0, files, plugins, source
        )
        stored = score_in_shards(loaded, spec, pairs, columns, on_error, chosen_bulk, output)
        if stored is None:
            return
        token_scores = _watch_pairs(*stored, waiting)
    total, count, scored, skipped = 0.0, 0, 0, 0

    def lines() -> Iterator[str]:
        nonlocal total, count, scored, skipped
        least: list[tuple[float, int, Example]] = []  # a heap: the best of them first
        for i, row in enumerate(token_scores):
            example = waiting.popleft()
            total, count, scored, skipped = total + sum(row), count + len(row), scored + bool(row), skipped + (not row)
            if row and worst:
                heapq.heappush(least, (-sum(row) / len(row), -i, example))
                if len(least) > worst:
                    heapq.heappop(least)
            elif row:
                yield " ".join(f"{p:.6f}" for p in (row if tokens else [sum(row)]))
        for improbability, _, example in sorted(least, key=lambda each: each[:2], reverse=True):
            cells = f"{-improbability:.3f}", f"{example.file}:{example.line}", example.source, example.target or ""
            yield "\t".join(cells)

    with closing(token_scores):
        if as_json and output is None:  # the standard output has the status
            deque(lines(), maxlen=0)
        else:
            write_results(lines(), output, spec_files(pairs))
    perplexity = math.exp(min(-total / max(count, 1), 700.0))
    sizes = f"{format_count(count, 'token')} in {format_count(scored, 'pair')}"
    text = f"perplexity {perplexity:.4f} over {sizes}" if count else f"{pairs}: no pairs"
    if skipped:
        text += f"; {skipped:,} longer than the model's maximum length were left out"
    options.print_to_stderr(text)


def _watch(examples: Iterable[Example], waiting: deque[Example]) -> Iterator[Example]:
    """Yield examples, and keep each until its score comes."""
    for example in examples:
        waiting.append(example)
        yield example


def _watch_pairs(
    examples: Iterable[Example], scores: Iterable[list[float]], waiting: deque[Example]
) -> Generator[list[float], None, None]:
    """Yield scores that are known, and keep the example of each until it is taken."""
    for example, row in zip(examples, scores, strict=True):
        waiting.append(example)
        yield row
