"""dragoman score: log p(target | source) of every pair, perplexity over all."""

from __future__ import annotations

import math
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
from dragoman.cli.predict import write


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
    from dragoman import pipeline, streaming
    from dragoman.data.readers import read_pairs

    opened = pipeline.load(model, device, precision=precision, plain=plain).with_files(files)
    choice(on_error, ("stop", "skip"), "--on-error")
    named = columns_of(columns, opened)
    examples = read_pairs(pairs, columns=named, on_error=on_error)  # type: ignore[arg-type]
    examples = warn_untagged(opened, readable(opened, examples, on_error, each=False))
    found = list(streaming.token_scores(opened, examples, workers=workers))
    write((" ".join(f"{p:.6f}" for p in (row if tokens else [sum(row)])) for row in found), output)
    count = sum(map(len, found))
    perplexity = math.exp(min(-sum(map(sum, found)) / max(count, 1), 700.0))
    text = (
        f"perplexity {perplexity:.4f} over {count:,} tokens in {len(found):,} pairs" if count else f"{pairs}: no pairs"
    )
    console(error=True).print(text, markup=False, soft_wrap=True)
