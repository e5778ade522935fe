"""dragoman evaluate: decode a test set and score it, with confidence intervals."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from dragoman.cli.options import (
    Beam,
    Columns,
    Device,
    MediaFolders,
    Model,
    OnError,
    Pairs,
    Plugins,
    Precision,
    Reference,
    Workers,
    console,
    load_plugins,
    parse_on_error,
    resolve_columns,
    skip_unreadable,
    split_commas,
    warn_untagged,
)

if TYPE_CHECKING:
    from dragoman.core.registry import Part

Metrics = Annotated[str, typer.Option(help="Names, separated by commas; see `dragoman list metrics`. Default: all.")]


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
    reference: Reference = False,
    plugins: Plugins = [],
    files: MediaFolders = [],
) -> None:
    """Decode every source and score the results; columns after the target are further references."""
    load_plugins(plugins)
    metric_parts = parse_metrics(metrics)
    from dragoman.core.errors import DataError, UserError
    from dragoman.data.readers import read_pairs
    from dragoman.inference import pipeline
    from dragoman.inspection.assessment import assess

    loaded = pipeline.load(model, device, precision=precision, reference=reference).with_media_roots(files)
    error_mode = parse_on_error(on_error)
    if loaded.continues_text:
        raise UserError("a language model has no targets to compare with; use `dragoman score` for its perplexity")
    read = read_pairs(pairs, columns=resolve_columns(columns, loaded), extra_targets=True, on_error=error_mode)
    examples = list(warn_untagged(loaded, skip_unreadable(loaded, read, error_mode, keep_blank=False)))
    if not examples:
        raise DataError("there are no pairs to evaluate; a pair is a source and a target", pairs)
    result = assess(loaded, examples, metric_parts, beam=beam, workers=workers)
    if as_json:
        print(json.dumps({"model": str(model), "pairs": pairs, **result.as_json()}, indent=1))
        return
    out = console()
    for score in result.scores.values():
        signature = score.metric.signature
        out.print(f"{score}" + (f"   {signature}" if signature else ""), markup=False, soft_wrap=True)
    left_out = f" without {result.unscored:,} pairs longer than the model's maximum length" if result.unscored else ""
    out.print(f"perplexity {result.perplexity:.3f}{left_out}", markup=False, soft_wrap=True)
    out.print(
        f"{len(examples):,} pairs decoded in {result.seconds:.1f} s, {len(examples) / result.seconds:,.0f} a second",
        markup=False,
    )


def parse_metrics(text: str) -> list[Part]:
    """Turn a comma-separated list of names into metric parts; an unknown name raises UserError."""
    from dragoman.core.errors import UserError
    from dragoman.core.registry import Part
    from dragoman.evaluation.metrics import metrics

    names = split_commas(text)
    for name in names:
        if name not in metrics.names:
            raise UserError(f"--metrics: {metrics.unknown_name_message(name)}")
    return [Part(name) for name in names]
