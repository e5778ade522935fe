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
    """What was done in how long."""

    work: float
    seconds: float


Contender = Callable[[], Turn]


@dataclass(frozen=True)
class Figure:
    """The samples of one contender, or of a ratio."""

    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    def __str__(self) -> str:
        return f"{_number(self.median)} [{_number(min(self.samples))}, {_number(max(self.samples))}]"


def take_turns(contenders: Mapping[str, Contender], repeats: int, warm: int = 1) -> dict[str, Figure]:
    """The rate of each contender, from `repeats` turns of each after `warm` that do not count."""
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(warm + repeats):
        for name, turn in contenders.items():
            found = turn()
            if number >= warm:
                samples[name].append(found.work / found.seconds)
    return {name: Figure(tuple(rates)) for name, rates in samples.items()}


def repeated(work: Callable[[], float], seconds: float, settle: Callable[[], None] = lambda: None) -> Contender:
    """A turn that does the same work again until so many seconds have gone by; `settle` waits for the device."""

    def turn() -> Turn:
        settle()
        done, start = 0.0, time.perf_counter()
        while True:
            done += work()
            settle()
            spent = time.perf_counter() - start
            if spent >= seconds:
                return Turn(done, spent)

    return turn


def ratio(ours: Figure, other: Figure) -> Figure:
    return Figure(tuple(a / b for a, b in zip(ours.samples, other.samples, strict=True)))


def settling(device: str) -> Callable[[], None]:
    """What waits until a device has done all it was asked to."""
    if device != "cuda":
        return lambda: None
    import torch

    return torch.cuda.synchronize


# -- what a figure was measured on -------------------------------------------------------------------------------------


def facts(arguments: Sequence[str], **settings: Any) -> dict[str, Any]:
    """The machine, the versions, the commit, and the settings given."""
    import torch

    found: dict[str, Any] = {
        "command": f"python -m bench {' '.join(arguments)}",
        "commit": commit(),
        "machine": f"{processor()}, {len(os.sched_getaffinity(0))} of {os.cpu_count()} cores",
        "python": platform.python_version(),
        "versions": {name: version for name in PACKAGES if (version := installed(name))},
        **settings,
    }
    if settings.get("device") == "cuda":
        found["gpu"] = torch.cuda.get_device_name()
    return found


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n")
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def commit() -> str:
    """The commit, and whether files differ from it."""

    def git(*arguments: str) -> str:
        place = Path(__file__).parent
        return subprocess.run(["git", *arguments], cwd=place, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "--short", "HEAD") + (" and changes" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


# -- showing -----------------------------------------------------------------------------------------------------------


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows with the same keys as a Markdown table."""
    names = list(rows[0])
    lines = [names, ["---"] * len(names), *([_cell(row[name]) for name in names] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def ratios(figures: Mapping[str, Figure], ours: str) -> list[str]:
    """One line for each rival: how many times as fast as it we are."""
    return [
        f"{ours} / {name}: {ratio(figures[ours], figure)}"
        for name, figure in figures.items()
        if name != ours and ours in figures
    ]


def _cell(value: Any) -> str:
    return _number(value) if isinstance(value, float) else str(value)


def _number(value: float) -> str:
    """Four digits where there is a fraction to show, thousands parted where there is none."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}" if abs(value) >= 100 else f"{value:.3g}"
