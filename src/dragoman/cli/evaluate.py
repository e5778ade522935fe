"""dragoman evaluate: decode a test set, score it with confidence intervals, and report on the errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dragoman.cli import bulk, options
from dragoman.cli.source_columns import read_pairs_for
from dragoman.core.errors import DataError, UserError

if TYPE_CHECKING:
    from dragoman.reports.report import EvaluationReport


def evaluate(
    model: options.Model,
    pairs: options.Pairs,
    metrics: Annotated[
        str,
        typer.Option(
            help="Names, separated by commas, or all; see `dragoman list metrics`. Default: those that fit the task."
        ),
    ] = "",
    errors: Annotated[
        Path | None, typer.Option(help="Write every wrong output into this file, .csv or .tsv, aligned with its line.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write the whole report into this file: a page to show.")] = None,
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
    shards: bulk.ShardsFolder = None,
    shard: bulk.ShardChoice = None,
    executor: bulk.ExecutorName = "local",
    ray_address: bulk.RayAddress = None,
) -> None:
    """Decode every source, score the results and report on the errors; columns after the target are references."""
    chosen_bulk = bulk.BulkOptions(shards, shard, executor, ray_address, workers)
    chosen_bulk.check()
    options.load_plugins(plugins)
    from dragoman.evaluation.metrics import parse_metrics

    metric_parts = parse_metrics(metrics)  # a wrong name is an error before torch is imported
    from dragoman.inference import pipeline
    from dragoman.reports import report as reports
    from dragoman.reports.errors_table import check_format
    from dragoman.reports.terminal import report_lines

    if errors is not None:
        check_format(errors)
    source, model = model, options.fetch_model(model)
    name, pairs = pairs, options.fetch_files(pairs)
    own_device = "cpu" if executor == "ray" else device  # Ray's workers have the others
    loaded = pipeline.load(model, own_device, precision=precision, reference=reference).with_media_roots(files)
    if loaded.continues_text:
        raise UserError("a language model has no targets to compare with; use `dragoman score` for its perplexity")
    read = read_pairs_for(pairs, columns, loaded, extra_targets=True, on_error=on_error)
    readable = options.skip_unreadable(loaded, read, on_error, keep_blank=False)
    examples = list(options.warn_untagged(loaded.codec, readable))
    if not examples:
        raise DataError("there are no pairs to evaluate; a pair is a source and a target", pairs)
    predictions = None
    if shards is not None:
        from dragoman.cli.pair_shards import predict_pairs_in_shards
        from dragoman.cli.shard_results import ModelSpec

        spec = ModelSpec.of(
            loaded, model, own_device if executor == "local" else device, None, 0.0, files, plugins, source
        )
        examples = [loaded.codec.normalize_targets(example) for example in examples if example.target is not None]
        predictions = predict_pairs_in_shards(loaded, spec, pairs, columns, examples, beam, on_error, chosen_bulk)
        if predictions is None:
            return
    assessment, report = reports.evaluate(
        loaded,
        examples,
        metric_parts,
        model=source,
        pairs=name,
        beam=beam,
        workers=workers,
        predictions=predictions,
    )
    if as_json:
        result = {"model": source, "pairs": name, **assessment.as_json(), "report": report.as_json()}
        print(json.dumps(result, indent=1))
    else:
        for line in report_lines(report):
            options.print_text(line)
    _write_files(report, errors, html)


def _write_files(report: EvaluationReport, errors: Path | None, html: Path | None) -> None:
    """Write the table of errors and the page, and say so on the standard error."""
    from dragoman.core import files
    from dragoman.reports.errors_table import write_errors
    from dragoman.reports.page import render_page

    if errors is not None:
        write_errors(errors, report)
        options.print_to_stderr(f"wrote {len(report.wrong):,} errors to {errors}")
    if html is not None:
        files.write_output(html, render_page(report).encode())
        options.print_to_stderr(f"wrote {html}")
