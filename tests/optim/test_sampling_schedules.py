"""The teacher forcing ratio of every schedule, by the formulas of Bengio et al. 2015."""

from __future__ import annotations

import math

import pytest

from dragoman.core.registry import Part
from dragoman.optim.sampling_schedules import sampling_schedules


def ratios(name: str, *steps: int, **options: float) -> list[float]:
    schedule = sampling_schedules.build(Part(name, options))
    return [schedule.teacher_forcing_ratio(t) for t in steps]


def test_ratios_follow_their_formulas() -> None:
    assert ratios("teacher_forcing", 0, 1, 10**9) == [1.0, 1.0, 1.0]
    assert ratios("linear", 0, 25, 50, 100, 1000, steps=100) == [1.0, 0.75, 0.5, 0.0, 0.0]
    assert ratios("linear", 50, 90, 1000, steps=100, floor=0.25) == [0.5, 0.25, 0.25]
    assert ratios("exponential", 0, 1, 3, k=0.5) == [1.0, 0.5, 0.125]
    expected = [10 / (10 + math.exp(t / 10)) for t in (0, 23, 60)]
    assert ratios("inverse_sigmoid", 0, 23, 60, k=10.0) == pytest.approx(expected)


@pytest.mark.parametrize("name", sampling_schedules.names)
def test_a_ratio_is_a_probability_that_never_rises_however_long_a_run(name: str) -> None:
    schedule = sampling_schedules.build(Part(name))
    ratios = [schedule.teacher_forcing_ratio(t) for t in (0, 1, 10, 1000, 10**5, 10**7, 10**12)]
    assert all(0.0 <= ratio <= 1.0 for ratio in ratios)
    assert ratios == sorted(ratios, reverse=True)
