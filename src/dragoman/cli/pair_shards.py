"""`dragoman score` and `dragoman evaluate` with --shards: pairs in, and what is known of each out of the ledger.

Pairs are numbered as they are read: a line that is left out is no pair. So they are read from the file's start.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.cli import bulk, options
from dragoman.cli.shard_results import EvaluateShard, ModelSpec, ScoreShard, read_predictions, read_scores
from dragoman.cli.source_columns import choose_columns
from dragoman.core.errors import UserError

if TYPE_CHECKING:
    from dragoman.cli.bulk import BulkOptions
    from dragoman.core.types import Example
    from dragoman.data.lines import OnError
    from dragoman.inference.pipeline import Pipeline
    from dragoman.inference.prediction import Prediction
    from dragoman.jobs.ledger import Ledger
    from dragoman.jobs.shards import Shard


def score_in_shards(
    pipeline: Pipeline,
    spec: ModelSpec,
    pairs: str,
    columns: str,
    on_error: OnError,
    chosen: BulkOptions,
    output: Path | None,
) -> tuple[Iterable[Example], Iterator[list[float]]] | None:
    """Compute the missing token scores; return the pairs and the scores of each, or None if some are still missing."""
    from dragoman.core import files
    from dragoman.data.lines import ReadReport
    from dragoman.data.readers import read_pairs, spec_files

    if pipeline.reads_media and on_error == "skip":
        raise UserError("--shards needs pairs that can be read: leave out --on-error skip, or check the media files")
    if output is not None:
        files.check_output(output, spec_files(pairs))
    read_columns = choose_columns(pairs, columns, pipeline.config.columns)

    def read(report: ReadReport) -> Iterator[Example]:
        return read_pairs(pairs, columns=read_columns, on_error=on_error, report=report)

    report = ReadReport()
    examples = options.warn_untagged(pipeline.codec, read(report))
    described = {"--columns": str(read_columns)}
    ledger = _compute(
        pipeline,
        spec,
        "score",
        pairs,
        described,
        examples,
        lambda: sum(1 for _ in read(ReadReport())),
        ScoreShard(on_error == "skip"),
        chosen,
        on_error,
    )
    for notice in report.notices():
        options.print_to_stderr(notice)
    data = _finish(ledger, chosen)
    return None if data is None else (read(ReadReport()), read_scores(data))


def predict_pairs_in_shards(
    pipeline: Pipeline,
    spec: ModelSpec,
    pairs: str,
    columns: str,
    examples: Sequence[Example],
    beam: int | None,
    on_error: OnError,
    chosen: BulkOptions,
) -> list[Prediction] | None:
    """Compute the missing outputs of some pairs; return the output of each, or None if some are still missing."""
    from dragoman.core.generation import GenerationOptions

    generation = None if beam is None else GenerationOptions(beam=beam)
    described = {"--columns": columns, **bulk.describe_generation(pipeline, generation)}
    ledger = _compute(
        pipeline,
        spec,
        "evaluate",
        pairs,
        described,
        examples,
        lambda: len(examples),
        EvaluateShard(generation),
        chosen,
        on_error,
    )
    data = _finish(ledger, chosen)
    return None if data is None else list(read_predictions(data))


def _compute(
    pipeline: Pipeline,
    spec: ModelSpec,
    command: str,
    pairs: str,
    described: dict[str, Any],
    examples: Iterable[Example],
    count: Any,
    function: ScoreShard | EvaluateShard,
    chosen: BulkOptions,
    on_error: OnError,
) -> Ledger:
    """Compute the missing shards of some pairs."""
    from dragoman.data.readers import spec_files
    from dragoman.jobs.shards import cut_shards, identify_file

    assert chosen.folder is not None
    for path in spec_files(pairs) or [Path("-")]:
        bulk.refuse_format(str(path))
    forks = chosen.executor == "ray" or bulk.can_fork_workers(pipeline)
    described = {
        **bulk.describe_model(pipeline, spec),
        **described,
        "threads of a worker": bulk.count_threads(pipeline, forks),
    }
    identities = [identify_file(path) for path in spec_files(pairs)]
    size = pipeline.window_size
    ledger = bulk.open_ledger(chosen.folder, command, described, identities, count, size)
    if on_error == "skip":
        ledger.clear_failures()

    def read(missing: Iterable[int]) -> Iterator[Shard]:
        return cut_shards(examples, size, frozenset(missing).__contains__)

    executor = bulk.open_executor(ledger, pipeline, function, spec, chosen, forks=forks)
    bulk.run(ledger, executor, read, chosen.selection, pairs)
    return ledger


def _finish(ledger: Ledger, chosen: BulkOptions) -> Iterator[bytes] | None:
    """Say how far the shards are; return the results of all, or None if some are missing."""
    from dragoman.jobs.merge import read_all, why_unfinished

    if chosen.as_json:
        bulk.print_status(ledger)
    bulk.check_failures(ledger, chosen.selection)
    if problem := why_unfinished(ledger):
        options.print_to_stderr(f"{problem}; the same command says more when all are")
        return None
    return read_all(ledger)
