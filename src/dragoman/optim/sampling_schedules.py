"""How often the gold token, rather than the model's own, is the next input in training; t counts steps.

gold              1                                       teacher forcing
linear            max(floor, 1 − t / steps)               scheduled sampling (Bengio et al. 2015)
exponential       k^t
inverse_sigmoid   k / (k + e^(t/k))
"""

from __future__ import annotations

import math
from typing import Annotated, Protocol

from pydantic import Field

from dragoman.core.registry import PositiveInt, Registry, UnitInterval


class Teacher(Protocol):
    """The share of gold inputs at a step."""

    def share(self, t: int) -> float: ...


teachers: Registry[Teacher] = Registry("teacher")


@teachers.register("gold")
class Gold:
    """Teacher forcing: every input is the gold token."""

    def share(self, t: int) -> float:
        return 1.0


@teachers.register("linear")
class Linear:
    """A share of gold inputs that falls in a straight line to `floor`, where it would be 0 after `steps`."""

    def __init__(self, *, steps: PositiveInt = 10_000, floor: UnitInterval = 0.0) -> None:
        self.steps, self.floor = steps, floor

    def share(self, t: int) -> float:
        return max(self.floor, 1.0 - t / self.steps)


@teachers.register("exponential")
class Exponential:
    """A share of gold inputs of k^t."""

    def __init__(self, *, k: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.9999) -> None:
        self.k = k

    def share(self, t: int) -> float:
        return float(self.k**t)


@teachers.register("inverse_sigmoid")
class InverseSigmoid:
    """A share of gold inputs of k / (k + e^(t/k)): long near 1, then a fall, then near 0."""

    def __init__(self, *, k: Annotated[float, Field(ge=1.0, le=1e9)] = 1000.0) -> None:
        self.k = k

    def share(self, t: int) -> float:
        return self.k / (self.k + math.exp(min(t / self.k, 700.0)))
