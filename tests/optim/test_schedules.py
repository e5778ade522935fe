"""Each schedule against its formula, and the state of `plateau`."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from dragoman.core.registry import Part
from dragoman.optim.schedules import schedules

N = 100


def factors(name: str, steps: list[int], **options: Any) -> list[float]:
    schedule = schedules.build(Part(name, options), N)
    return [schedule.factor(t) for t in steps]


def test_constant_warms_up_and_stays() -> None:
    assert factors("constant", [1, 5, 10, 11, 100, 1000], warmup=10) == pytest.approx([0.1, 0.5, 1, 1, 1, 1])
    assert factors("constant", [1, 50]) == [1, 1]


def test_inverse_sqrt_is_the_transformer_s_with_its_peak_at_one() -> None:
    d, w = 512, 40
    steps = [1, 7, 39, 40, 41, 160, 4000]
    vaswani = [d**-0.5 * min(t**-0.5, t * w**-1.5) for t in steps]
    peak = d**-0.5 * w**-0.5
    assert factors("inverse_sqrt", steps, warmup=w) == pytest.approx([rate / peak for rate in vaswani])
    assert factors("inverse_sqrt", [160], warmup=40) == pytest.approx([0.5])
    assert factors("inverse_sqrt", [1, 40, 160], warmup=40, flat=True) == pytest.approx([1.0, 1.0, 0.5])


def test_linear_goes_down_in_a_straight_line() -> None:
    values = factors("linear", [1, 10, 20, 60, 100, 150], warmup=20, floor=0.2)
    assert values == pytest.approx([0.05, 0.5, 1.0, 0.6, 0.2, 0.2])
    assert factors("linear", [25, 75, 100]) == pytest.approx([0.75, 0.25, 0.0])


def test_cosine_goes_down_on_half_a_wave() -> None:
    values = factors("cosine", [10, 20, 40, 60, 100, 150], warmup=20, floor=0.2)
    quarter = 0.2 + 0.8 * (1 + math.sqrt(0.5)) / 2  # cos 45°
    assert values == pytest.approx([0.5, 1.0, quarter, 0.6, 0.2, 0.2])


def test_halving_halves_after_its_start_and_again_every_so_many_steps() -> None:
    values = factors("halving", [1, 10, 11, 14, 15, 18, 19], start=10, every=4)
    assert values == pytest.approx([1, 1, 1 / 2, 1 / 2, 1 / 4, 1 / 4, 1 / 8])
    assert factors("halving", [1, 2, 3], start=0, every=1, decay=0.1) == pytest.approx([0.1, 0.01, 0.001])


def test_halving_is_by_default_spread_as_in_sutskever_s_paper() -> None:
    epoch = 20  # 7.5 epochs in all; halved after the fifth and every half epoch
    schedule = schedules.build(Part("halving"), 150)
    values = [schedule.factor(t) for t in range(1, 151)]
    assert values == [1.0] * (5 * epoch) + [0.5**i for i in range(1, 6) for _ in range(epoch // 2)]


@pytest.mark.parametrize("name", schedules.names)
def test_a_factor_lies_between_0_and_1(name: str) -> None:
    schedule = schedules.build(schedules.parse(name), N)
    values = [schedule.factor(t) for t in range(1, N + 1)]
    assert all(0 <= factor <= 1 for factor in values)
    assert max(values) > 0


@pytest.mark.parametrize("name", schedules.names)
def test_a_warm_up_is_a_straight_line_to_the_peak(name: str) -> None:
    assert factors(name, [1, 2, 5, 8], warmup=8) == pytest.approx([1 / 8, 2 / 8, 5 / 8, 1])


@pytest.mark.parametrize("name", schedules.names)
def test_a_warm_up_as_long_as_the_run_is_fine(name: str) -> None:
    assert factors(name, [N // 2, N], warmup=N)[0] == pytest.approx(0.5)


@pytest.mark.parametrize("name", schedules.names)
def test_a_schedule_continues_from_its_saved_state(name: str) -> None:
    improvements = [True, False, False, False, True, False, False, False, False]
    one, other = (schedules.build(schedules.parse(name), N) for _ in range(2))
    for improved in improvements[:4]:
        one.observe(improved)
    other.restore(json.loads(json.dumps(one.state())))
    for improved in improvements[4:]:
        one.observe(improved)
        other.observe(improved)
        assert one.factor(50) == other.factor(50)


def test_plateau_decays_each_time_patience_runs_out() -> None:
    schedule = schedules.build(Part("plateau", {"decay": 0.5, "patience": 2, "warmup": 10}), N)
    assert schedule.factor(5) == pytest.approx(0.5)
    levels = []
    for improved in [True, False, True, False, False, False, False, True, False]:
        schedule.observe(improved)
        levels.append(schedule.factor(50))
    assert levels == [1, 1, 1, 1, 0.5, 0.5, 0.25, 0.25, 0.25]
    assert schedule.factor(5) == pytest.approx(0.125)
    assert schedule.state() == {"level": 0.25, "bad_validations": 1}


def test_only_plateau_reacts_to_validations() -> None:
    for name in schedules.names:
        schedule = schedules.build(schedules.parse(name), N)
        before = schedule.factor(60)
        for _ in range(10):
            schedule.observe(False)
        assert (schedule.factor(60) < before) == (name == "plateau")
