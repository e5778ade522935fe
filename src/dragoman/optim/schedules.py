"""The learning rate over time, as a factor of its peak; steps count from 1, N is the last, w the warm-up.

constant       min(t/w, 1)
inverse_sqrt   min(t/w, √(w/t))                      (Vaswani et al. 2017, scaled to peak at 1)
               min(1, √(w/t)) where flat            (T5)
linear         t/w, then a straight line to `floor` at N
cosine         t/w, then half a cosine to `floor` at N
halving        t/w, then × decay after `start` and every `every` steps from there
plateau        t/w, then × decay whenever the watched metric has not improved for `patience` validations
"""

from __future__ import annotations

import math
from typing import Any, Protocol

from dragoman.core.registry import NonNegativeInt, PositiveInt, Registry, UnitInterval


class Schedule(Protocol):
    """A factor for each step; `observe` hears of every validation (improved or not)."""

    def factor(self, t: int) -> float: ...

    def observe(self, improved: bool) -> None: ...

    def state(self) -> dict[str, Any]: ...

    def restore(self, state: dict[str, Any]) -> None: ...


schedules: Registry[Schedule] = Registry("schedule")


class Stateless:
    """A schedule that is a function of the step alone."""

    def observe(self, improved: bool) -> None:
        pass

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        pass


def warm(t: int, warmup: int) -> float:
    return min(t / warmup, 1.0) if warmup else 1.0


def share(t: int, warmup: int, steps: int) -> float:
    """How much of the way from the end of the warm-up to the last step is behind us."""
    return min(max((t - warmup) / max(steps - warmup, 1), 0.0), 1.0)


@schedules.register("constant")
class Constant(Stateless):
    """The peak, after a warm-up."""

    def __init__(self, steps: int, *, warmup: NonNegativeInt = 0) -> None:
        self.warmup = warmup

    def factor(self, t: int) -> float:
        return warm(t, self.warmup)


@schedules.register("inverse_sqrt")
class InverseSqrt(Stateless):
    """Up in a straight line, or at the peak from the start (`flat`), then down with 1/√t."""

    def __init__(self, steps: int, *, warmup: PositiveInt = 4000, flat: bool = False) -> None:
        self.warmup, self.flat = warmup, flat

    def factor(self, t: int) -> float:
        return min(1.0 if self.flat else t / self.warmup, math.sqrt(self.warmup / t))


@schedules.register("linear")
class Linear(Stateless):
    """Up, then down in a straight line to `floor` at the last step."""

    def __init__(self, steps: int, *, warmup: NonNegativeInt = 0, floor: UnitInterval = 0.0) -> None:
        self.steps, self.warmup, self.floor = steps, warmup, floor

    def factor(self, t: int) -> float:
        down = 1.0 - (1.0 - self.floor) * share(t, self.warmup, self.steps)
        return warm(t, self.warmup) * down


@schedules.register("cosine")
class Cosine(Stateless):
    """Up, then down on half a cosine to `floor` at the last step."""

    def __init__(self, steps: int, *, warmup: NonNegativeInt = 0, floor: UnitInterval = 0.0) -> None:
        self.steps, self.warmup, self.floor = steps, warmup, floor

    def factor(self, t: int) -> float:
        wave = (1.0 + math.cos(math.pi * share(t, self.warmup, self.steps))) / 2
        return warm(t, self.warmup) * (self.floor + (1.0 - self.floor) * wave)


@schedules.register("halving")
class Halving(Stateless):
    """The peak until step `start`, then × decay there and every `every` steps (Sutskever 2014, Luong 2015).

    Where they are not given, as Sutskever has them: after 5 of 7.5 epochs, every half epoch.
    """

    def __init__(
        self,
        steps: int,
        *,
        warmup: NonNegativeInt = 0,
        start: NonNegativeInt | None = None,
        every: PositiveInt | None = None,
        decay: UnitInterval = 0.5,
    ) -> None:
        self.warmup, self.decay = warmup, decay
        self.start = steps * 2 // 3 if start is None else start
        self.every = every or max(steps // 15, 1)

    def factor(self, t: int) -> float:
        times = math.ceil(max(t - self.start, 0) / self.every)
        return warm(t, self.warmup) * self.decay**times


@schedules.register("plateau")
class Plateau:
    """The peak until validations stop improving, then × decay each time they do."""

    def __init__(
        self, steps: int, *, warmup: NonNegativeInt = 0, decay: UnitInterval = 0.5, patience: PositiveInt = 2
    ) -> None:
        self.warmup, self.decay, self.patience = warmup, decay, patience
        self.level, self.waited = 1.0, 0

    def factor(self, t: int) -> float:
        return warm(t, self.warmup) * self.level

    def observe(self, improved: bool) -> None:
        self.waited = 0 if improved else self.waited + 1
        if self.waited >= self.patience:
            self.level, self.waited = self.level * self.decay, 0

    def state(self) -> dict[str, Any]:
        return {"level": self.level, "waited": self.waited}

    def restore(self, state: dict[str, Any]) -> None:
        self.level, self.waited = float(state["level"]), int(state["waited"])
