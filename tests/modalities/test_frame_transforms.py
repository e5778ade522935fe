"""What is done with frames, against plain loops."""

from __future__ import annotations

import numpy as np
import pytest

from dragoman.modalities.frame_transforms import (
    FrameAugmentation,
    append_deltas,
    change_speed,
    normalize_utterance,
    sample_span,
)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng()


def test_normalized_columns_have_mean_0_and_deviation_1(rng: np.random.Generator) -> None:
    x = rng.normal(5, [1.0, 20.0, 0.1], (50, 3))
    found = normalize_utterance(x)
    assert found.mean(0) == pytest.approx(0, abs=1e-5)
    assert found.std(0) == pytest.approx(1, abs=1e-4)
    assert found == pytest.approx((x - x.mean(0)) / x.std(0), abs=1e-4)


def test_what_never_changes_is_zero() -> None:
    x = np.full((7, 2), -15.94)
    assert np.array_equal(normalize_utterance(x), np.zeros((7, 2)))
    assert np.array_equal(normalize_utterance(x[:1]), np.zeros((1, 2)))


def test_deltas_are_the_slopes_of_a_regression_over_five_frames(rng: np.random.Generator) -> None:
    x = rng.normal(size=(9, 2))
    found = append_deltas(x, 2)
    assert found.shape == (9, 6)
    assert found[:, :2] == pytest.approx(x, abs=1e-6)
    for order in (1, 2):
        before, slopes = found[:, 2 * order - 2 : 2 * order], found[:, 2 * order : 2 * order + 2]
        for t in range(9):
            near = [before[min(max(t + n, 0), 8)] for n in (-2, -1, 0, 1, 2)]
            assert slopes[t] == pytest.approx(np.polyfit([-2, -1, 0, 1, 2], np.array(near), 1)[0], abs=1e-5)


@pytest.mark.parametrize("speed", [0.9, 1.0, 1.1, 2.0])
def test_change_speed_interpolates_between_frames(speed: float) -> None:
    x = np.arange(40.0)[:, None] * [1.0, -3.0]  # linear, so that what stands between is known
    found = change_speed(x, speed)
    assert len(found) == round(40 / speed)
    for t, frame in enumerate(found):
        place = min(t * speed, 39)
        assert frame == pytest.approx([place, -3 * place], abs=1e-4)


def test_one_frame_stays_one_frame() -> None:
    assert np.array_equal(change_speed(np.ones((1, 4)), 1.7), np.ones((1, 4)))


def test_masks_hide_whole_bands_and_spans_of_at_most_their_widths(rng: np.random.Generator) -> None:
    augmentation, x = (
        FrameAugmentation(time_masks=1, time_width=6, band_masks=1, band_width=5),
        np.ones((100, 40), np.float16),
    )
    widths = set()
    for _ in range(300):
        found = augmentation.apply_masks(x, rng)
        bands, times = (found == 0).all(0), (found == 0).all(1)
        assert np.array_equal(found == 0, bands[None] | times[:, None])
        for hidden in (bands, times):
            places = np.flatnonzero(hidden)
            assert len(places) == 0 or places[-1] - places[0] + 1 == len(places)
        widths.add((int(bands.sum()), int(times.sum())))
    assert {band for band, _ in widths} == set(range(6))
    assert {time for _, time in widths} == set(range(7))
    assert np.array_equal(x, np.ones_like(x))


def test_a_mask_hides_at_most_a_fifth_of_the_time_and_a_third_of_the_numbers(rng: np.random.Generator) -> None:
    augmentation = FrameAugmentation(time_masks=1, time_width=100, band_masks=1, band_width=27)
    for _ in range(200):
        found = augmentation.apply_masks(np.ones((10, 6), np.float16), rng)
        assert (found == 0).all(1).sum() <= 2
        assert (found == 0).all(0).sum() <= 2


def test_every_span_can_be_sampled(rng: np.random.Generator) -> None:
    found = {sample_span(3, 2, rng) for _ in range(500)}
    assert {(b - a, a) for a, b in found if b > a} == {(1, 0), (1, 1), (1, 2), (2, 0), (2, 1)}
    assert sample_span(0, 0, rng) == (0, 0)


def test_speeds_are_sampled_equally_often(rng: np.random.Generator) -> None:
    drawn = [FrameAugmentation().sample_speed(rng) for _ in range(3000)]
    for speed in (0.9, 1.0, 1.1):
        assert 800 < drawn.count(speed) < 1200
    assert FrameAugmentation(speeds=()).sample_speed(rng) == 1.0
