"""Calibration against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.reports.calibration import CalibrationBin, calibrate, calibration_blocker, output_probability


def test_bins_and_error_worked_out_by_hand() -> None:
    result = calibrate([0.05, 0.62, 0.68, 0.95, 1.0], [False, True, False, True, True])
    assert [(each.low, each.high, each.count) for each in result.bins] == [(0.0, 0.1, 1), (0.6, 0.7, 2), (0.9, 1.0, 2)]
    assert [each.probability for each in result.bins] == pytest.approx([0.05, 0.65, 0.975])
    assert [each.right for each in result.bins] == [0.0, 0.5, 1.0]
    # (1 · 0.05 + 2 · 0.15 + 2 · 0.025) / 5
    assert result.error == pytest.approx(0.08)
    assert result.overconfidence == pytest.approx(0.66 - 0.6)


def test_a_model_that_is_right_as_often_as_it_says_has_no_error() -> None:
    result = calibrate([0.75] * 4, [True, True, True, False])
    assert result.bins == (CalibrationBin(0.7, 0.8, 4, 0.75, 0.75),)
    assert result.error == 0


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=30))
def test_every_output_is_in_one_bin_that_holds_its_probability(rows: list[tuple[float, bool]]) -> None:
    result = calibrate([p for p, _ in rows], [right for _, right in rows])
    assert sum(each.count for each in result.bins) == len(rows)
    for each in result.bins:
        assert each.low - 1e-9 <= each.probability <= each.high + 1e-9
    assert sum(each.count * each.right for each in result.bins) == pytest.approx(sum(right for _, right in rows))
    assert 0 <= result.error <= 1 + 1e-9


def test_a_probability_is_between_0_and_1_whatever_the_score() -> None:
    assert output_probability(math.log(0.25)) == pytest.approx(0.25)
    assert output_probability(0.1) == 1.0  # a rounding error above 0
    assert [output_probability(x) for x in (-math.inf, math.nan)] == [0.0, 0.0]


def test_where_nothing_can_be_calibrated_the_reason_is_said() -> None:
    assert "only 3" in calibration_blocker([True, False, True])
    assert "wrong" in calibration_blocker([True] * 100)
    assert "equal" in calibration_blocker([False] * 100)
    assert calibration_blocker([True, False] * 20) == ""
