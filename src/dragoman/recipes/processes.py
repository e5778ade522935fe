"""The jobs of a recipe side by side, each a process of its own, its log in OUT/JOB.log."""

from __future__ import annotations

import fcntl
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dragoman.core import files
from dragoman.core.errors import RunError, Stopped
from dragoman.recipes.prepared_data import prepare
from dragoman.recipes.recipe import Job, Setting
from dragoman.recipes.scoring import saved


def side_by_side(setting: Setting, jobs: Sequence[Job], count: int, say: Callable[[str], None]) -> None:
    """Each job in a process of its own, so many at a time; a system that builds on another waits for it."""
    after = {name: system.after for name, system in setting.opened.recipe.systems.items()}
    if busy := {job.name: holder for job in jobs if (holder := _holder(setting.folder(job)))}:
        named = ", ".join(f"{name} by process {holder}" for name, holder in busy.items())
        raise RunError(
            f"{setting.out}: an earlier command still trains {named}; wait for that, "
            f"or end it with `kill {' '.join(busy.values())}`, and give the same command again"
        )
    for part in {job.part for job in jobs}:
        prepare(setting, part)
    for wave in (
        [job for job in jobs if after[job.system] is None],
        [job for job in jobs if after[job.system] is not None],
    ):
        errors = _in_processes(setting, wave, count, say)
        failed = [f"{job.name} ({error})" for job, error in zip(wave, errors, strict=True) if error]
        if failed:
            raise RunError(
                f"{len(failed)} of {len(wave)} jobs failed: {'; '.join(failed)}. {setting.out}/JOB.log says more"
            )


def _holder(folder: Path) -> str:
    """The process that trains in a folder, if any does."""
    with suppress(FileNotFoundError), (folder / ".lock").open("r+", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return lock.read().strip() or "unknown"
    return ""


def _in_processes(setting: Setting, jobs: Sequence[Job], count: int, say: Callable[[str], None]) -> list[str]:
    """The errors of jobs, so many at a time; what ends this process early ends them too, and they save first."""
    children: list[subprocess.Popen[bytes]] = []
    beginning, ended = threading.Lock(), threading.Event()

    def run(job: Job) -> str:
        told = setting.out / f"{job.name}.log"
        with beginning, told.open("ab") as log:
            if ended.is_set():
                return "not begun"
            before = told.stat().st_size
            child = subprocess.Popen(_command(setting, job), stdout=log, stderr=log, stdin=subprocess.DEVNULL)
            children.append(child)
        say(f"{job.name}: begins; {told} tells more")
        code = child.wait()
        error = _error(told, before, code) if code else ""
        if not ended.is_set():
            say(f"{job.name}: failed ({error})" if code else f"{job.name}: {_reached(setting, job)}")
        return error

    files.make_folder(setting.out)
    with ThreadPoolExecutor(count) as pool, _terminable():
        try:
            return list(pool.map(run, jobs))
        except BaseException as error:
            pool.shutdown(wait=False, cancel_futures=True)
            with beginning:  # one that begins right now is among the children, or does not begin
                ended.set()
            say("stopping; each training saves first")
            for child in children:
                child.terminate()
            if isinstance(error, KeyboardInterrupt):
                raise Stopped("stopped; the same command goes on", 128 + signal.SIGINT) from None
            raise


def _reached(setting: Setting, job: Job) -> str:
    """How a job ended well: its first score."""
    found = saved(setting.folder(job) / "result.json")
    for test, scored in found.get("tests", {}).items():
        for name, score in scored["scores"].items():
            figure = setting.opened.recipe.scores.get(name)
            label = figure.label if figure is not None and figure.label else name
            return f"done, {label} {score['value']:.2f} on {test} after {found['minutes']:.1f} minutes of training"
    return "done"


def _error(log: Path, begin: int, code: int) -> str:
    """Why a job failed: the last error that it told in its log."""
    if code < 0:
        return f"ended by {signal.Signals(-code).name}"
    lines = [line.strip() for line in log.read_bytes()[begin:].decode(errors="replace").split("\n") if line.strip()]
    errors = [i for i, line in enumerate(lines) if line.startswith("error: ")]
    return " ".join(lines[errors[-1] if errors else -1 :]).removeprefix("error: ") or f"exit code {code}"


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM as an error inside, so that what was begun can be ended."""

    def stop(number: int, frame: Any) -> None:
        raise Stopped("stopped by a signal; the same command goes on", 128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield  # signals reach the main thread alone
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _command(setting: Setting, job: Job) -> list[str]:
    """One job on the command line."""
    only = f"{job.system}/{job.part}" if job.part else job.system
    where = ["--data", str(setting.data)] if setting.data is not None else ["--example"] * setting.example
    name, out = setting.opened.name, str(setting.out)
    words = ["recipe", "run", name, *where, "--run", out, "--only", only, "--seed", str(job.seed)]
    more = (*(f"--set={value}" for value in setting.sets), *(f"--allow-change={key}" for key in setting.allow_change))
    return [sys.executable, "-m", "dragoman", *words, *more]
