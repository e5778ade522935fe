"""A job whose model is a function: each line upside down, slowly enough to be killed. It logs every shard it begins."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from dragoman.data.lines import ReadReport
from dragoman.jobs.compute import JobProgress, Selection, compute_shards, missing_shards
from dragoman.jobs.executors.local import ForkedWorkers
from dragoman.jobs.ledger import Job, Ledger
from dragoman.jobs.shards import Shard, read_shards, scan_lines

SIZE, SHARDS, WORKERS = 16, 24, 2
SECONDS = 0.01  # of a shard


def write_lines(folder: Path, shards: int = SHARDS) -> Path:
    """A file of lines whose last shard is not whole."""
    file = folder / "lines.txt"
    file.write_text("".join(f"line {i} of some\n" for i in range(shards * SIZE - 5)))
    return file


def reverse(text: str) -> str:
    return text[::-1]


def expected(file: Path) -> bytes:
    """What plain work gives."""
    return "".join(f"{reverse(line)}\n" for line in file.read_text().splitlines()).encode()


def open_ledger(folder: Path, file: Path) -> Ledger:
    lines = scan_lines(file, SIZE)
    ledger = Ledger.open(folder, "predict", {"--beam": 5}, [lines.identity], SIZE)
    return ledger or Ledger.create(folder, Job("predict", {"--beam": 5}, (lines.identity,), lines.lines, SIZE))


def computing(log: Path, seconds: float = SECONDS) -> Callable[[Shard], tuple[bytes, dict[str, int]]]:
    """The function of a shard, which logs that it begins."""

    def compute(shard: Shard) -> tuple[bytes, dict[str, int]]:
        with log.open("a") as file:
            file.write(f"{shard.number} {os.getpid()}\n")
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            pass
        return b"".join(f"{reverse(row.cells[0])}\n".encode() for row, _ in shard.inputs), {"lines": len(shard.inputs)}

    return compute


def drive(
    folder: Path,
    file: Path,
    log: Path,
    selection: Selection = Selection(),
    compute: Callable[[Shard], tuple[bytes, dict[str, int]]] | None = None,
    workers: int = WORKERS,
) -> JobProgress:
    """Compute what is missing."""
    ledger, lines = open_ledger(folder, file), scan_lines(file, SIZE)

    def read(numbers: Iterable[int]) -> Iterator[Shard]:
        return read_shards(lines, str(file), numbers, "stop", ReadReport())

    executor = ForkedWorkers(ledger, compute or computing(log), workers)
    return compute_shards(ledger, read(missing_shards(ledger, selection)), executor, lambda progress: None)


def start_driver(folder: Path, file: Path, log: Path) -> multiprocessing.process.BaseProcess:
    """`drive` in a process group of its own."""

    def run() -> None:
        os.setpgid(0, 0)
        drive(folder, file, log)

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    return process


def begun(log: Path) -> list[tuple[int, int]]:
    """The shards that were begun, each with the process that had it."""
    lines = log.read_text().splitlines() if log.exists() else []
    return [(int(number), int(pid)) for number, pid in map(str.split, lines)]


def wait_for_shards(log: Path, count: int, process: multiprocessing.process.BaseProcess) -> None:
    """Wait until so many shards were begun."""
    deadline = time.monotonic() + 60
    while len(begun(log)) < count and process.is_alive():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def kill(target: str, process: multiprocessing.process.BaseProcess, log: Path, rng: random.Random) -> int:
    """Kill a worker, the driver or its whole group; returns how many workers died."""
    assert process.pid is not None
    if target == "worker":
        pids = {pid for _, pid in begun(log)[-WORKERS:]}
        victim = rng.choice(sorted(pids))
        try:
            if os.getpgid(victim) == process.pid:
                os.kill(victim, signal.SIGKILL)
        except ProcessLookupError:
            return 0
        return 1
    if target == "driver":
        process.kill()
    elif process.is_alive():
        os.killpg(process.pid, signal.SIGKILL)
    process.join(60)
    return WORKERS
