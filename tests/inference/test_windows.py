"""Inputs are cut into windows once, in order: whole ones, but few inputs are shared evenly by workers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.inference.windows import SMALLEST, WINDOW, Window, cut_windows


@given(lines=st.integers(0, 30_000), count=st.integers(1, 5))
def test_windows_hold_every_source_once_in_order_and_count_where_they_begin(lines: int, count: int) -> None:
    windows: list[Window[int]] = list(cut_windows(iter(range(lines)), count))
    assert [source for window in windows for source in window.inputs] == list(range(lines))
    assert all(window.inputs[0] == window.first_index for window in windows)
    assert all(1 <= len(window.inputs) <= WINDOW for window in windows)


@given(lines=st.integers(2 * SMALLEST, 5 * WINDOW), count=st.integers(2, 5))
def test_a_file_too_small_for_whole_windows_is_shared_out_evenly(lines: int, count: int) -> None:
    lines = min(lines, count * WINDOW - 1)
    sizes = [len(window.inputs) for window in cut_windows(iter(range(lines)), count)]
    assert len(sizes) >= min(count, lines // SMALLEST)
    loads = [0] * count
    for size in sizes:  # each to the worker that is free first
        loads[loads.index(min(loads))] += size
    if lines >= count * SMALLEST:
        assert max(loads) - lines / count <= max(sizes[-2:])


@given(lines=st.integers(0, 40_000), count=st.integers(2, 5))
def test_from_a_whole_window_for_each_worker_on_windows_do_not_depend_on_their_number(lines: int, count: int) -> None:
    lines = max(lines, count * WINDOW)
    several, one = (
        [(window.first_index, len(window.inputs)) for window in cut_windows(range(lines), workers)]
        for workers in (count, 1)
    )
    assert several == one


def test_one_process_has_windows_as_large_as_they_may_be() -> None:
    whole = WINDOW
    assert [len(window.inputs) for window in cut_windows(range(2 * whole + 5), 1)] == [whole, whole, 5]


def test_only_the_last_window_says_that_it_is_the_last() -> None:
    for count in (1, 2, 3):
        assert [window.is_last for window in cut_windows(range(10), count, size=4)][-1]
        assert not any(window.is_last for window in list(cut_windows(range(10), count, size=4))[:-1])


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("good", [0, 3, 4, 9])
def test_an_error_of_the_inputs_comes_after_the_windows_before_it(good: int, workers: int) -> None:
    def inputs() -> Iterator[int]:
        yield from range(good)
        raise ValueError("unreadable")

    windows: list[Window[int]] = []
    with pytest.raises(ValueError, match="unreadable"):
        windows.extend(cut_windows(inputs(), workers, size=4, first_index=10))
    assert [source for window in windows for source in window.inputs] == list(range(good))
    assert all(window.first_index == 10 + window.inputs[0] for window in windows)
