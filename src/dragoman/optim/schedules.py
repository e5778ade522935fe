"""The learning rate over time, as a factor of its peak; steps count from 1, N is the last, w the warm-up.

constant       min(t/w, 1)
inverse_sqrt   min(t/w, √(w/t))                      (Vaswani et al. 2017, scaled to peak at 1)
               min(1, √(w/t)) where flat            (T5)
linear         t/w, then a straight line to `floor` at N
cosine         t/w, then half a cosine to `floor` at N
halving        t/w, then × decay after `start` and every `every` steps from there
plateau        t/w, then × decay whenever `patience` validations in a row have not improved
"""

from __future__ import annotations

import math

from dragoman.core.registry import NonNegativeInt, PositiveInt, Registry, UnitInterval

ScheduleState = dict[str, float]  # what a checkpoint keeps of a schedule


class Schedule:
    """The learning rate of every step, as a factor of its peak; without a state, unless a subclass has one."""

    def factor(self, t: int) -> float:
        """The factor of step t, counted from 1."""
        raise NotImplementedError

    def observe(self, improved: bool) -> None:
        """Take note of a validation, and whether it was the best so far."""

    def state(self) -> ScheduleState:
        """What has to be saved to resume."""
        return {}

    def restore(self, state: ScheduleState) -> None:
        """Continue from a saved state."""


schedules: Registry[Schedule] = Registry("schedule")


def warmup_factor(t: int, warmup: int) -> float:
    """min(t/w, 1); 1 without a warm-up."""
    return min(t / warmup, 1.0) if warmup else 1.0


def decay_progress(t: int, warmup: int, steps: int) -> float:
    """How far step t is from the end of the warm-up, 0, to the last step, 1; clipped to 0 … 1."""
    return min(max((t - warmup) / max(steps - warmup, 1), 0.0), 1.0)


@schedules.register("constant")
class Constant(Schedule):
    """Constant after a warm-up."""

    def __init__(self, steps: int, *, warmup: NonNegativeInt = 0) -> None:
        self.warmup = warmup

    def factor(self, t: int) -> float:
        return warmup_factor(t, self.warmup)


@schedules.register("inverse_sqrt")
class InverseSqrt(Schedule):
    """Linear warm-up, or the peak from the start (`flat`), then decay with 1/√t."""

    def __init__(self, steps: int, *, warmup: PositiveInt = 4000, flat: bool = False) -> None:
        self.warmup, self.flat = warmup, flat

    def factor(self, t: int) -> float:
        return min(1.0 if self.flat else t / self.warmup, math.sqrt(self.warmup / t))


@schedules.register("linear")
class Linear(Schedule):
    """Linear warm-up, then linear decay to `floor` at the last step."""

    def __init__(self, steps: int, *, warmup: NonNegativeInt = 0, floor: UnitInterval = 0.0) -> None:
        self.steps, self.warmup, self.floor = steps, warmup, floor

    def factor(self, t: int) -> float:
        down = 1.0 - (1.0 - self.floor) * decay_progress(t, self.warmup, self.steps)
        return warmup_factor(t, self.warmup) * down


@schedules.register("cosine")
class Cosine(Linear):
    """Linear warm-up, then half a cosine down to `floor` at the last step."""

    def factor(self, t: int) -> float:
        wave = (1.0 + math.cos(math.pi * decay_progress(t, self.warmup, self.steps))) / 2
        return warmup_factor(t, self.warmup) * (self.floor + (1.0 - self.floor) * wave)


@schedules.register("halving")
class Halving(Schedule):
    """The peak until step `start`, then × decay there and every `every` steps (Sutskever 2014, Luong 2015).

    The defaults are Sutskever's: after 5 of 7.5 epochs, every half epoch.
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
        return warmup_factor(t, self.warmup) * self.decay**times


@schedules.register("plateau")
class Plateau(Schedule):
    """The peak, multiplied by decay after every `patience` validations without improvement."""

    def __init__(
        self, steps: int, *, warmup: NonNegativeInt = 0, decay: UnitInterval = 0.5, patience: PositiveInt = 2
    ) -> None:
        self.warmup, self.decay, self.patience = warmup, decay, patience
        self.level, self.bad_validations = 1.0, 0

    def factor(self, t: int) -> float:
        return warmup_factor(t, self.warmup) * self.level

    def observe(self, improved: bool) -> None:
        self.bad_validations = 0 if improved else self.bad_validations + 1
        if self.bad_validations >= self.patience:
            self.level, self.bad_validations = self.level * self.decay, 0

    def state(self) -> ScheduleState:
        return {"level": self.level, "bad_validations": self.bad_validations}

    def restore(self, state: ScheduleState) -> None:
        self.level, self.bad_validations = float(state["level"]), int(state["bad_validations"])
