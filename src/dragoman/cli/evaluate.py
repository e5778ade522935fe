"""dragoman evaluate: decode a test set and score it, with intervals."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from dragoman.cli.options import (
    Beam,
    Columns,
    Device,
    Imports,
    Model,
    OnError,
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

if TYPE_CHECKING:
    from dragoman.core.registry import Part

Metrics = Annotated[str, typer.Option(help="Names separated by commas; default: all. See `dragoman list metrics`.")]


def evaluate(
    model: Model,
    pairs: Pairs,
    metrics: Metrics = "",
    beam: Beam = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    columns: Columns = "",
    on_error: OnError = "stop",
    device: Device = "auto",
    workers: Workers = None,
    precision: Precision = None,
    plain: Plain = False,
    modules: Imports = [],
    files: Places = [],
) -> None:
    """Decode every source and compare with the targets; columns after the target are further references."""
    import_all(modules)
    names = parse_metrics(metrics)
    from dragoman.core.errors import DataError, UserError
    from dragoman.data.readers import read_pairs
    from dragoman.inference import pipeline
    from dragoman.inspection.assessment import assess

    opened = pipeline.load(model, device, precision=precision, plain=plain).with_files(files)
    choice(on_error, ("stop", "skip"), "--on-error")
    if opened.continues_text:
        raise UserError("a language model has no targets to compare with; `dragoman score` gives its perplexity")
    named = columns_of(columns, opened)
    found_pairs = read_pairs(pairs, columns=named, extra_targets=True, on_error=on_error)  # type: ignore[arg-type]
    examples = list(warn_untagged(opened, readable(opened, found_pairs, on_error, each=False)))
    if not examples:
        raise DataError("there is no pair to evaluate on; a pair is a source and a target", pairs)
    found = assess(opened, examples, names, beam=beam, workers=workers)
    if as_json:
        print(json.dumps({"model": str(model), "pairs": pairs, **found.as_json()}, indent=1))
        return
    out = console()
    for score in found.scores.values():
        signature = score.metric.signature
        out.print(f"{score}" + (f"   {signature}" if signature else ""), markup=False, soft_wrap=True)
    without = f" without {found.unscored:,} pairs beyond the model's positions" if found.unscored else ""
    out.print(f"perplexity {found.perplexity:.3f}{without}", markup=False, soft_wrap=True)
    out.print(
        f"{len(examples):,} pairs decoded in {found.seconds:.1f} s, {len(examples) / found.seconds:,.0f} a second",
        markup=False,
    )


def parse_metrics(text: str) -> list[Part]:
    """The metrics named on a command line."""
    from dragoman.core.errors import UserError
    from dragoman.core.registry import Part
    from dragoman.evaluation.metrics import metrics

    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in metrics.names:
            raise UserError(f"--metrics: {metrics.unknown(name)}")
    return [Part(name) for name in names]
