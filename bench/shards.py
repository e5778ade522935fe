"""Bulk work: speed and memory of `predict --shards` beside plain `predict`, and how a ledger grows with its lines.

soak     one file, both commands in turns on the same cores; their outputs must be equal byte for byte.
         Memory is that of all processes of a command (PSS: shared pages count once), every half second
growth   files of more and more lines and a function instead of a model, which turns each line around
"""

from __future__ import annotations

import argparse
import filecmp
import random
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from bench import task, timing
from bench.decode import write_model
from dragoman.data.lines import ReadReport
from dragoman.inference.windows import WINDOW
from dragoman.jobs.compute import Selection, compute_shards, missing_shards
from dragoman.jobs.executors.local import ForkedWorkers
from dragoman.jobs.ledger import Job, Ledger
from dragoman.jobs.merge import merge
from dragoman.jobs.shards import Shard, read_shards, scan_lines

LENGTH = 6  # tokens of each result
INTERVAL_S = 0.5
SETTLED = 0.1  # of the time: memory is compared with the most that was used until then


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add = command.add_argument
    add("--lines", type=int, default=1_000_000, help="of the soak; 0: no soak")
    add("--workers", type=int, default=2)
    add("--growth", type=int, nargs="*", default=[10_000, 100_000, 1_000_000, 10_000_000], help="lines of each point")


def run(options: argparse.Namespace) -> timing.CommandResult:
    """Measure both; the results for the record, and the lines to print."""
    results: dict[str, Any] = {}
    lines: list[str] = []
    with tempfile.TemporaryDirectory(dir=options.folder) as temporary:
        if options.growth:
            results["growth"] = [measure_growth(count, options.workers, Path(temporary)) for count in options.growth]
            lines += [timing.markdown_table(results["growth"]), ""]
        if options.lines:
            results["soak"], last = soak(options, Path(temporary))
            lines += [timing.markdown_table(results["soak"]), "", last]
    return results, lines


# -- soak --------------------------------------------------------------------------------------------------------------


def soak(options: argparse.Namespace, folder: Path) -> tuple[list[dict[str, Any]], str]:
    """Both commands in turns over one file: a row for each turn, and the ratios of their speeds."""
    shape, file, rng = task.SHAPES[options.shape], folder / "sources.txt", random.Random(options.seed)
    write_model(folder / "model", shape, LENGTH)
    with file.open("w") as stream:
        for _ in range(options.lines):
            words = (f"{rng.randrange(4, shape.vocabulary):06}" for _ in range(rng.randint(2, 2 * shape.length)))
            stream.write(" ".join(words) + "\n")
    common = [sys.executable, "-m", "dragoman", "predict", str(folder / "model"), str(file), "--beam", "1"]
    common += ["--device", "cpu", "--workers", str(options.workers)]
    rows: list[dict[str, Any]] = []
    samples: dict[str, list[float]] = {"plain": [], "shards": []}
    for number in range(options.repeats):
        plain, merged, ledger = folder / "plain.txt", folder / "merged.txt", folder / f"shards-{number}"
        commands = {"plain": (common, plain), "shards": ([*common, "--shards", str(ledger), "-o", str(merged)], None)}
        for name, (command, output) in commands.items():
            seconds, memory = run_and_watch(command, output)
            settled = max(memory[: max(1, int(len(memory) * SETTLED))])
            samples[name].append(options.lines / seconds)
            rows.append(
                {
                    "command": name,
                    "lines/s": options.lines / seconds,
                    "MB after a tenth": settled / 1e6,
                    "MB at most": max(memory) / 1e6,
                    "MB more": (max(memory) - settled) / 1e6,
                }
            )
        if not filecmp.cmp(plain, merged, shallow=False):
            raise SystemExit("the outputs differ")
    figures = {name: timing.Measurement(tuple(values)) for name, values in samples.items()}
    return rows, f"equal outputs; speed of shards / plain: {timing.ratio(figures['shards'], figures['plain'])}"


def run_and_watch(command: list[str], output: Path | None) -> tuple[float, list[int]]:
    """Run a command: its seconds, and the bytes of memory of its processes while it ran."""
    memory: list[int] = []
    start = time.perf_counter()
    with tempfile.TemporaryFile() as nowhere, output.open("wb") if output else tempfile.TemporaryFile() as stream:
        process = subprocess.Popen(command, stdout=stream, stderr=nowhere)
        done = threading.Event()

        def watch() -> None:
            while not done.wait(INTERVAL_S):
                memory.append(sum(map(_pss, _family(process.pid))))

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            code = process.wait()
        finally:
            done.set()
            thread.join()
        if code:
            nowhere.seek(0)
            raise SystemExit(nowhere.read().decode())
    return time.perf_counter() - start, memory or [0]


def _family(pid: int) -> Iterator[int]:
    """A process and all that it started."""
    yield pid
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return
    for child in children:
        yield from _family(int(child))


def _pss(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


# -- growth ------------------------------------------------------------------------------------------------------------


def measure_growth(count: int, workers: int, folder: Path) -> dict[str, Any]:
    """Seconds and sizes of a job of so many lines without a model."""
    file, shards = folder / f"{count}.txt", folder / f"{count}-shards"
    with file.open("w") as stream:
        stream.writelines(f"the line with the number {i}\n" for i in range(count))
    lines, scan_s = _timed(lambda: scan_lines(file, WINDOW))
    ledger = Ledger.create(shards, Job("predict", {}, (lines.identity,), lines.lines, WINDOW))

    def read(numbers: Iterable[int]) -> Iterator[Shard]:
        return read_shards(lines, str(file), numbers, "stop", ReadReport())

    def work() -> None:
        executor = ForkedWorkers(ledger, _turn_around, workers)
        compute_shards(ledger, read(missing_shards(ledger, Selection())), executor, lambda progress: None)

    _, compute_s = _timed(work)
    _, again_s = _timed(work)
    _, merge_s = _timed(lambda: merge(ledger, folder / f"{count}.out"))
    results = [path.stat().st_size for path in shards.glob("shard-*")]
    row = {
        "lines": count,
        "shards": len(results),
        "scan s": scan_s,
        "compute s": compute_s,
        "again, all done s": again_s,
        "merge s": merge_s,
        "ledger beside results, bytes": sum(results) + (shards / "job.json").stat().st_size - file.stat().st_size,
        "peak MB of the driver": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    ledger.remove()
    file.unlink()
    return row


def _turn_around(shard: Shard) -> tuple[bytes, dict[str, int]]:
    return b"".join(f"{row.cells[0][::-1]}\n".encode() for row, _ in shard.inputs), {}


def _timed(work: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    result = work()
    return result, time.perf_counter() - start
