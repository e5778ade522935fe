"""Files that are either whole or not there."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

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


# -- what a user names -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o755])
def test_an_output_keeps_mode_and_owner_of_the_file_it_replaces_and_is_never_more_open(
    tmp_path: Path, mode: int
) -> None:
    output = tmp_path / "a"
    output.write_bytes(b"old")
    owner = (4321, 4322) if os.geteuid() == 0 else (os.geteuid(), os.getegid())
    os.chown(output, *owner)
    output.chmod(mode)
    with files.open_output(output) as file:
        file.write(b"new")
        [temporary] = [path for path in tmp_path.iterdir() if path != output]
        assert temporary.stat().st_mode & 0o777 == mode
        assert output.read_bytes() == b"old"
    status = output.stat()
    assert (status.st_mode & 0o777, status.st_uid, status.st_gid) == (mode, *owner)
    assert output.read_bytes() == b"new"
    assert everything(tmp_path) == ["a"]


@pytest.mark.parametrize("exists", [True, False])
@pytest.mark.parametrize("chain", [["a"], ["sub/../a"], ["b", "a"]])
def test_an_output_through_links_is_written_where_they_lead_and_they_stay_links(
    tmp_path: Path, chain: list[str], exists: bool
) -> None:
    (tmp_path / "sub").mkdir()
    if exists:
        (tmp_path / "a").write_bytes(b"old")
    if "b" in chain:
        (tmp_path / "b").symlink_to(tmp_path / "a")
    link = tmp_path / "sub" / "link"
    link.symlink_to(f"../{chain[0]}")
    files.write_output(link, b"new")
    assert link.is_symlink()
    assert (tmp_path / "a").read_bytes() == b"new"
    assert not (tmp_path / "a").is_symlink()
    assert set(everything(tmp_path)) == {"a", "sub", "sub/link"} | ({"b"} & set(chain))


def test_our_own_files_are_never_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    for name in ("a", files._temporary_path(tmp_path / "b").name):
        (tmp_path / name).symlink_to("secret")
    files.write_file(tmp_path / "a", b"1")
    files.write_file(tmp_path / "b", b"2")
    assert (tmp_path / "secret").read_bytes() == b"secret"
    assert [(tmp_path / name).read_bytes() for name in "ab"] == [b"1", b"2"]
    assert everything(tmp_path) == ["a", "b", "secret"]


def test_a_pipe_is_written_through_and_stays_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        for name in ("pipe", "link"):
            files.write_output(tmp_path / name, b"x")
            assert os.read(reader, 10) == b"x"
    finally:
        os.close(reader)
    assert (tmp_path / "pipe").is_fifo()
    assert (tmp_path / "link").is_symlink()


def test_a_device_stays_a_device_and_a_disk_is_not_written_to(tmp_path: Path) -> None:
    null, disk = tmp_path / "null", tmp_path / "disk"
    try:
        os.mknod(null, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        os.mknod(disk, 0o666 | stat.S_IFBLK, os.makedev(7, 250))
        null.write_bytes(b"")
    except OSError:
        pytest.skip("making devices is not allowed here")
    files.write_output(null, b"x")
    assert null.is_char_device()
    with pytest.raises(RunError, match="disk: cannot be written: it is a disk"):
        files.write_output(disk, b"x")
    assert disk.is_block_device()
    assert everything(tmp_path) == ["disk", "null"]


def test_a_folder_and_a_socket_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the name of a socket must be short
    (tmp_path / "folder").mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
        for name in ("folder", "socket"):
            with pytest.raises(RunError, match=f"{name}: cannot be written: it is a {name}"):
                files.write_output(Path(name), b"x")
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(RunError, match="loop: cannot be written: Too many levels"):
        files.write_output(Path("loop"), b"x")
    with pytest.raises(RunError, match="too long"):
        files.write_output(Path("x" * 300), b"x")
    assert everything(tmp_path) == ["folder", "loop", "socket"]


def test_the_standard_output_is_continued_not_replaced(capfd: pytest.CaptureFixture[str]) -> None:
    print("before")
    files.write_output(Path("/dev/stdout"), b"page\n")
    print("after", flush=True)
    assert capfd.readouterr().out == "before\npage\nafter\n"


@pytest.mark.parametrize("way", ["same", "symlink", "hard link"])
def test_an_input_is_never_an_output(tmp_path: Path, way: str) -> None:
    source, output = tmp_path / "a", tmp_path / "b"
    source.write_bytes(b"precious")
    if way == "same":
        output = tmp_path / ".." / tmp_path.name / "a"
    else:
        output.symlink_to("a") if way == "symlink" else output.hardlink_to(source)
    with pytest.raises(RunError, match="is also an input"), files.open_output(output, ["-", tmp_path / "no", source]):
        pass
    assert source.read_bytes() == b"precious"
    with files.open_output(tmp_path / "c", [source]) as file:
        file.write(b"x")
    assert (tmp_path / "c").read_bytes() == b"x"


def test_an_output_leaves_no_temporary_files_of_dead_processes_and_loses_nothing_they_wrote(tmp_path: Path) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    kept = {f".tmp-b-{os.getppid()}", ".tmp-b", ".tmp-mine-", "x-1", f".tmp-link-{dead.pid}"}
    (tmp_path / f".tmp-link-{dead.pid}").symlink_to("x-1")
    for name in (f".tmp-b-{dead.pid}", f".tmp-c-1-{os.getpid()}", *kept):
        (tmp_path / name).write_bytes(b"1\n2\n")
    (tmp_path / f".tmp-empty-{dead.pid}").touch()
    with files.open_output(tmp_path / "living") as file:  # of this process, and locked
        file.write(b"1")
        files.write_output(tmp_path / "b", b"3")
    assert (tmp_path / "living").read_bytes() == b"1"
    assert [(tmp_path / name).read_bytes() for name in ("b.partial-1", "c-1.partial-1")] == [b"1\n2\n"] * 2
    assert set(everything(tmp_path)) == {*kept, "b", "b.partial-1", "c-1.partial-1", "living"}


def test_what_is_set_aside_replaces_nothing(tmp_path: Path) -> None:
    for text in "12":
        (tmp_path / "a").write_text(text)
        assert files.set_aside(tmp_path / "a", "damaged") == tmp_path / f"a.damaged-{text}"
    assert [(tmp_path / f"a.damaged-{n}").read_text() for n in "12"] == ["1", "2"]
    assert everything(tmp_path) == ["a.damaged-1", "a.damaged-2"]


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


# -- plain files -------------------------------------------------------------------------------------------------------


def test_a_plain_file_is_read_up_to_a_limit(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    assert files.read_plain(tmp_path / "a", 5) == files.read_file(tmp_path / "a", 5) == b"12345"
    for read in (files.read_plain, files.read_file):
        with pytest.raises(OSError, match="it has 5 bytes, more than the 4 that are allowed"):
            read(tmp_path / "a", 4)
        with pytest.raises(FileNotFoundError):
            read(tmp_path / "b", 4)
    with pytest.raises(OSError, match="it has more than the 4 that are allowed"):
        files.read_file(Path("/dev/zero"), 4)


@pytest.mark.parametrize("mode", ["rb", "ab", "a+b"])
@pytest.mark.parametrize("kind", ["link", "dangling", "device", "pipe", "folder"])
def test_what_is_no_plain_file_is_not_opened(tmp_path: Path, kind: str, mode: Literal["rb", "ab", "a+b"]) -> None:
    path, target = tmp_path / "path", tmp_path / "target"
    if kind == "link":
        target.write_bytes(b"outside")
        path.symlink_to(target)
    elif kind == "dangling":
        path.symlink_to(target)
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    with pytest.raises(OSError, match="not a plain file"):
        files.open_plain(Path("/dev/zero") if kind == "device" else path, mode)
    assert kind != "link" or target.read_bytes() == b"outside"
    assert kind != "dangling" or not target.exists()


def test_a_plain_file_that_is_missing_is_created_to_append_to(tmp_path: Path, umask: int) -> None:
    for data in (b"a", b"b"):
        with files.open_plain(tmp_path / "log", "ab") as file:
            file.write(data)
    assert (tmp_path / "log").read_bytes() == b"ab"
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o666 & ~umask


def test_a_temporary_link_is_removed_and_its_target_stays(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/file").write_bytes(b"kept")
    (tmp_path / "run").mkdir()
    (tmp_path / "run/.tmp-step-1-1").symlink_to(tmp_path / "outside")
    assert files.remove_temporary(tmp_path / "run") == [".tmp-step-1-1"]
    assert everything(tmp_path) == ["outside", "outside/file", "run"]
