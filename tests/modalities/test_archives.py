"""Bytes behind names: folders and archives against what was put into them, damaged ones against a sentence."""

from __future__ import annotations

import io
import multiprocessing
import os
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.core.errors import DataError
from dragoman.core.types import Example
from dragoman.modalities import archives as files

MEMBERS = {"a.bin": b"first", "deep/er/b.bin": bytes(range(256)) * 40, "empty": b"", "ä ü.bin": b"accents"}


def a_zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in MEMBERS.items():
            archive.writestr(name, data)


def a_tar(path: Path) -> None:
    packed = {".gz": "w:gz", ".tgz": "w:gz", ".bz2": "w:bz2", ".tbz2": "w:bz2", ".xz": "w:xz", ".txz": "w:xz"}
    with tarfile.open(path, packed.get(path.suffix.lower(), "w")) as archive:  # type: ignore[call-overload]
        for name, data in MEMBERS.items():
            info = tarfile.TarInfo(f"./{name}")  # as `tar -c .` writes names
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


def a_folder(path: Path) -> None:
    for name, data in MEMBERS.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)


PLACES: dict[str, Callable[[Path], None]] = {
    "photos": a_folder,
    "photos.zip": a_zip,
    "photos.tar": a_tar,
    "photos.tar.gz": a_tar,
    "photos.tgz": a_tar,
    "photos.tar.bz2": a_tar,
    "photos.tbz2": a_tar,
    "photos.tar.xz": a_tar,
    "photos.txz": a_tar,
    "PHOTOS.ZIP": a_zip,
    "Photos.Tar.Gz": a_tar,
}


@pytest.mark.parametrize("place", PLACES)
def test_a_name_is_found_in_every_kind_of_search_path_and_by_the_archive_in_its_name(
    tmp_path: Path, place: str
) -> None:
    PLACES[place](tmp_path / place)
    pairs = str(tmp_path / "pairs.tsv")
    for name, data in [*MEMBERS.items(), *reversed(MEMBERS.items())]:  # a compressed tar is read back and forth
        assert files.read_content(Example(name), [str(tmp_path / place)]) == data
        assert files.read_content(Example(f"{place}/{name}", file=pairs)) == data  # beside the file that names it
        assert files.read_content(Example(f"{tmp_path}/{place}/{name}")) == data
        assert files.read_content(Example(f"  {name} "), [str(tmp_path / place)]) == data


def test_arrays_of_an_npz_are_members_with_or_without_their_ending(tmp_path: Path) -> None:
    x = np.arange(6.0).reshape(2, 3)
    np.savez(tmp_path / "clips.npz", one=x)
    for name in ("one", "one.npy"):
        assert (np.load(io.BytesIO(files.read_content(Example(name), [str(tmp_path / "clips.npz")]))) == x).all()


def test_search_paths_are_tried_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for place in ("beside", "first", "second"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "x").write_bytes(place.encode())
    places, pairs = [str(tmp_path / "first"), str(tmp_path / "second")], str(tmp_path / "beside/pairs.tsv")
    assert files.read_content(Example("x", file=pairs), places) == b"beside"
    assert files.read_content(Example("x", file="-"), places) == b"first"
    (tmp_path / "here/x").write_bytes(b"here")
    assert files.read_content(Example("x"), places) == b"here"


@pytest.mark.parametrize("place", PLACES)
def test_a_missing_file_is_an_error_that_lists_the_searched_folders(tmp_path: Path, place: str) -> None:
    PLACES[place](tmp_path / place)
    with pytest.raises(DataError, match=r"pairs\.tsv:7: there is no file 'no\.jpg' \(searched in .*data\.files"):
        files.read_content(Example("no.jpg", file=str(tmp_path / "pairs.tsv"), line=7), [str(tmp_path / place)])
    for odd in ("", ".", "..", "/", "deep", f"{place}/no.jpg", f"{place}/deep", "a" * 5000, "nul\0"):
        with pytest.raises(DataError):
            files.read_content(Example(odd, file=str(tmp_path / "pairs.tsv")), [str(tmp_path / place)])


def test_a_search_path_is_listed_once_even_if_named_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "more").mkdir()
    with pytest.raises(DataError, match=r"\(searched in '\.', 'more'\)"):
        files.read_content(Example("no.jpg", file="pairs.tsv"), ["more", ".", "more"])


def test_search_paths_must_be_existing_folders_or_archives(tmp_path: Path) -> None:
    for place, make in PLACES.items():
        make(tmp_path / place)
    files.check_search_paths([str(tmp_path / place) for place in PLACES])
    (tmp_path / "notes.txt").write_text("no place")
    with pytest.raises(DataError, match=r"notes\.txt: neither a folder nor an archive .*\.zip"):
        files.check_search_paths([str(tmp_path), str(tmp_path / "notes.txt")])
    with pytest.raises(DataError, match=r"nowhere\.zip: there is no such folder or archive"):
        files.check_search_paths([str(tmp_path / "nowhere.zip")])


@pytest.mark.parametrize("name", ["../out.bin", "/out.bin", "a/../../out.bin"])
def test_a_member_that_would_leave_its_archive_is_only_a_name(tmp_path: Path, name: str) -> None:
    """Nothing is unpacked, so such a name cannot put anything anywhere."""
    (tmp_path / "in").mkdir()
    with zipfile.ZipFile(tmp_path / "in/photos.zip", "w") as archive:
        archive.writestr(name, b"inside")
    assert files.read_content(Example(name), [str(tmp_path / "in/photos.zip")]) == b"inside"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["in", "photos.zip"]


def test_a_link_in_a_tar_leads_nowhere(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "photos.tar", "w") as archive:
        info = tarfile.TarInfo("passwords")
        info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(info)
    with pytest.raises(DataError, match="there is no file"):
        files.read_content(Example("passwords"), [str(tmp_path / "photos.tar")])


# -- what is damaged or means harm -------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [b"", b"not an archive at all"], ids=["nothing", "a text"])
@pytest.mark.parametrize("place", [place for place in PLACES if place != "photos"])
def test_what_is_no_archive_is_named_in_one_line_with_a_remedy(tmp_path: Path, place: str, data: bytes) -> None:
    (tmp_path / place).write_bytes(data)
    with pytest.raises(DataError, match=rf"{place}: the archive cannot be opened .*; make or copy it anew$") as caught:
        files.read_content(Example("a.bin"), [str(tmp_path / place)])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("place", ["photos.zip", "photos.tar", "photos.tar.gz"])
@given(data=st.data())
def test_a_damaged_archive_gives_the_bytes_or_one_error(
    tmp_path_factory: pytest.TempPathFactory, place: str, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("damaged") / place
    PLACES[place](path)
    whole = bytearray(path.read_bytes())
    for at, value in data.draw(st.lists(st.tuples(st.integers(0, len(whole) - 1), st.integers(0, 255)), max_size=4)):
        whole[at] = value
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole)))])
    for name in MEMBERS:
        try:
            assert isinstance(files.read_content(Example(name), [str(path)]), bytes)
        except DataError as error:
            assert name in str(error) or place in str(error)  # noqa: PT017 - most often there is none


@pytest.mark.parametrize("damage", [bytes(8), b"\xff" * 8], ids=["zeros", "ones"])
def test_damaged_bytes_of_a_member_are_noticed(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "photos.zip"
    a_zip(path)
    packed = zlib.compress(MEMBERS["deep/er/b.bin"], 6)[2:-4]  # as it lies in the zip, without zlib's frame
    data = path.read_bytes()
    at = data.index(packed[:12]) + 4
    path.write_bytes(data[:at] + damage + data[at + 8 :])
    with pytest.raises(DataError, match=r"'deep/er/b\.bin' cannot be read"):
        files.read_content(Example("deep/er/b.bin"), [str(path)])
    assert files.read_content(Example("a.bin"), [str(path)]) == b"first"


def test_a_member_that_unpacks_to_too_much_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_SOURCE_BYTES", 1 << 20)
    zeros = bytes((1 << 20) + 1)  # in a zip a thousand times smaller
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x", zeros)
    with tarfile.open(tmp_path / "bomb.tar.gz", "w:gz") as tar:
        info = tarfile.TarInfo("x")
        info.size = len(zeros)
        tar.addfile(info, io.BytesIO(zeros))
    (tmp_path / "x").write_bytes(zeros)
    for place in ("bomb.zip", "bomb.tar.gz", ""):
        with pytest.raises(DataError, match="1,048,577 bytes; the limit is"):
            files.read_content(Example("x"), [str(tmp_path / place)])


def test_a_zip_that_lies_about_a_size_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "lies.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x", bytes(1 << 20))
    true, less = (1 << 20).to_bytes(4, "little"), (100).to_bytes(4, "little")
    path.write_bytes(path.read_bytes().replace(true, less))
    with pytest.raises(DataError, match="'x' cannot be read"):
        files.read_content(Example("x"), [str(path)])


def test_an_archive_that_was_replaced_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "photos.zip"
    for number, data in enumerate((b"old", b"newer")):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("x", data)
        os.utime(path, ns=(number, number))  # clocks of file systems are coarse
        assert files.read_content(Example("x"), [str(path)]) == data


# -- several processes -------------------------------------------------------------------------------------------------


def read_often(place: str, name: str, data: bytes, times: int) -> bool:
    return all(files.read_content(Example(name), [place]) == data for _ in range(times))


@pytest.mark.parametrize("place", ["photos.zip", "photos.tar"])
def test_a_fork_reads_an_archive_that_was_open_before(tmp_path: Path, place: str) -> None:
    PLACES[place](tmp_path / place)
    where = str(tmp_path / place)
    assert files.read_content(Example("a.bin"), [where]) == b"first"  # opened before the fork
    context = multiprocessing.get_context("fork")
    with context.Pool(2) as pool:
        jobs = [pool.apply_async(read_often, (where, name, data, 50)) for name, data in list(MEMBERS.items()) * 2]
        assert read_often(where, "deep/er/b.bin", MEMBERS["deep/er/b.bin"], 50)
        assert all(job.get(30) for job in jobs)


def test_the_files_behind_a_name_are_what_is_read_for_it(tmp_path: Path) -> None:
    a_folder(tmp_path / "photos")
    a_zip(tmp_path / "photos.zip")
    a_zip(tmp_path / "more.zip")
    example = Example("", file=str(tmp_path / "pairs.tsv"))

    def behind(name: str, *places: str) -> list[str]:
        found = files.source_files(replace(example, source=name), [str(tmp_path / place) for place in places])
        return [str(Path(path).relative_to(tmp_path)) for path in found]

    assert behind("photos/a.bin") == ["photos/a.bin"]
    assert behind(" deep/er/b.bin ", "more.zip", "photos") == ["photos/deep/er/b.bin"]
    assert behind("photos") == ["photos/a.bin", "photos/empty", "photos/ä ü.bin"]  # a clip's frames
    assert (
        behind("photos.zip/deep/er/b.bin") == behind("photos.zip/not/there") == behind("photos.zip") == ["photos.zip"]
    )
    for name in ("missing.bin", "", " ", "x" * 5000, "a\0b"):
        assert behind(name, "photos", "more.zip") == []
