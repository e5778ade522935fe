"""Files that are either whole or not there."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dragoman.core import files
from dragoman.core.errors import RunError


def everything(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.fixture(params=[0o022, 0o027, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    place = tmp_path / "disk"
    place.mkdir()
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)], capture_output=True).returncode:
        pytest.skip("mounting is not allowed here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


# -- whole ---------------------------------------------------------------------------------------------------------


def test_what_is_written_is_there_and_nothing_else(tmp_path: Path) -> None:
    files.write_file(tmp_path / "a", b"one")
    files.write_file(tmp_path / "a", b"two")
    with files.open_atomic(tmp_path / "b") as file:
        file.write(b"th")
        file.write(b"ree")
    files.write_folder(tmp_path / "c", {"x": b"1", "y": b""})
    assert everything(tmp_path) == ["a", "b", "c", "c/x", "c/y"]
    assert [(tmp_path / name).read_bytes() for name in ("a", "b", "c/x", "c/y")] == [b"two", b"three", b"1", b""]


def test_permission_bits_follow_the_umask(tmp_path: Path, umask: int) -> None:
    files.write_file(tmp_path / "a", b"")
    with files.open_atomic(tmp_path / "b"):
        pass
    files.write_folder(tmp_path / "c", {"x": b""})
    for name in ("a", "b", "c/x"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o666 & ~umask
    assert (tmp_path / "c").stat().st_mode & 0o777 == 0o777 & ~umask


def test_a_file_written_piece_by_piece_appears_only_when_all_of_it_is_there(tmp_path: Path) -> None:
    with files.open_atomic(tmp_path / "a") as file:
        file.write(b"x")
        file.flush()
        assert not (tmp_path / "a").exists()
    assert (tmp_path / "a").exists()


# -- or not there --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stop", [KeyboardInterrupt, ValueError])
def test_an_exception_in_the_middle_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, stop: type[BaseException]
) -> None:
    files.write_file(tmp_path / "a", b"old")

    def interrupted() -> None:
        with files.open_atomic(tmp_path / "a") as file:
            file.write(b"new")
            raise stop

    with pytest.raises(stop):
        interrupted()
    assert everything(tmp_path) == ["a"]
    assert (tmp_path / "a").read_bytes() == b"old"


def test_a_file_that_cannot_be_renamed_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(RunError, match="cannot be written"):
        files.write_file(tmp_path / "a", b"x")
    with pytest.raises(RunError, match="cannot be written"), files.open_atomic(tmp_path / "a") as file:
        file.write(b"x")
    assert everything(tmp_path) == ["a"]


@pytest.mark.parametrize(("name", "data", "error"), [("no/such", b"", RunError), ("y", None, TypeError)])
def test_a_folder_whose_second_file_fails_leaves_nothing(
    tmp_path: Path, name: str, data: bytes, error: type[Exception]
) -> None:
    class Contents(dict):  # type: ignore[type-arg]
        def values(self) -> list[bytes]:  # type: ignore[override]
            return []

    with pytest.raises(error):
        files.write_folder(tmp_path / "c", Contents({"x": b"1", name: data}))
    assert everything(tmp_path) == []


def test_a_folder_with_something_in_it_is_not_replaced(tmp_path: Path) -> None:
    files.write_folder(tmp_path / "c", {"x": b"old"})
    with pytest.raises(RunError, match="c: cannot be written"):
        files.write_folder(tmp_path / "c", {"x": b"new"})
    assert everything(tmp_path) == ["c", "c/x"]
    assert (tmp_path / "c" / "x").read_bytes() == b"old"


def test_a_missing_folder_is_one_sentence_with_the_path(tmp_path: Path) -> None:
    place = tmp_path / "missing" / "a"
    with pytest.raises(RunError, match="a: cannot be written: No such file"):
        files.write_file(place, b"x")
    files.make_folder(place.parent)
    files.write_file(place, b"x")
    assert place.exists()


def test_a_folder_under_a_file_is_one_sentence(tmp_path: Path) -> None:
    files.write_file(tmp_path / "a", b"")
    with pytest.raises(RunError, match="b: cannot be written: Not a directory"):
        files.make_folder(tmp_path / "a" / "b")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_one_sentence(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(RunError, match="Permission denied"):
        files.write_file(tmp_path / "a", b"x")


def test_a_full_disk_is_one_sentence_and_what_was_saved_stays(small_disk: Path) -> None:
    files.write_file(small_disk / "a", b"old")
    large = bytes(200_000)
    with pytest.raises(RunError, match="disk is full: 200,000 bytes are needed"):
        files.write_file(small_disk / "a", large)
    with pytest.raises(RunError, match="disk is full: 204,800 bytes are needed"):  # 1 block and 49
        files.write_folder(small_disk / "c", {"x": b"1", "y": large})
    with (
        pytest.raises(RunError, match=r"disk is full: [\d,]+ bytes are free"),
        files.open_atomic(small_disk / "b") as file,
    ):
        file.write(large)
    assert everything(small_disk) == ["a"]
    assert (small_disk / "a").read_bytes() == b"old"


def test_a_killed_process_leaves_the_old_file_and_its_temporary_file_can_be_removed(tmp_path: Path) -> None:
    files.write_file(tmp_path / "a", b"old")
    code = (
        "import sys, time; from pathlib import Path; from dragoman.core import files\n"
        "with files.open_atomic(Path(sys.argv[1])) as file:\n"
        "    file.write(b'new'); file.flush(); time.sleep(60)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "a")])
    try:
        deadline = time.monotonic() + 30
        while not any(path.read_bytes() == b"new" for path in tmp_path.iterdir()):
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.01)
    finally:
        process.kill()
        process.wait()
    assert (tmp_path / "a").read_bytes() == b"old"
    [left] = files.remove_temporary(tmp_path)
    assert left.startswith(files.TEMPORARY_PREFIX)
    assert everything(tmp_path) == ["a"]


# -- taking away ---------------------------------------------------------------------------------------------------


def test_remove_temporary_removes_only_temporary_files(tmp_path: Path) -> None:
    files.write_file(tmp_path / "a", b"")
    files.write_file(tmp_path / ".tmp-b-1", b"")
    files.write_folder(tmp_path / ".tmp-c-2", {"x": b""})
    assert files.remove_temporary(tmp_path) == [".tmp-b-1", ".tmp-c-2"]
    assert everything(tmp_path) == ["a"]
    assert files.remove_temporary(tmp_path / "missing") == []


def test_a_folder_is_removed_whole(tmp_path: Path) -> None:
    files.write_folder(tmp_path / "c", {"x": b"", "y": b""})
    files.remove_folder(tmp_path / "c")
    assert everything(tmp_path) == []
