"""Clips: the same frames from a folder, an archive or an array, in the order of their numbers."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dragoman.core.errors import DataError
from dragoman.core.types import Example
from dragoman.modalities import video as clips
from dragoman.modalities.video import VideoModality, evenly_spaced, natural_sort_key

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
    beside = VideoModality(SIZE, most).read(Example(name, file=str(tmp_path / "train.tsv"), line=1))
    elsewhere = VideoModality(SIZE, most, search_paths=(str(tmp_path),)).read(Example(name))
    assert beside.dtype == np.uint8
    assert beside.tolist() == expected.reshape(len(expected), -1).tolist()
    assert elsewhere.tolist() == beside.tolist()


def test_a_folder_inside_an_archive_of_the_search_paths_is_found(tmp_path: Path) -> None:
    write(tmp_path, "clips.zip/7")
    found = VideoModality(SIZE, search_paths=(str(tmp_path / "clips.zip"),)).read(Example("7"))
    assert found.shape == (11, 3 * SIZE**2)


def test_names_are_ordered_by_their_numbers() -> None:
    names = ["b9.png", "b10.png", "a11.png", "9.png", "10.png"]
    assert sorted(names, key=natural_sort_key) == ["9.png", "10.png", "a11.png", "b9.png", "b10.png"]


@pytest.mark.parametrize(
    ("count", "most", "places"), [(3, 5, [0, 1, 2]), (5, 3, [0, 2, 4]), (7, 2, [0, 6]), (9, 1, [0]), (1, 1, [0])]
)
def test_of_a_long_clip_frames_are_evenly_spaced(count: int, most: int, places: list[int]) -> None:
    assert evenly_spaced(count, most) == places


def test_gray_frames_and_a_single_picture_are_clips_too(tmp_path: Path) -> None:
    np.save(tmp_path / "gray.npy", np.full((2, SIZE, SIZE), 7, np.uint8))
    np.save(tmp_path / "one.npy", frames()[3])
    modality = VideoModality(SIZE, search_paths=(str(tmp_path),))
    assert modality.read(Example("gray.npy")).tolist() == [[7] * 48] * 2
    assert modality.read(Example("one.npy")).tolist() == [frames()[3].ravel().tolist()]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("nothing", "no file 'nothing'"),
        ("empty", "no frames"),
        ("text.txt", "no folder, archive, array or image of frames"),
        ("floats.npy", "float64"),
        ("flat.npy", "shape"),
        ("none.npy", "shape"),
        ("objects.npy", "not an array that can be read"),
        ("broken", "not an image"),
        ("n" * 300, "cannot be looked for"),
        ("pictures.zip", "not an array that can be read"),  # whose bounds on pixels are others
    ],
    ids=lambda text: text[:20],
)
def test_what_is_no_clip_is_an_error_that_names_it_and_its_line(tmp_path: Path, name: str, says: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "0.png").write_bytes(png(frames()[0])[:40])
    (tmp_path / "text.txt").write_text("no clip")
    with zipfile.ZipFile(tmp_path / "pictures.zip", "w") as archive:
        archive.writestr("0.png", png(frames()[0]))
        archive.writestr("1.NPY", png(frames()[1]))
    np.save(tmp_path / "floats.npy", np.zeros((2, SIZE, SIZE, 3)))
    np.save(tmp_path / "flat.npy", np.zeros((2, 5), np.uint8))
    np.save(tmp_path / "none.npy", np.zeros((0, SIZE, SIZE, 3), np.uint8))
    np.save(tmp_path / "objects.npy", np.array([{}], object), allow_pickle=True)
    with pytest.raises(DataError, match=says) as error:
        VideoModality(SIZE).read(Example(name, file=str(tmp_path / "train.tsv"), line=3))
    assert error.value.line == 3
    assert name in str(error.value)


# -- bytes in place of a name ------------------------------------------------------------------------------------------


def moving(form: str, every: np.ndarray) -> bytes:
    """A picture that moves: gray frames, which no palette changes."""
    first, *others = [Image.fromarray(frame[..., 1]) for frame in every]
    data = io.BytesIO()
    lossless = {"lossless": True} if form == "webp" else {}
    first.save(data, form, save_all=True, append_images=others, duration=40, loop=0, **lossless)
    return data.getvalue()


def zipped(files: dict[str, bytes]) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return data.getvalue()


@pytest.mark.parametrize("form", ["clip.zip", "clip.npz", "clip.npy"])
@pytest.mark.parametrize("most", [16, 3])
def test_bytes_are_the_clip_of_the_file_that_they_are_of(tmp_path: Path, form: str, most: int) -> None:
    write(tmp_path, form)
    expected = frames()[[0, 5, 10]] if most == 3 else frames()
    found = VideoModality(SIZE, most).read(Example("sent", content=(tmp_path / form).read_bytes()))
    assert found.tolist() == expected.reshape(len(expected), -1).tolist()


@pytest.mark.parametrize("form", ["gif", "png", "webp"])
@pytest.mark.parametrize("most", [16, 3])
def test_a_picture_that_moves_is_a_clip_from_a_file_and_from_bytes(tmp_path: Path, form: str, most: int) -> None:
    every = np.repeat(frames()[..., 1:2], 3, -1)
    (tmp_path / f"clip.{form}").write_bytes(moving(form, every))
    expected = (every[[0, 5, 10]] if most == 3 else every).astype(int)
    modality = VideoModality(SIZE, most, search_paths=(str(tmp_path),))
    named = modality.read(Example(f"clip.{form}"))
    given = modality.read(Example("", content=(tmp_path / f"clip.{form}").read_bytes()))
    assert given.tolist() == named.tolist()
    assert np.abs(named.reshape(expected.shape) - expected).max() <= 1  # WebP keeps colors in another form


def test_bytes_of_one_picture_are_a_clip_of_one_frame() -> None:
    found = VideoModality(SIZE).read(Example("photo", content=png(frames()[3])))
    assert found.tolist() == [frames()[3].ravel().tolist()]


def test_an_archive_of_one_folder_is_a_clip_as_its_files_are(tmp_path: Path) -> None:
    files = {f"clip/{i}.png": png(frame) for i, frame in enumerate(frames())}
    files |= {"__MACOSX/clip/._0.png": b"no picture", "clip/notes.txt": b"none"}
    (tmp_path / "clip.zip").write_bytes(zipped(files))
    modality = VideoModality(SIZE, search_paths=(str(tmp_path),))
    expected = frames().reshape(11, -1).tolist()
    assert modality.read(Example("clip.zip")).tolist() == expected
    assert modality.read(Example("sent", content=zipped(files))).tolist() == expected
    files["another/0.png"] = png(frames()[0])
    with pytest.raises(DataError, match="has no frames in it"):  # which of the two is meant?
        modality.read(Example("sent", content=zipped(files)))


def test_a_name_among_bytes_is_no_name_of_a_file_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "folder")
    with pytest.raises(DataError, match="no frames"):
        VideoModality(SIZE).read(Example("clip", content=zipped({"a.txt": b""})))
    found = VideoModality(SIZE).read(Example("clip", content=png(frames()[3])))
    assert len(found) == 1


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "no folder, archive, array or image"),
        (
            b"\0\0\0\x20ftypisom, a video",
            "no folder, archive, array or image of frames; put those of a video .*ffmpeg",
        ),
        (zipped({"notes.txt": b"no frame"}), "no frames in it"),
        (zipped({"0.png": png(frames()[0])})[:60], "not an archive that can be read"),
        (zipped({"0.png": b"no picture"}), "not an image"),
        (moving("gif", frames())[:40], "no folder, archive, array or image"),
        (b"\x93NUMPY and nothing more", "not an array"),
    ],
    ids=["nothing", "video", "no frames", "cut zip", "bad frame", "cut gif", "cut array"],
)
def test_bytes_that_are_no_clip_are_one_error(data: bytes, says: str) -> None:
    with pytest.raises(DataError, match=says) as caught:
        VideoModality(SIZE).read(Example("sent", content=data))
    assert "object at" not in str(caught.value)  # of Python's, which no user knows


def test_bytes_that_would_become_too_many_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = io.BytesIO()
    np.save(frame, np.zeros((512, 512, 3), np.uint8))
    bomb, modality = zipped({f"{i}.npy": frame.getvalue() for i in range(8)}), VideoModality(SIZE)
    assert len(bomb) < 10_000
    assert modality.read(Example("sent", content=bomb)).shape == (8, 3 * SIZE**2)
    monkeypatch.setattr(clips, "MAX_UNZIPPED_BYTES", 7 * len(frame.getvalue()))
    with pytest.raises(DataError, match="more than 5,505,920 bytes"):
        modality.read(Example("sent", content=bomb))
    assert len(VideoModality(SIZE, 7).read(Example("sent", content=bomb))) == 7  # what is not looked at is not inflated
    monkeypatch.setattr(clips, "MAX_MEMBERS", 7)
    with pytest.raises(DataError, match="8 members"):
        modality.read(Example("sent", content=bomb))
    monkeypatch.setattr(clips, "MAX_ANIMATION_PIXELS", 11 * SIZE**2 - 1)
    with pytest.raises(DataError, match="11 × 4 × 4 pixels"):
        modality.read(Example("sent", content=moving("gif", frames())))


def test_every_frame_of_a_clip_is_augmented_in_the_same_way() -> None:
    modality, rng = VideoModality(16, flip=True), np.random.default_rng(5)
    frame = rng.integers(0, 256, 3 * 16**2).astype(np.uint8)
    augmented = [modality.augment(np.stack([frame] * 3), rng) for _ in range(4)]
    for one in augmented:
        assert (one == one[0]).all()
    assert len({one.tobytes() for one in augmented}) == 4
    again = modality.augment(np.stack([frame] * 3), np.random.default_rng(9))
    assert again.tolist() == modality.augment(np.stack([frame] * 3), np.random.default_rng(9)).tolist()
