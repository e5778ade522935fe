"""Run the jobs of a recipe in parallel, each as a command of its own that logs to OUT/JOB.log."""

from __future__ import annotations

import fcntl
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import FrameType

from dragoman.core import files
from dragoman.core.errors import RunError, TrainingStopped
from dragoman.core.processes import describe_exit, handle_signal
from dragoman.recipes.prepared_data import prepare_data
from dragoman.recipes.recipe import RecipeRun, TrainingJob
from dragoman.recipes.scoring import load_result


def run_jobs(run: RecipeRun, jobs: Sequence[TrainingJob], max_processes: int, report: Callable[[str], None]) -> None:
    """Train and score each job in a process, `max_processes` at a time; `report` gets a line as each starts and ends.

    Systems that start from the weights of another run after all others.
    """
    if running := {job.name: pid for job in jobs if (pid := _training_process(run.job_folder(job)))}:
        names = ", ".join(f"{name} in process {pid}" for name, pid in running.items())
        raise RunError(
            f"{run.out}: an earlier command still trains {names}; wait for it, "
            f"or end it with `kill {' '.join(running.values())}`, then run the same command again"
        )
    for part in {job.part for job in jobs}:
        prepare_data(run, part)
    systems = run.recipe.systems
    for wave in (
        [job for job in jobs if systems[job.system].after is None],
        [job for job in jobs if systems[job.system].after is not None],
    ):
        errors = _run_commands(run, wave, max_processes, report)
        failed = [f"{job.name} ({error})" for job, error in zip(wave, errors, strict=True) if error]
        if failed:
            raise RunError(
                f"{len(failed)} of {len(wave)} jobs failed: {'; '.join(failed)}. {run.out}/JOB.log says more"
            )


def _training_process(folder: Path) -> str:
    """The id of the process that trains in a run folder; empty if there is none."""
    with suppress(FileNotFoundError), (folder / ".lock").open("r+", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return lock.read().strip() or "unknown"
    return ""


def _run_commands(
    run: RecipeRun, jobs: Sequence[TrainingJob], max_processes: int, report: Callable[[str], None]
) -> list[str]:
    """Run each job as a command with its own log; return each job's error or "". Ctrl-C or SIGTERM stops all jobs."""
    children: list[subprocess.Popen[bytes]] = []
    starting, is_stopping = threading.Lock(), threading.Event()

    def run_job(job: TrainingJob) -> str:
        """Run one job's command to its end, with a report at its start and end; return its error, or ""."""
        path = run.out / f"{job.name}.log"
        with starting, path.open("ab") as log:
            if is_stopping.is_set():
                return "not started"
            log_start = path.stat().st_size
            child = subprocess.Popen(_command(run, job), stdout=log, stderr=log, stdin=subprocess.DEVNULL)
            children.append(child)
        report(f"{job.name}: started; log in {path}")
        code = child.wait()
        error = _last_error(path, log_start, code) if code else ""
        if not is_stopping.is_set():
            report(f"{job.name}: failed ({error})" if code else f"{job.name}: {_describe_result(run, job)}")
        return error

    def stop(number: int, frame: FrameType | None) -> None:
        """Raise TrainingStopped: the handler of SIGTERM."""
        raise TrainingStopped("stopped by a signal; run the same command again to resume", 128 + number)

    files.make_folder(run.out)
    with ThreadPoolExecutor(max_processes) as pool, handle_signal(signal.SIGTERM, stop):
        try:
            return list(pool.map(run_job, jobs))
        except BaseException as error:
            pool.shutdown(wait=False, cancel_futures=True)
            with starting:  # a job that starts right now is among the children, or does not start
                is_stopping.set()
            report("stopping; each training saves first")
            for child in children:
                child.terminate()
            if isinstance(error, KeyboardInterrupt):
                message = "stopped; run the same command again to resume"
                raise TrainingStopped(message, 128 + signal.SIGINT) from None
            raise


def _describe_result(run: RecipeRun, job: TrainingJob) -> str:
    """ "done", with the first score of the job's result.json and its minutes of training where it has one."""
    result = load_result(run.job_folder(job) / "result.json")
    if result is None:
        return "done"
    for test, scored in result["tests"].items():
        for name, score in scored["scores"].items():
            spec = run.recipe.scores.get(name)
            label = spec.label if spec is not None and spec.label else name
            minutes = f"{result['minutes']:.1f} minutes of training"
            return f"done, {label} {score['value']:.2f} on {test} after {minutes}"
    return "done"


def _last_error(log: Path, start: int, code: int) -> str:
    """Why a job failed: its signal, else the last error in its log after byte `start`, else its exit code."""
    if code < 0:
        return describe_exit(code)
    lines = [line.strip() for line in log.read_bytes()[start:].decode(errors="replace").split("\n") if line.strip()]
    errors = [i for i, line in enumerate(lines) if line.startswith("error: ")]
    return " ".join(lines[errors[-1] if errors else -1 :]).removeprefix("error: ") or describe_exit(code)


def _command(run: RecipeRun, job: TrainingJob) -> list[str]:
    """The command line that trains and scores one job: `dragoman recipe run` with --only and --seed."""
    only = f"{job.system}/{job.part}" if job.part else job.system
    data = ["--data", str(run.data)] if run.data is not None else ["--example"] * run.example
    arguments = ["recipe", "run", run.loaded.name, *data, "--run", str(run.out), "--only", only]
    arguments += ["--seed", str(job.seed), *(f"--set={value}" for value in run.overrides)]
    arguments += [f"--allow-change={key}" for key in run.allow_change]
    return [sys.executable, "-P", "-m", "dragoman", *arguments]  # a file of that name here is no module of ours
