"""Successive halving (Jamieson and Talwalkar 2016): runs train side by side, and the better half goes on.

    all to rung r of their steps ─validation→ the better half to rung 2r ─→ … ─→ the winner, which then trains on

No run begins again: a later rung resumes it, and a race that is stopped resumes where it was.
"""

from __future__ import annotations

import json
import math
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from dragoman.config import Config
from dragoman.core import files
from dragoman.evaluation.metrics import metrics
from dragoman.training.loop import run
from dragoman.training.report import Report
from dragoman.training.run_folder import MAX_RECORD_BYTES

FIRST_RUNG = 1 / 8  # of its steps


def race(configs: Mapping[str, Config], folder: Path) -> Generator[Report, None, str]:
    """Train the named configs in folders below `folder` until one is left; yields reports, returns its name."""
    names, rung = list(configs), FIRST_RUNG
    while len(names) > 1:
        scores = {}
        for name in names:
            config = configs[name]
            yield from train_until(config, folder / name, math.ceil(rung * config.training.steps))
            scores[name] = last_score(folder / name, config)
        metric = configs[names[0]].training.best
        names.sort(key=lambda name: scores[name] if not _is_higher_better(configs[name]) else -scores[name])
        told = ", ".join(f"{name} {scores[name]:.3g}" for name in names)
        names = names[: -(-len(names) // 2)] if len(names) > 2 else names[:1]
        text = f"race, after {rung:.0%} of the steps: {metric}: {told}; going on: {', '.join(names)}"
        yield Report("notice", 0, 0, text)
        rung *= 2
    return names[0]


def train_until(config: Config, folder: Path, step: int) -> Iterator[Report]:
    """Train, or go on, until a checkpoint is saved after a validation at or after a step; it can be resumed from."""
    reports, is_validated = cast("Generator[Report]", run(config, folder)), False
    for report in reports:
        yield report
        is_validated |= report.kind == "validation" and report.step >= step
        if report.kind == "start" and report.step >= step:
            is_validated = last_validation(folder).get("step", -1) >= step
        if is_validated and report.kind in ("saved", "start"):
            break
    reports.close()


def last_score(folder: Path, config: Config) -> float:
    """The last validation's score by which the config chooses; without one, the worst there is."""
    score = last_validation(folder).get(config.training.best)
    return (-math.inf if _is_higher_better(config) else math.inf) if score is None else float(score)


def last_validation(folder: Path) -> dict[str, Any]:
    """The last validation that a run has recorded; empty if there is none."""
    path = folder / "metrics.jsonl"
    lines = files.read_plain(path, MAX_RECORD_BYTES).splitlines() if path.exists() else []
    return next((line for line in map(json.loads, reversed(lines)) if line["kind"] == "valid"), {})


def _is_higher_better(config: Config) -> bool:
    best = config.training.best
    return any(metrics.build(part).higher_is_better for part in config.training.validate_metrics if part.name == best)
