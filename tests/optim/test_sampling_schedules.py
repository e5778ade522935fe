"""How often the gold token is read, by the formulas of Bengio et al. 2015."""

from __future__ import annotations

import math

import pytest

from dragoman.core.registry import Part
from dragoman.optim.sampling_schedules import teachers


def shares(name: str, *steps: int, **options: float) -> list[float]:
    teacher = teachers.build(Part(name, options))
    return [teacher.share(t) for t in steps]


def test_shares_follow_their_formulas() -> None:
    assert shares("gold", 0, 1, 10**9) == [1.0, 1.0, 1.0]
    assert shares("linear", 0, 25, 50, 100, 1000, steps=100) == [1.0, 0.75, 0.5, 0.0, 0.0]
    assert shares("linear", 50, 90, 1000, steps=100, floor=0.25) == [0.5, 0.25, 0.25]
    assert shares("exponential", 0, 1, 3, k=0.5) == [1.0, 0.5, 0.125]
    wanted = [10 / (10 + math.exp(t / 10)) for t in (0, 23, 60)]
    assert shares("inverse_sigmoid", 0, 23, 60, k=10.0) == pytest.approx(wanted)


@pytest.mark.parametrize("name", teachers.names)
def test_a_share_is_a_probability_that_never_rises_however_long_a_run(name: str) -> None:
    teacher = teachers.build(Part(name))
    found = [teacher.share(t) for t in (0, 1, 10, 1000, 10**5, 10**7, 10**12)]
    assert all(0.0 <= share <= 1.0 for share in found)
    assert found == sorted(found, reverse=True)
