"""dragoman score: log p(target | source) of every pair, and the perplexity over all pairs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import closing
from typing import Annotated

import typer

from dragoman.cli.options import (
    Columns,
    Device,
    MediaFolders,
    Model,
    OnError,
    Output,
    Pairs,
    Plugins,
    Precision,
    Reference,
    Workers,
    load_plugins,
    parse_on_error,
    print_to_stderr,
    resolve_columns,
    skip_unreadable,
    warn_untagged,
)
from dragoman.cli.output import write_lines


def score(
    model: Model,
    pairs: Pairs,
    output: Output = None,
    columns: Columns = "",
    on_error: OnError = "stop",
    device: Device = "auto",
    workers: Workers = None,
    precision: Precision = None,
    reference: Reference = False,
    tokens: Annotated[bool, typer.Option(help="Print the log-probability of every token, not only their sum.")] = False,
    plugins: Plugins = [],
    files: MediaFolders = [],
) -> None:
    """Print one log-probability for each pair; the perplexity goes to the standard error."""
    load_plugins(plugins)
    from dragoman.data.readers import read_pairs
    from dragoman.inference import parallel, pipeline

    loaded = pipeline.load(model, device, precision=precision, reference=reference).with_media_roots(files)
    error_mode = parse_on_error(on_error)
    examples = read_pairs(pairs, columns=resolve_columns(columns, loaded), on_error=error_mode)
    examples = warn_untagged(loaded, skip_unreadable(loaded, examples, error_mode, keep_blank=False))
    token_scores = parallel.score_stream(loaded, examples, workers=workers, skip=error_mode == "skip")
    total, count, scored, skipped = 0.0, 0, 0, 0

    def lines() -> Iterator[str]:
        """Yield a line for each scored pair, and sum up the totals."""
        nonlocal total, count, scored, skipped
        for row in token_scores:
            total, count, scored, skipped = total + sum(row), count + len(row), scored + bool(row), skipped + (not row)
            if row:
                yield " ".join(f"{p:.6f}" for p in (row if tokens else [sum(row)]))

    with closing(token_scores):
        write_lines(lines(), output)
    perplexity = math.exp(min(-total / max(count, 1), 700.0))
    text = f"perplexity {perplexity:.4f} over {count:,} tokens in {scored:,} pairs" if count else f"{pairs}: no pairs"
    if skipped:
        text += f"; {skipped:,} longer than the model's maximum length were left out"
    print_to_stderr(text)
