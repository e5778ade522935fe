"""What a training says of itself, and how it keeps time."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Report:
    """Something that happened at a step; `values` are what metrics.jsonl records."""

    kind: Literal["notice", "start", "step", "log", "validation", "saved", "skipped", "split", "end"]
    step: int
    steps: int
    message: str = ""
    values: dict[str, Any] = field(default_factory=dict)
    loss: float = math.nan
    rate: float = 0.0  # tokens per second
    seconds_left: float = math.nan


class Clock:
    """Time spent training: the rate of late and what is left at that rate; validations do not count."""

    def __init__(self, steps: int, seconds: float = 0.0) -> None:
        self.steps, self.done, self.rate, self.pace = steps, 0, 0.0, 0.0
        self.seconds = seconds  # those of earlier processes too
        self.mark = time.perf_counter()

    def tick(self, tokens: int) -> None:
        """One step is done. The means are of the last 50 steps or so."""
        now = time.perf_counter()
        spent, self.mark = now - self.mark, now
        self.seconds += spent
        self.done += 1
        share = max(1 / self.done, 0.02)
        self.pace += share * (spent - self.pace)
        self.rate += share * (tokens / max(spent, 1e-9) - self.rate)

    def pause(self) -> None:
        self.mark = time.perf_counter()

    @property
    def left(self) -> float:
        return self.pace * (self.steps - self.done)
