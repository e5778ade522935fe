"""Measure several contenders fairly: they take turns, the first turns only warm up, and every sample is kept.

    warm-up   A B C        then   A B C  A B C  …      so that what slows the machine for a while slows all of them

A sample is work over seconds of one turn, a figure the median of the samples with the smallest and the largest beside
it. A ratio is taken turn by turn, from samples that stand next to each other, and is then summed up the same way.
"""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "transformers", "ctranslate2", "triton", "numpy")


@dataclass(frozen=True)
class Turn:
    """The work done in one turn, and the seconds it took."""

    work: float
    seconds: float


Contender = Callable[[], Turn]
CommandResult = tuple[dict[str, Any], list[str]]  # the results for the record, and the lines to print


@dataclass(frozen=True)
class Measurement:
    """The samples of one contender, or of the ratio of two."""

    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median of the samples."""
        return statistics.median(self.samples)

    def __str__(self) -> str:
        return (
            f"{_format_number(self.median)} [{_format_number(min(self.samples))}, {_format_number(max(self.samples))}]"
        )


def measure_in_turns(contenders: Mapping[str, Contender], repeats: int, warm: int = 1) -> dict[str, Measurement]:
    """Measure the rate of each contender in `repeats` turns, after `warm` turns that do not count."""
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(warm + repeats):
        for name, turn in contenders.items():
            result = turn()
            if number >= warm:
                samples[name].append(result.work / result.seconds)
    return {name: Measurement(tuple(rates)) for name, rates in samples.items()}


def repeat_for(work: Callable[[], float], seconds: float, synchronize: Callable[[], None] = lambda: None) -> Contender:
    """A contender that repeats its work for some seconds; `synchronize` waits for the device."""

    def turn() -> Turn:
        synchronize()
        done, start = 0.0, time.perf_counter()
        while True:
            done += work()
            synchronize()
            spent = time.perf_counter() - start
            if spent >= seconds:
                return Turn(done, spent)

    return turn


def ratio(ours: Measurement, other: Measurement) -> Measurement:
    """The ratio of two measurements, turn by turn."""
    return Measurement(tuple(a / b for a, b in zip(ours.samples, other.samples, strict=True)))


def device_synchronizer(device: str) -> Callable[[], None]:
    """A function that waits until a device is idle."""
    if device != "cuda":
        return lambda: None
    import torch

    return torch.cuda.synchronize


# -- the environment of a measurement ----------------------------------------------------------------------------------


def describe_environment(arguments: Sequence[str], **settings: object) -> dict[str, object]:
    """The machine, the versions, the commit and the settings of a benchmark."""
    import torch

    environment: dict[str, object] = {
        "command": f"python -m bench {' '.join(arguments)}",
        "commit": git_commit(),
        "machine": f"{processor_name()}, {len(os.sched_getaffinity(0))} of {os.cpu_count()} cores",
        "python": platform.python_version(),
        "versions": {name: version for name in PACKAGES if (version := installed_version(name))},
        **settings,
    }
    if settings.get("device") == "cuda":
        environment["gpu"] = torch.cuda.get_device_name()
    return environment


def processor_name() -> str:
    """The processor's model name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n")
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def installed_version(name: str) -> str | None:
    """The installed version of a package, if any."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def git_commit() -> str:
    """The commit, and whether files differ from it."""

    def git(*arguments: str) -> str:
        folder = Path(__file__).parent
        return subprocess.run(
            ["git", *arguments], cwd=folder, capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        return git("rev-parse", "--short", "HEAD") + (" and changes" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


# -- tables ------------------------------------------------------------------------------------------------------------


def markdown_table(rows: Sequence[Mapping[str, object]]) -> str:
    """Rows with the same keys as a Markdown table."""
    names = list(rows[0])
    lines = [names, ["---"] * len(names), *([_format_cell(row[name]) for name in names] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def format_ratios(figures: Mapping[str, Measurement], ours: str) -> list[str]:
    """A line for each competitor: our rate divided by its rate."""
    return [
        f"{ours} / {name}: {ratio(figures[ours], figure)}"
        for name, figure in figures.items()
        if name != ours and ours in figures
    ]


def _format_cell(value: object) -> str:
    return _format_number(value) if isinstance(value, float) else str(value)


def _format_number(value: float) -> str:
    """A number with three or four digits, or as a whole number with separators from 1,000 on."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}" if abs(value) >= 100 else f"{value:.3g}"
