"""A ledger is refused in one sentence when it is not that of the job or was changed; what is written is whole."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from dragoman.core.errors import RunError, UserError
from dragoman.jobs.ledger import Job, Ledger, failure_name, result_name
from dragoman.jobs.merge import merge
from dragoman.jobs.shards import InputFile
from dragoman.jobs.status import read_status

INPUT = InputFile("a.txt", 100, "aa")
OPTIONS = {"--beam": 5, "MODEL": "abc", "--lm": None}


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger.create(tmp_path / "shards", Job("predict", OPTIONS, (INPUT,), 10, 4))


def open_again(ledger: Ledger, **changes: Any) -> Ledger | None:
    values: dict[str, Any] = {"command": "predict", "options": OPTIONS, "inputs": [INPUT], "shard_size": 4, **changes}
    return Ledger.open(ledger.folder, **values)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"command": "score"}, "it is of dragoman predict, not of dragoman score"),
        ({"options": OPTIONS | {"--beam": 4}}, "--beam was 5 and is 4"),
        ({"options": OPTIONS | {"--lm": "def"}}, "--lm was not set and is def"),
        ({"options": {"--beam": 5}}, "MODEL was abc and is not set"),
        ({"options": OPTIONS | {"--check": True}}, "--check was not set and is true"),
        ({"inputs": [InputFile("a.txt", 120, "bb")]}, r"a.txt had 100 bytes and has 120 \(it has grown\)"),
        ({"inputs": [InputFile("a.txt", 100, "bb")]}, "a.txt has changed"),
        ({"inputs": [INPUT, INPUT]}, "it has 1 input files, not 2"),
        ({"shard_size": 8}, "its shards have 4 lines, not 8"),
    ],
)
def test_another_job_is_refused_with_what_differs(ledger: Ledger, changes: dict[str, Any], sentence: str) -> None:
    before = sorted(path.name for path in ledger.folder.iterdir())
    with pytest.raises(UserError, match=f"belongs to another job: .*{sentence}") as caught:
        open_again(ledger, **changes)
    assert "\n" not in str(caught.value)
    assert sorted(path.name for path in ledger.folder.iterdir()) == before


def test_the_same_job_is_accepted_wherever_its_input_is(ledger: Ledger) -> None:
    assert open_again(ledger, inputs=[InputFile("elsewhere.txt", 100, "aa")]) is not None


@pytest.mark.parametrize(
    "edit",
    [
        lambda data: data.replace(b'"lines": 10', b'"lines": 11'),
        lambda data: data[: len(data) // 2],
        lambda data: b"",
        lambda data: b"[1, 2]",
        lambda data: b"\xff" + data,
        lambda data: data.replace(b"sha256", b"sha512"),
        lambda data: b"[" * 100_000,
    ],
)
def test_a_ledger_edited_by_hand_is_one_sentence_and_its_results_stay(ledger: Ledger, edit: Any) -> None:
    ledger.write_result(0, b"a\n", {})
    job = ledger.folder / "job.json"
    whole = job.read_bytes()
    job.write_bytes(edit(whole))
    with pytest.raises(UserError, match=r"job.json: was changed or damaged") as caught:
        open_again(ledger)
    assert "\n" not in str(caught.value)
    job.write_bytes(whole)
    again = open_again(ledger)
    assert again is not None
    assert again.read_result(0).data == b"a\n"


def test_results_without_their_job_are_refused(ledger: Ledger) -> None:
    ledger.write_result(0, b"a\n", {})
    (ledger.folder / "job.json").unlink()
    with pytest.raises(UserError, match=r"has results, but no job\.json"):
        open_again(ledger)
    with pytest.raises(UserError, match=r"there is no job\.json"):
        Ledger.read(ledger.folder)


@pytest.mark.parametrize(
    "edit", [lambda data: data + b"x", lambda data: data[:-1], lambda data: b"", lambda data: data.replace(b"a", b"b")]
)
def test_a_changed_result_is_found_when_results_are_merged(ledger: Ledger, edit: Any, tmp_path: Path) -> None:
    for number in range(3):
        ledger.write_result(number, b"a\n" * 4, {})
    path = ledger.folder / result_name(1)
    path.write_bytes(edit(path.read_bytes()))
    with pytest.raises(UserError, match=r"shard-000001.result: was changed or damaged .*delete it"):
        merge(ledger, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    path.unlink()
    ledger.write_result(1, b"b\n" * 4, {"truncated": 2})
    assert merge(ledger, tmp_path / "out") == {"truncated": 2}
    assert (tmp_path / "out").read_bytes() == b"a\n" * 4 + b"b\n" * 4 + b"a\n" * 4


def test_a_result_of_another_job_is_not_merged(ledger: Ledger, tmp_path: Path) -> None:
    other = Ledger.create(tmp_path / "other", Job("predict", OPTIONS | {"--beam": 1}, (INPUT,), 10, 4))
    for number in range(3):
        ledger.write_result(number, b"", {})
    other.write_result(1, b"", {})
    (other.folder / result_name(1)).replace(ledger.folder / result_name(1))
    with pytest.raises(UserError, match="belongs to another job"):
        merge(ledger, tmp_path / "out")


def test_a_clock_that_jumps_changes_nothing(ledger: Ledger) -> None:
    for number, seconds in enumerate((2_000_000_000, 10, 500_000_000)):
        ledger.write_result(number, b"", {})
        os.utime((ledger.folder / result_name(number)), (seconds, seconds))
    assert ledger.done() == {0, 1, 2}
    status = read_status(ledger)
    assert status.is_complete
    assert status.seconds_left == 0


def test_the_speed_and_the_time_left_are_those_of_all_processes_together(ledger: Ledger) -> None:
    for number, seconds in enumerate((1000, 1002)):
        ledger.write_result(number, b"", {})
        os.utime((ledger.folder / result_name(number)), (seconds, seconds))
    status = read_status(ledger)
    assert (status.lines_per_second, status.done_lines, status.seconds_left) == (2.0, 8, 1.0)
    ledger.set_aside(2, "no")
    assert read_status(ledger).seconds_left == 0


def test_many_processes_may_write_the_same_at_once(ledger: Ledger) -> None:
    """As containers do, which have the same process number: here threads of one process."""
    data = os.urandom(100_000)

    def write() -> None:
        for _ in range(20):
            ledger.write_result(0, data, {})

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ledger.read_result(0).data == data
    assert not list(ledger.folder.glob(".tmp-*"))


def test_a_failure_that_cannot_be_read_is_still_one(ledger: Ledger) -> None:
    ledger.set_aside(1, "because")
    assert [str(failure) for failure in ledger.failures()] == ["shard 1 (lines 5 to 8): because"]
    (ledger.folder / failure_name(1)).write_bytes(b"\xff")
    (failure,) = ledger.failures()
    assert failure.error == "the reason cannot be read"
    assert json.dumps(failure.as_json())
    ledger.write_result(1, b"", {})
    assert ledger.failures() == []


def test_a_full_disk_and_a_read_only_one_are_one_sentence_and_lose_nothing(small_disk: Path) -> None:
    ledger = Ledger.create(small_disk / "shards", Job("predict", OPTIONS, (INPUT,), 10, 4))
    ledger.write_result(0, b"a\n" * 4, {})
    with pytest.raises(RunError, match="the disk is full: 200,"):
        ledger.write_result(1, bytes(200_000), {})
    assert not list(ledger.folder.glob(".tmp-*"))
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(RunError, match=r"cannot be written: Read-only file system"):
        ledger.write_result(1, b"", {})
    with pytest.raises(RunError, match=r"cannot be written: Read-only file system"):
        Ledger.create(small_disk / "other", ledger.job)
    with ledger.claim(1) as is_ours:
        assert is_ours
    assert ledger.done() == {0}
    assert ledger.read_result(0).data == b"a\n" * 4
