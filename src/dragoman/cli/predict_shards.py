"""`dragoman predict` by shards: with --shards DIR, and for a large file of lines with --output, which so resumes."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.cli import bulk, inputs, options
from dragoman.cli.prediction_table import PredictionTable, ResultColumns
from dragoman.core.errors import DataError, UserError

if TYPE_CHECKING:
    from dragoman.cli.bulk import BulkOptions
    from dragoman.cli.shard_results import ModelSpec, PredictShard
    from dragoman.core.types import Example
    from dragoman.data.columns import Columns
    from dragoman.data.lines import OnError
    from dragoman.inference.pipeline import Pipeline
    from dragoman.jobs.compute import JobProgress
    from dragoman.jobs.ledger import Ledger
    from dragoman.jobs.shards import LineFile, Shard

WINDOWS_PER_WORKER = 2  # a file of more is worth a ledger
MIN_GZIP_RATIO = 1000  # no gzip file has more lines than so many for each of its bytes


@dataclass(frozen=True)
class PredictJob:
    """What `dragoman predict` is to do: the sources of one file, and the lines to write."""

    pipeline: Pipeline
    spec: ModelSpec
    function: PredictShard
    file: str
    columns: Columns | None
    on_error: OnError
    results: ResultColumns  # counts what the driver sees
    table: PredictionTable | None
    prepare: Callable[[Iterable[Example]], Iterator[Example]]  # languages, warnings
    languages: tuple[str | None, str | None]
    output: Path | None

    @property
    def is_of_lines(self) -> bool:
        """Whether each line of a plain or gzip file is one source: such a file need not be read from its start."""
        return self.columns is None and os.path.isfile(self.file)

    def describe(self, forks: bool) -> dict[str, Any]:
        """What decides the results, by command-line option."""
        function, columns = self.function, self.columns
        described = bulk.describe_model(self.pipeline, self.spec)
        described |= bulk.describe_generation(self.pipeline, function.generation)
        source_lang, target_lang = self.languages
        return described | {
            "--format": function.format if self.table is None else f"table {self.table.kind}",
            "--probability": function.probability,
            "--check": function.check,
            "--attention": function.attention,
            "--trace": function.trace,
            "--column": None if columns is None else str(columns),
            "--source-lang": source_lang,
            "--target-lang": target_lang,
            "threads of a worker": bulk.count_threads(self.pipeline, forks),
        }


def is_large(job: PredictJob, workers: int) -> bool:
    """Whether a prediction of lines into a file is long enough to be worth a ledger."""
    from dragoman.core import files
    from dragoman.data.readers import spec_files

    if job.output is None or job.table is not None or not job.is_of_lines:
        return False
    if not files.check_output(job.output, spec_files(job.file)):
        return False
    fewest = WINDOWS_PER_WORKER * workers * job.pipeline.window_size
    size = os.path.getsize(job.file)
    if size * (MIN_GZIP_RATIO if job.file.endswith(".gz") else 1) <= fewest:
        return False
    from dragoman.data.lines import count_lines

    return count_lines(job.file) > fewest


def predict_in_shards(job: PredictJob, chosen: BulkOptions) -> None:
    """Compute the shards of `--shards` that are missing; write the output when all are done."""
    from dragoman.core import files
    from dragoman.data.readers import spec_files

    assert chosen.folder is not None
    if job.output is not None:
        files.check_output(job.output, spec_files(job.file))
    forks = chosen.executor == "ray" or bulk.can_fork_workers(job.pipeline)
    ledger, lines = _open(job, chosen.folder, forks)
    _run(job, ledger, lines, chosen, forks)
    _finish(job, ledger, chosen)


def predict_large_file(job: PredictJob, workers: int) -> None:
    """Predict a large file through a ledger beside the output, which is removed at the end; so it resumes."""
    from dragoman.jobs.ledger import JobMismatch

    assert job.output is not None
    chosen = bulk.BulkOptions(bulk.hidden_folder(job.output), workers=workers)
    assert chosen.folder is not None
    forks = workers > 1
    try:
        ledger, lines = _open(job, chosen.folder, forks)
    except JobMismatch as error:
        begun = f"{job.output}: an earlier command was stopped while it wrote this file, with other inputs or options"
        remedy = f"give the same again, delete {chosen.folder} to begin anew, or choose another output"
        raise UserError(f"{begun}: {error.differences}; {remedy}") from None
    bulk.claim_hidden(ledger, job.output)
    ledger.clear_failures()
    progress = _run(job, ledger, lines, chosen, forks)
    if progress.failures:
        done = len(ledger.done())
        kept = (
            f"{done:,} of {ledger.job.shards:,} shards are kept in {ledger.folder}; the same command goes on from there"
        )
        raise UserError(f"{progress.failures[0].error} ({kept})")
    _finish(job, ledger, chosen)
    ledger.remove()


def _open(job: PredictJob, folder: str | Path, forks: bool) -> tuple[Ledger, LineFile | None]:
    from dragoman.data.lines import ReadReport
    from dragoman.data.readers import spec_files
    from dragoman.jobs.shards import identify_file, scan_lines

    size, described = job.pipeline.window_size, job.describe(forks)
    if job.is_of_lines:
        lines = scan_lines(Path(job.file), size)
        return bulk.open_ledger(folder, "predict", described, [lines.identity], lambda: lines.lines, size), lines
    identities = [identify_file(path) for path in spec_files(job.file)]

    def count() -> int:
        return sum(1 for _ in inputs.LineInputs(job.file, job.on_error, ReadReport(), job.columns))

    return bulk.open_ledger(folder, "predict", described, identities, count, size), None


def _run(job: PredictJob, ledger: Ledger, lines: LineFile | None, chosen: BulkOptions, forks: bool) -> JobProgress:
    from dragoman.data.lines import ReadReport
    from dragoman.jobs.shards import cut_shards, read_shards

    report = ReadReport()
    if job.on_error == "skip":
        ledger.clear_failures()

    def read(missing: Iterable[int]) -> Iterator[Shard]:
        if lines is not None:
            return _prepare_shards(read_shards(lines, job.file, missing, job.on_error, report), job)
        rows = inputs.LineInputs(job.file, job.on_error, report, job.columns)
        wanted = frozenset(missing)
        return _prepare_shards(cut_shards(rows, ledger.job.shard_size, wanted.__contains__), job)

    executor = bulk.open_executor(ledger, job.pipeline, job.function, job.spec, chosen, forks=forks)
    progress = bulk.run(ledger, executor, read, chosen.selection, os.path.basename(job.file))
    unreadable = {"encoding", "nul"} if job.on_error == "stop" else set()  # which failed their shards
    for issue, notice in zip(report, report.notices(), strict=True):
        if issue.kind not in unreadable:
            options.print_to_stderr(notice)
    for notice in job.results.notices(job.file, job.table.kind if job.table else ""):
        options.print_to_stderr(notice)
    return progress


def _prepare_shards(shards: Iterable[Shard], job: PredictJob) -> Iterator[Shard]:
    """Send the sources of all shards through one chain, whose warnings count over all of them and come at the end."""
    waiting: deque[Example | None] = deque()
    prepared = job.results.watch(job.prepare(iter(waiting.popleft, None)))
    for shard in shards:
        if shard.error:
            yield shard
            continue
        waiting.extend(example for _, example in shard.inputs)
        try:
            examples = list(islice(prepared, len(shard.inputs)))
        except DataError as error:
            yield replace(shard, error=str(error))
            return
        job.results.discard_waiting()
        rows = (row if job.table else None for row, _ in shard.inputs)  # less to send
        yield replace(shard, inputs=list(zip(rows, examples, strict=True)))
    waiting.append(None)
    for _ in prepared:
        pass


def _finish(job: PredictJob, ledger: Ledger, chosen: BulkOptions) -> None:
    from dragoman.data.readers import spec_files

    counts = bulk.finish(ledger, chosen, job.output, spec_files(job.file))
    if counts.get("truncated"):
        options.warn_truncated(job.pipeline.codec, job.pipeline.input_processor.max_source_length, counts["truncated"])
    if job.table is not None and job.output is not None and counts:
        job.results.add_counts(counts)
        options.print_to_stderr(job.results.summary(job.output))
