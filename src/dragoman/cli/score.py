"""dragoman score: log p(target | source) of every pair, perplexity over all."""

from __future__ import annotations

import math
from typing import Annotated

import typer

from dragoman.cli.options import Columns, Device, Imports, Model, Output, Pairs, console, import_all
from dragoman.cli.predict import write


def score(
    model: Model,
    pairs: Pairs,
    output: Output = None,
    columns: Columns = "source,target",
    device: Device = "auto",
    tokens: Annotated[bool, typer.Option(help="Print the log-probability of every token, not only their sum.")] = False,
    modules: Imports = [],
) -> None:
    """Print one log-probability for each pair; the perplexity goes to the standard error."""
    import_all(modules)
    from dragoman import pipeline
    from dragoman.data.readers import read_pairs

    opened = pipeline.load(model, device)
    found = opened.token_scores(read_pairs(pairs, columns=columns.split(",")))
    write((" ".join(f"{p:.6f}" for p in (row if tokens else [sum(row)])) for row in found), output)
    count = sum(map(len, found))
    if count:
        perplexity = math.exp(min(-sum(map(sum, found)) / count, 700.0))
        text = f"perplexity {perplexity:.4f} over {count:,} tokens of {len(found):,} pairs"
        console(error=True).print(text, markup=False)
