"""dragoman score: log p(target | source) of every pair, and the perplexity over all pairs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import closing
from typing import Annotated

import typer

from dragoman.cli import options
from dragoman.cli.output import write_results
from dragoman.cli.source_columns import read_pairs_for


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
    plugins: options.Plugins = [],
    files: options.MediaFolders = [],
) -> None:
    """Print one log-probability for each pair; the perplexity goes to the standard error."""
    options.load_plugins(plugins)
    from dragoman.data.readers import spec_files
    from dragoman.inference import parallel, pipeline

    loaded = pipeline.load(model, device, precision=precision, reference=reference).with_media_roots(files)
    examples = read_pairs_for(pairs, columns, loaded, on_error=on_error)
    examples = options.warn_untagged(loaded, options.skip_unreadable(loaded, examples, on_error, keep_blank=False))
    token_scores = parallel.score_stream(loaded, examples, workers=workers, skip=on_error == "skip")
    total, count, scored, skipped = 0.0, 0, 0, 0

    def lines() -> Iterator[str]:
        nonlocal total, count, scored, skipped
        for row in token_scores:
            total, count, scored, skipped = total + sum(row), count + len(row), scored + bool(row), skipped + (not row)
            if row:
                yield " ".join(f"{p:.6f}" for p in (row if tokens else [sum(row)]))

    with closing(token_scores):
        write_results(lines(), output, spec_files(pairs))
    perplexity = math.exp(min(-total / max(count, 1), 700.0))
    text = f"perplexity {perplexity:.4f} over {count:,} tokens in {scored:,} pairs" if count else f"{pairs}: no pairs"
    if skipped:
        text += f"; {skipped:,} longer than the model's maximum length were left out"
    options.print_to_stderr(text)
