"""Clips: the same frames from a folder, an archive or an array, in the order of their numbers."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dragoman.core.errors import DataError
from dragoman.core.interfaces import Example
from dragoman.media.clips import ClipMedium, by_number, spread

SIZE = 4


def frames(count: int = 11) -> np.ndarray:
    """(n, H, W, 3): frame i is all of the brightness 10 i, but for a corner of its own."""
    every = np.stack([np.full((SIZE, SIZE, 3), 10 * i, np.uint8) for i in range(count)])
    every[:, 0, 0, 0] = np.arange(count) + 200
    return every


def png(frame: np.ndarray) -> bytes:
    data = io.BytesIO()
    Image.fromarray(frame).save(data, "png")
    return data.getvalue()


def write(folder: Path, form: str) -> str:
    """Eleven frames as a file of some form; the name of the clip."""
    files = {f"frame-{i}.png": png(frame) for i, frame in enumerate(frames())}
    files["notes.txt"] = b"no frame"
    if form == "folder":
        (folder / "clip").mkdir()
        for name, data in files.items():
            (folder / "clip" / name).write_bytes(data)
    if form == "clip.zip":
        with zipfile.ZipFile(folder / form, "w") as archive:
            for name, data in files.items():
                archive.writestr(name, data)
    if form == "clips.zip/7":
        with zipfile.ZipFile(folder / "clips.zip", "w") as archive:
            for name, data in files.items():
                archive.writestr(f"7/{name}", data)
                archive.writestr(f"70/{name}", png(frames()[0]))
    if form == "clip.npz":
        np.savez(folder / form, **{str(i): frame for i, frame in enumerate(frames())})
    if form == "clips.npz/7":
        np.savez(folder / "clips.npz", **{"7": frames()})
    if form == "clip.npy":
        np.save(folder / form, frames())
    return "clip" if form == "folder" else form


@pytest.mark.parametrize("form", ["folder", "clip.zip", "clips.zip/7", "clip.npz", "clips.npz/7", "clip.npy"])
@pytest.mark.parametrize("most", [16, 3])
def test_a_clip_is_its_frames_in_order_whatever_they_lie_in(tmp_path: Path, form: str, most: int) -> None:
    name = write(tmp_path, form)
    expected = frames()[[0, 5, 10]] if most == 3 else frames()
    beside = ClipMedium(SIZE, most).read(Example(name, file=str(tmp_path / "train.tsv"), line=1))
    elsewhere = ClipMedium(SIZE, most, files=(str(tmp_path),)).read(Example(name))
    assert beside.dtype == np.uint8
    assert beside.tolist() == expected.reshape(len(expected), -1).tolist()
    assert elsewhere.tolist() == beside.tolist()


def test_a_folder_inside_an_archive_that_is_a_place_is_found(tmp_path: Path) -> None:
    write(tmp_path, "clips.zip/7")
    found = ClipMedium(SIZE, files=(str(tmp_path / "clips.zip"),)).read(Example("7"))
    assert found.shape == (11, 3 * SIZE**2)


def test_names_are_ordered_by_their_numbers() -> None:
    names = ["b9.png", "b10.png", "a11.png", "9.png", "10.png"]
    assert sorted(names, key=by_number) == ["9.png", "10.png", "a11.png", "b9.png", "b10.png"]


@pytest.mark.parametrize(
    ("count", "most", "places"), [(3, 5, [0, 1, 2]), (5, 3, [0, 2, 4]), (7, 2, [0, 6]), (9, 1, [0]), (1, 1, [0])]
)
def test_of_a_long_clip_frames_are_evenly_spaced(count: int, most: int, places: list[int]) -> None:
    assert spread(count, most) == places


def test_gray_frames_and_a_single_picture_are_clips_too(tmp_path: Path) -> None:
    np.save(tmp_path / "gray.npy", np.full((2, SIZE, SIZE), 7, np.uint8))
    np.save(tmp_path / "one.npy", frames()[3])
    medium = ClipMedium(SIZE, files=(str(tmp_path),))
    assert medium.read(Example("gray.npy")).tolist() == [[7] * 48] * 2
    assert medium.read(Example("one.npy")).tolist() == [frames()[3].ravel().tolist()]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("nothing", "no file 'nothing'"),
        ("empty", "no frames"),
        ("text.txt", "no folder, archive or array"),
        ("floats.npy", "float64"),
        ("flat.npy", "shape"),
        ("none.npy", "shape"),
        ("objects.npy", "array of frames"),
        ("broken", "not an image"),
    ],
)
def test_what_is_no_clip_is_an_error_that_names_it_and_its_line(tmp_path: Path, name: str, says: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "0.png").write_bytes(png(frames()[0])[:40])
    (tmp_path / "text.txt").write_text("no clip")
    np.save(tmp_path / "floats.npy", np.zeros((2, SIZE, SIZE, 3)))
    np.save(tmp_path / "flat.npy", np.zeros((2, 5), np.uint8))
    np.save(tmp_path / "none.npy", np.zeros((0, SIZE, SIZE, 3), np.uint8))
    np.save(tmp_path / "objects.npy", np.array([{}], object), allow_pickle=True)
    with pytest.raises(DataError, match=says) as error:
        ClipMedium(SIZE).read(Example(name, file=str(tmp_path / "train.tsv"), line=3))
    assert error.value.line == 3
    assert name in str(error.value)


def test_every_frame_of_a_clip_is_looked_at_in_the_same_way() -> None:
    medium, rng = ClipMedium(16, flip=True), np.random.default_rng(5)
    frame = rng.integers(0, 256, 3 * 16**2).astype(np.uint8)
    looks = [medium.augment(np.stack([frame] * 3), rng) for _ in range(4)]
    for look in looks:
        assert (look == look[0]).all()
    assert len({look.tobytes() for look in looks}) == 4
    again = medium.augment(np.stack([frame] * 3), np.random.default_rng(9))
    assert again.tolist() == medium.augment(np.stack([frame] * 3), np.random.default_rng(9)).tolist()
