"""Arrays of frames: members of an .npz by name, rows of frames end to end by number."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from dragoman.core.errors import DataError
from dragoman.core.types import Example
from dragoman.modalities.features import FeatureModality
from dragoman.modalities.frame_transforms import FrameAugmentation

ROWS = [np.random.default_rng(i).normal(3, 2, (n, 4)).astype(np.float16) for i, n in enumerate((5, 1, 8))]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    np.savez(tmp_path / "named.npz", first=ROWS[0], second_source=ROWS[1], **{"7": ROWS[2]})
    offsets = np.cumsum([0, *map(len, ROWS)]).astype(np.int32)
    np.savez_compressed(tmp_path / "table.npz", feats=np.concatenate(ROWS), offsets=offsets)
    np.save(tmp_path / "alone.npy", ROWS[2])
    return tmp_path


def read(modality: FeatureModality, name: str, place: Path) -> np.ndarray:
    return modality.read(Example(name, file=str(place / "pairs.tsv"), line=3))


def test_members_are_found_by_name_and_rows_by_number(place: Path) -> None:
    modality = FeatureModality(4, normalize=False)
    expected = {"named.npz/first": 0, "named.npz/7": 2, "alone.npy": 2}
    expected |= {f"table.npz/{i}": i for i in range(3)}
    for name, row in expected.items():
        assert np.array_equal(read(modality, name, place), ROWS[row])
    inside = FeatureModality(4, normalize=False, search_paths=[str(place / "table.npz")])
    assert np.array_equal(inside.read(Example("1")), ROWS[1])


def test_frames_have_their_slopes_and_are_normalized(place: Path) -> None:
    modality = FeatureModality(4, deltas=2)
    x = read(modality, "table.npz/0", place)
    assert x.shape == (5, modality.width) == (5, 12)
    assert x.dtype == np.dtype(modality.dtype)
    assert x.astype(float).mean(0) == pytest.approx(0, abs=1e-2)
    assert x.astype(float).std(0) == pytest.approx(1, abs=1e-2)
    assert repr(modality) != repr(FeatureModality(4, deltas=1))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("table.npz/3", "has 3 rows"),
        ("named.npz/third", "no file"),
        ("wide.npy", "6 numbers in a frame, not 4"),
        ("flat.npy", "not one or more frames"),
        ("empty.npy", "not one or more frames"),
        ("words.npy", "not one or more frames"),
        ("infinite.npy", "not one or more frames"),
        ("double.npy", "beyond those of float32"),
        ("objects.npy", "not an array"),
        ("noise.npy", "not an array"),
        ("crooked.npz/0", "does not say where"),
        ("beyond.npz/0", "does not say where"),
    ],
)
def test_an_array_that_is_not_frames_is_one_error_with_file_and_line(place: Path, name: str, says: str) -> None:
    np.save(place / "wide.npy", np.zeros((3, 6)))
    np.save(place / "flat.npy", np.zeros(4))
    np.save(place / "empty.npy", np.zeros((0, 4)))
    np.save(place / "words.npy", np.array([["a", "b", "c", "d"]]))
    np.save(place / "infinite.npy", np.full((2, 4), np.inf))
    np.save(place / "double.npy", np.array([[1e300, 0, 0, 0], [-1e300, 0, 0, 0]]))
    np.save(place / "objects.npy", np.array([[{}, 1, 2, 3]], dtype=object))
    (place / "noise.npy").write_bytes(b"\x93NUMPY\x01\x00nothing of the kind")
    np.savez(place / "crooked.npz", feats=np.zeros((9, 4)), offsets=np.array([0, 5, 3]))
    np.savez(place / "beyond.npz", feats=np.zeros((9, 4)), offsets=np.array([0, 10]))
    with pytest.raises(DataError, match=says) as error:
        read(FeatureModality(4), name, place)
    assert "pairs.tsv:3" in str(error.value)


def test_a_table_that_is_written_anew_is_read_anew(place: Path) -> None:
    table = place / "later.npz"
    with pytest.raises(DataError, match="no file"):
        read(FeatureModality(4, normalize=False), "later.npz/0", place)
    for value in (1, 5):
        np.savez(table, feats=np.full((2, 4), value), offsets=np.array([0, 2]))
        os.utime(table, ns=(value, value))  # a clock may be too coarse to tell the two apart
        assert (read(FeatureModality(4, normalize=False), "later.npz/0", place) == value).all()


def test_numbers_that_do_not_fit_are_refused_unless_normalized(place: Path) -> None:
    np.save(place / "large.npy", np.array([[1e6, 0, 0, 0], [-1e6, 0, 0, 0]]))
    assert np.isfinite(read(FeatureModality(4), "large.npy", place)).all()
    with pytest.raises(DataError, match="too large"):
        read(FeatureModality(4, normalize=False), "large.npy", place)


def test_augmentation_changes_the_speed_and_masks_spans() -> None:
    x = np.ones((60, 4), np.float16)
    modality = FeatureModality(4, augmentation=FrameAugmentation(speeds=[0.9], time_masks=1, band_masks=0))
    found = modality.augment(x, np.random.default_rng(1))
    assert found.shape == (67, 4)
    assert set(np.unique(found)) <= {0.0, 1.0}
    assert np.array_equal((found == 0).any(1), (found == 0).all(1))
