"""dragoman score: log p(target | source) of every pair, perplexity over all."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import closing
from typing import Annotated

import typer

from dragoman.cli.options import (
    Columns,
    Device,
    Imports,
    Model,
    OnError,
    Output,
    Pairs,
    Places,
    Plain,
    Precision,
    Workers,
    choice,
    columns_of,
    console,
    import_all,
    readable,
    warn_untagged,
)
from dragoman.cli.output import write


def score(
    model: Model,
    pairs: Pairs,
    output: Output = None,
    columns: Columns = "",
    on_error: OnError = "stop",
    device: Device = "auto",
    workers: Workers = None,
    precision: Precision = None,
    plain: Plain = False,
    tokens: Annotated[bool, typer.Option(help="Print the log-probability of every token, not only their sum.")] = False,
    modules: Imports = [],
    files: Places = [],
) -> None:
    """Print one log-probability for each pair; the perplexity goes to the standard error."""
    import_all(modules)
    from dragoman.data.readers import read_pairs
    from dragoman.inference import parallel, pipeline

    opened = pipeline.load(model, device, precision=precision, plain=plain).with_files(files)
    choice(on_error, ("stop", "skip"), "--on-error")
    named = columns_of(columns, opened)
    examples = read_pairs(pairs, columns=named, on_error=on_error)  # type: ignore[arg-type]
    examples = warn_untagged(opened, readable(opened, examples, on_error, each=False))
    found = parallel.token_scores(opened, examples, workers=workers, skip=on_error == "skip")
    total, count, scored, skipped = 0.0, 0, 0, 0

    def lines() -> Iterator[str]:
        nonlocal total, count, scored, skipped
        for row in found:
            total, count, scored, skipped = total + sum(row), count + len(row), scored + bool(row), skipped + (not row)
            if row:
                yield " ".join(f"{p:.6f}" for p in (row if tokens else [sum(row)]))

    with closing(found):
        write(lines(), output)
    perplexity = math.exp(min(-total / max(count, 1), 700.0))
    text = f"perplexity {perplexity:.4f} over {count:,} tokens in {scored:,} pairs" if count else f"{pairs}: no pairs"
    if skipped:
        text += f"; {skipped:,} beyond the model's positions were left out"
    console(error=True).print(text, markup=False, soft_wrap=True)
