"""Schedules of scheduled sampling: the probability ε that the next decoder input is the gold token; t counts steps.

teacher_forcing   1
linear            max(floor, 1 − t / steps)               scheduled sampling (Bengio et al. 2015)
exponential       k^t
inverse_sigmoid   k / (k + e^(t/k))
"""

from __future__ import annotations

import math
from typing import Annotated, Protocol

from pydantic import Field

from dragoman.core.registry import PositiveInt, Registry, UnitInterval


class SamplingSchedule(Protocol):
    """The teacher forcing ratio of each training step."""

    def teacher_forcing_ratio(self, t: int) -> float:
        """The probability at step t that a decoder input is the gold token."""
        ...


sampling_schedules: Registry[SamplingSchedule] = Registry("sampling schedule")


@sampling_schedules.register("teacher_forcing")
class TeacherForcing:
    """Teacher forcing: every input is the gold token."""

    def teacher_forcing_ratio(self, t: int) -> float:
        return 1.0


@sampling_schedules.register("linear")
class LinearSampling:
    """The share of gold inputs falls linearly, by 1 / `steps` a step, and stays at `floor`."""

    def __init__(self, *, steps: PositiveInt = 10_000, floor: UnitInterval = 0.0) -> None:
        self.steps, self.floor = steps, floor

    def teacher_forcing_ratio(self, t: int) -> float:
        return max(self.floor, 1.0 - t / self.steps)


@sampling_schedules.register("exponential")
class ExponentialSampling:
    """The share of gold inputs is k^t."""

    def __init__(self, *, k: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.9999) -> None:
        self.k = k

    def teacher_forcing_ratio(self, t: int) -> float:
        return float(self.k**t)


@sampling_schedules.register("inverse_sigmoid")
class InverseSigmoidSampling:
    """The share of gold inputs is k / (k + e^(t/k)): near 1 for long, then it falls toward 0."""

    def __init__(self, *, k: Annotated[float, Field(ge=1.0, le=1e9)] = 1000.0) -> None:
        self.k = k

    def teacher_forcing_ratio(self, t: int) -> float:
        return self.k / (self.k + math.exp(min(t / self.k, 700.0)))
