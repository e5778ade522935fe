"""The reports that training yields, and the clock behind their rates."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Any, Literal

ReportKind = Literal["notice", "start", "step", "log", "validation", "saved", "skipped", "split", "end"]
Metrics = dict[str, Any]  # a line of metrics.jsonl: kind, step and numbers by name


@dataclass(frozen=True)
class Report:
    """An event of a training run; `values` are what metrics.jsonl records."""

    kind: ReportKind
    step: int
    steps: int
    message: str = ""
    values: Metrics = field(default_factory=dict)
    loss: float = math.nan
    tokens_per_second: float = 0.0
    seconds_left: float = math.nan

    def __repr__(self) -> str:
        values = {key: value for key, value in self.values.items() if key not in ("kind", "step")}
        text = self.message or ", ".join(f"{key} {_short(value)}" for key, value in values.items())
        text = text or ("" if math.isnan(self.loss) else f"loss {self.loss:.4g}")
        return f"<Report {self.kind}, step {self.step} of {self.steps}{f': {text}' if text else ''}>"


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


class Clock:
    """Time spent training, without validation: the recent speed, and the time left at that speed."""

    def __init__(self, steps: int, seconds: float = 0.0) -> None:
        self.steps, self.done, self.tokens_per_second, self.seconds_per_step = steps, 0, 0.0, 0.0
        self.seconds = seconds  # including those of earlier processes
        self.last_tick = time.perf_counter()

    def tick(self, tokens: int) -> None:
        """Count a step of so many tokens; the speeds are moving averages over about 50 steps."""
        now = time.perf_counter()
        spent, self.last_tick = now - self.last_tick, now
        self.seconds += spent
        self.done += 1
        share = max(1 / self.done, 0.02)
        self.seconds_per_step += share * (spent - self.seconds_per_step)
        self.tokens_per_second += share * (tokens / max(spent, 1e-9) - self.tokens_per_second)

    def skip(self) -> None:
        """Leave the time since the last step, or the last call, out of the count."""
        self.last_tick = time.perf_counter()

    @property
    def seconds_left(self) -> float:
        """The time that the remaining steps need at the recent speed."""
        return self.seconds_per_step * (self.steps - self.done)
