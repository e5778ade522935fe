"""Bulk commands: `predict`, `score` and `evaluate` with --shards, and `predict` of a large file.

options → what decides the results ─Ledger.open→ the ledger ─compute_shards→ results of each shard ─merge→ the output
"""

from __future__ import annotations

import json
import math
import os
import re
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dragoman.cli import options
from dragoman.cli.output import raise_pending, signal_name, stop_by_signal
from dragoman.cli.progress import RESULT_INTERVAL_S, format_duration
from dragoman.core.errors import CheckFailed, RunError, Stopped, UserError

if TYPE_CHECKING:
    from dragoman.cli.shard_results import EvaluateShard, ModelSpec, PredictShard, ScoreShard
    from dragoman.inference.pipeline import Pipeline
    from dragoman.jobs.compute import JobProgress, Selection
    from dragoman.jobs.executors import ShardExecutor
    from dragoman.jobs.ledger import Ledger
    from dragoman.jobs.shards import InputFile, Shard
    from dragoman.jobs.status import Status

PANEL = "Bulk work"
BAR_INTERVAL_S = 1.0  # seconds between two updates of a bar, each of which lists the folder

ShardsFolder = Annotated[
    str | None,
    typer.Option(
        "--shards",
        help="Keep the results of each 4,096 lines in this folder: what is done is never done again.",
        metavar="DIR",
        rich_help_panel=PANEL,
    ),
]
ShardChoice = Annotated[
    str | None,
    typer.Option(
        "--shard",
        help="With --shards: this process is the i-th of n (from 1), which share the folder and nothing else.",
        metavar="i/n",
        rich_help_panel=PANEL,
    ),
]
ExecutorName = Annotated[
    Literal["local", "ray"],
    typer.Option("--executor", help="With --shards: processes of this machine, or Ray tasks.", rich_help_panel=PANEL),
]
RayAddress = Annotated[
    str | None,
    typer.Option(
        "--ray-address",
        help="The Ray cluster, as in HOST:6379. Default: the one that Ray finds, else a new one on this machine.",
        rich_help_panel=PANEL,
    ),
]
JSONStatus = Annotated[
    bool, typer.Option("--json", help="With --shards: print the status at the end as JSON.", rich_help_panel=PANEL)
]


@dataclass(frozen=True)
class BulkOptions:
    """What the command line says of shards."""

    folder: str | Path | None
    shard: str | None = None
    executor: str = "local"
    ray_address: str | None = None
    workers: int | None = None
    as_json: bool = False

    def check(self) -> None:
        """Raise UserError for options that need --shards."""
        if self.folder is None:
            given = {
                "--shard": self.shard is not None,
                "--executor": self.executor != "local",
                "--ray-address": self.ray_address is not None,
                "--json": self.as_json,
            }
            for name in (name for name, is_given in given.items() if is_given):
                raise UserError(f"{name} needs --shards DIR, the folder that keeps the results")
        if self.ray_address is not None and self.executor != "ray":
            raise UserError("--ray-address needs --executor ray")
        parse_selection(self.shard)

    @property
    def selection(self) -> Selection:
        """The shards of this process."""
        return parse_selection(self.shard)


def parse_selection(text: str | None) -> Selection:
    """Parse i/n, from 1: the shards whose number, from 0, is i − 1 modulo n."""
    from dragoman.jobs.compute import Selection

    if text is None:
        return Selection()
    match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise UserError(f"--shard is '{text}'; it must be i/n with i from 1 to n, as in 3/8")
    return Selection(int(match[1]) - 1, int(match[2]))


def refuse_format(file: str) -> None:
    """Raise UserError for files that are not read line by line."""
    name = file.lower().partition("#")[0]
    if file == "-":
        raise UserError("--shards needs a file: the standard input cannot be read again")
    if name.endswith((".xlsx", ".xlsm", ".parquet", ".pq")):
        raise UserError(f"{file}: --shards needs lines; save the table as .tsv or .jsonl first")


# -- the job -----------------------------------------------------------------------------------------------------------


def describe_model(pipeline: Pipeline, spec: ModelSpec) -> dict[str, Any]:
    """What of a model, its precision and the programs decides the results."""
    import torch

    from dragoman.checkpoint import model_folder
    from dragoman.version import __version__

    described: dict[str, Any] = {
        "MODEL": spec.fingerprint,
        "--precision": pipeline.precision,
        "--reference": not pipeline.fast,
        "--device": spec.device.partition(":")[0],
        "dragoman": __version__,
        "torch": torch.__version__,
    }
    if spec.lm is not None:
        described |= {"--lm": model_folder.fingerprint(spec.lm), "--lm-weight": spec.lm_weight}
    return described


def describe_generation(pipeline: Pipeline, generation: Any) -> dict[str, Any]:
    """The options of generation, by their names on the command line; those that are not set are left out."""
    values = pipeline.request(generation).options.model_dump(mode="json")
    return {f"--{name.replace('_', '-')}": value for name, value in values.items() if value not in (None, [])}


def open_ledger(
    folder: str | Path,
    command: str,
    described: dict[str, Any],
    inputs: Sequence[InputFile],
    count_inputs: Callable[[], int],
    shard_size: int,
) -> Ledger:
    """Open the ledger of a job, or begin it; UserError if the folder is that of another job."""
    from dragoman.jobs.ledger import Job, Ledger

    ledger = Ledger.open(folder, command, described, inputs, shard_size)
    if ledger is None:
        ledger = Ledger.create(folder, Job(command, described, tuple(inputs), count_inputs(), shard_size))
    return ledger


def count_threads(pipeline: Pipeline, forks: bool) -> int:
    """The threads of each worker, on which the last bits of the results depend."""
    import torch

    return 1 if forks or pipeline.device.type != "cpu" else torch.get_num_threads()


def can_fork_workers(pipeline: Pipeline) -> bool:
    """Whether shards are computed by forks: on a CPU of a system that can fork."""
    from dragoman.core import processes

    return pipeline.device.type == "cpu" and processes.can_fork()


def open_executor(
    ledger: Ledger,
    pipeline: Pipeline,
    function: PredictShard | ScoreShard | EvaluateShard,
    spec: ModelSpec,
    bulk: BulkOptions,
    *,
    forks: bool,
) -> ShardExecutor:
    """Start no worker yet; return what will."""
    import torch

    from dragoman.inference import parallel
    from dragoman.jobs.executors import local

    if bulk.executor == "ray":
        from dragoman.jobs.executors.ray import RayTasks

        return RayTasks((function, spec), _open_in_ray, bulk.ray_address, bulk.workers, spec.device)
    workers = bulk.workers
    if workers is None and ledger.is_remote:  # whose connections are threads, which do not matter here
        workers = pipeline.config.runtime.workers or torch.get_num_threads()
    count = parallel.count_workers(pipeline, workers if forks else bulk.workers)
    compute = function.open(pipeline)
    if not forks:
        return local.ThisProcess(ledger, compute)
    parallel.warm_up(pipeline)
    return local.ForkedWorkers(ledger, compute, count)


def _open_in_ray(arguments: tuple[PredictShard | ScoreShard | EvaluateShard, ModelSpec]) -> Any:
    """In a worker of Ray: load the model, and return the function of a shard."""
    import torch

    function, spec = arguments
    if spec.device == "cpu":
        torch.set_num_threads(1)
    return function.open(spec.load())


# -- run ---------------------------------------------------------------------------------------------------------------


def run(
    ledger: Ledger,
    executor: ShardExecutor,
    read: Callable[[Iterable[int]], Iterable[Shard]],
    selection: Selection,
    name: str,
) -> JobProgress:
    """Compute the missing shards of a selection, and show how far all of them are; a signal keeps what is done."""
    from dragoman.jobs.compute import compute_shards, missing_shards

    with stop_by_signal() as received, ExitStack() as stack:
        try:
            missing = missing_shards(ledger, selection)
            show = stack.enter_context(ShardProgress(ledger, selection, name))

            def report(progress: JobProgress) -> None:
                raise_pending(received)
                show(progress)

            return compute_shards(ledger, read(missing), executor, report)
        except KeyboardInterrupt:
            done = len(ledger.done())
            text = f"stopped by {signal_name(received)}: {done:,} of {ledger.job.shards:,} shards are kept in "
            code = 128 + signal.Signals[signal_name(received)]
            raise Stopped(f"{text}{ledger.folder}; the same command goes on from there", code) from None


class ShardProgress:
    """Shows lines, speed, time left and failures of the shards of one command: a bar, or a line once a minute."""

    def __init__(self, ledger: Ledger, selection: Selection, name: str) -> None:
        self._job, self._name, self._out = ledger.job, name, options.console(error=True)
        self._total = sum(len(self._job.lines_of(n)) for n in range(self._job.shards) if n in selection)
        self._ledger, self._selection = ledger, selection
        self._start = self._printed_at = time.monotonic()
        self._done_at_start = self._done_lines()
        self._stack = ExitStack()
        self._bar: Any = None

    def __enter__(self) -> ShardProgress:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        if self._out.is_terminal:
            columns = TextColumn("{task.description}", markup=False), BarColumn(bar_width=30), TimeElapsedColumn()
            self._bar = self._stack.enter_context(Progress(*columns, console=self._out, refresh_per_second=5))
            self._task = self._bar.add_task(self._name, total=self._total, completed=self._done_at_start)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _done_lines(self) -> int:
        return sum(len(self._job.lines_of(number)) for number in self._ledger.done() if number in self._selection)

    def __call__(self, progress: JobProgress) -> None:
        """Show the progress, as often as is worth it."""
        now = time.monotonic()
        if now - self._printed_at < (BAR_INTERVAL_S if self._bar is not None else RESULT_INTERVAL_S):
            return
        self._printed_at, done = now, self._done_lines()
        rate = (done - self._done_at_start) / max(now - self._start, 1e-9)
        left = (self._total - done) / rate if rate else math.nan
        text = f"{self._name}: {done:,} of {self._total:,} lines, {rate:,.1f} lines/s, {format_duration(left)} left"
        text += f", {len(progress.failures):,} shards set aside" if progress.failures else ""
        if self._bar is None:
            self._out.print(text, markup=False, soft_wrap=True)
        else:
            self._bar.update(self._task, completed=done, description=text)


def check_failures(ledger: Ledger, selection: Selection, output: Path | None = None) -> None:
    """Raise CheckFailed (exit code 4), which names the first shards of a selection that are set aside, if any are."""
    failures = [failure for failure in ledger.failures() if failure.number in selection]
    if not failures:
        return
    count = "1 shard is" if len(failures) == 1 else f"{len(failures):,} shards are"
    shown = "; ".join(map(str, failures[:3])) + ("; …" if len(failures) > 3 else "")
    kept = "" if output is None else f", so {output} is not written"
    raise CheckFailed(
        f"{count} set aside and the others are done{kept}: {shown}. Mend the cause, then let them be tried again: "
        f"dragoman shards retry {ledger.folder}; or leave out lines that cannot be read: --on-error skip"
    )


def finish(ledger: Ledger, bulk: BulkOptions, output: Path | None, inputs: Iterable[str | Path]) -> dict[str, int]:
    """Write the output if all shards are done, say how far they are, and return the sums of the shards' counts."""
    from dragoman.jobs.merge import merge, why_unfinished

    counts: dict[str, int] = {}
    is_waiting = bool(why_unfinished(ledger))
    if output is not None and not is_waiting:
        counts = dict(merge(ledger, output, inputs))
    if bulk.as_json:
        print_status(ledger)
    check_failures(ledger, bulk.selection, output)
    if is_waiting:
        options.print_to_stderr(f"{why_unfinished(ledger)}; the output is written when all are")
    elif output is None and not bulk.as_json:
        options.print_to_stderr(
            f"all {ledger.job.shards:,} shards are done; to write them into one file: "
            f"dragoman shards merge {ledger.folder} --output FILE"
        )
    return counts


def print_status(ledger: Ledger) -> None:
    """Print the status as one JSON object."""
    from dragoman.jobs.status import read_status

    print(json.dumps(read_status(ledger).as_json()))


def status_lines(status: Status) -> list[str]:
    """A status in words."""
    speed = "–" if status.lines_per_second is None else f"{status.lines_per_second:,.1f} lines/s"
    left = "–" if status.seconds_left is None else format_duration(status.seconds_left)
    lines = [
        f"{status.folder}: dragoman {status.command}, {status.done_lines:,} of {status.lines:,} lines in "
        f"{status.done_shards:,} of {status.shards:,} shards, {speed}, {left} left, "
        f"{len(status.failures):,} shards set aside"
    ]
    lines += [f"  {failure}" for failure in status.failures]
    if status.failures:
        lines.append(
            f"let them be tried again: dragoman shards retry {status.folder}; "
            "or leave out lines that cannot be read: the same command with --on-error skip"
        )
    return lines


# -- a large file without --shards -------------------------------------------------------------------------------------


def hidden_folder(output: Path) -> Path:
    """Where the shards of an output are kept while it is made: .NAME.shards beside it."""
    target = Path(os.path.realpath(output))
    return target.with_name(f".{target.name}.shards")


def claim_hidden(ledger: Ledger, output: Path) -> None:
    """Raise RunError if another command makes the same output now."""
    if not ledger.claim_all():
        raise RunError(f"{output}: another command is writing it; wait for it, or choose another output")
