"""dragoman evaluate: decode a test set and score it, with confidence intervals."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from dragoman.cli import options
from dragoman.core.errors import DataError, UserError

if TYPE_CHECKING:
    from dragoman.core.registry import Part


def evaluate(
    model: options.Model,
    pairs: options.Pairs,
    metrics: Annotated[
        str, typer.Option(help="Names, separated by commas; see `dragoman list metrics`. Default: all.")
    ] = "",
    beam: options.Beam = None,
    as_json: options.AsJSON = False,
    columns: options.Columns = "",
    on_error: options.OnError = "stop",
    device: options.Device = "auto",
    workers: options.Workers = None,
    precision: options.Precision = None,
    reference: options.Reference = False,
    plugins: options.Plugins = [],
    files: options.MediaFolders = [],
) -> None:
    """Decode every source and score the results; columns after the target are further references."""
    options.load_plugins(plugins)
    metric_parts = parse_metrics(metrics)
    from dragoman.data.readers import read_pairs
    from dragoman.inference import pipeline
    from dragoman.inspection.assessment import assess

    loaded = pipeline.load(model, device, precision=precision, reference=reference).with_media_roots(files)
    if loaded.continues_text:
        raise UserError("a language model has no targets to compare with; use `dragoman score` for its perplexity")
    read = read_pairs(pairs, columns=options.resolve_columns(columns, loaded), extra_targets=True, on_error=on_error)
    readable = options.skip_unreadable(loaded, read, on_error, keep_blank=False)
    examples = list(options.warn_untagged(loaded, readable))
    if not examples:
        raise DataError("there are no pairs to evaluate; a pair is a source and a target", pairs)
    result = assess(loaded, examples, metric_parts, beam=beam, workers=workers)
    if as_json:
        print(json.dumps({"model": str(model), "pairs": pairs, **result.as_json()}, indent=1))
        return
    for score in result.scores.values():
        signature = score.metric.signature
        options.print_text(f"{score}" + (f"   {signature}" if signature else ""))
    left_out = f" without {result.unscored:,} pairs longer than the model's maximum length" if result.unscored else ""
    options.print_text(f"perplexity {result.perplexity:.3f}{left_out}")
    rate = f"{len(examples) / result.seconds:,.0f} a second"
    options.print_text(f"{len(examples):,} pairs decoded in {result.seconds:.1f} s, {rate}")


def parse_metrics(text: str) -> list[Part]:
    """Turn a comma-separated list of names into metric parts; an unknown name raises UserError."""
    from dragoman.core.registry import Part
    from dragoman.evaluation.metrics import metrics

    names = options.split_commas(text)
    for name in names:
        if name not in metrics.names:
            raise UserError(f"--metrics: {metrics.unknown_name_message(name)}")
    return [Part(name) for name in names]
