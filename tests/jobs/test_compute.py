"""Shards that are missing are computed, once; what cannot be is set aside, and the rest finishes."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from dragoman.core import processes
from dragoman.core.errors import DataError, UserError
from dragoman.jobs.compute import MAX_DEATHS, Selection, missing_shards
from dragoman.jobs.merge import merge, read_all, why_unfinished
from dragoman.jobs.shards import Shard
from dragoman.jobs.status import read_status

from .fake_job import SHARDS, SIZE, begun, computing, drive, expected, open_ledger, start_driver, write_lines

pytestmark = pytest.mark.skipif(not processes.can_fork(), reason="workers need Linux")
FAST = 0.0


def test_what_is_done_is_not_done_again(tmp_path: Path) -> None:
    file, shards, log = write_lines(tmp_path), tmp_path / "shards", tmp_path / "log"
    drive(shards, file, log, compute=computing(log, FAST))
    assert Counter(number for number, _ in begun(log)) == Counter(range(SHARDS))
    for number in (3, 20):
        (shards / f"shard-{number:06}.result").unlink()
    progress = drive(shards, file, log, compute=computing(log, FAST))
    assert progress.computed == 2
    assert sorted(number for number, _ in begun(log)[SHARDS:]) == [3, 20]
    merge(open_ledger(shards, file), tmp_path / "out.txt")
    assert (tmp_path / "out.txt").read_bytes() == expected(file)


def test_selections_share_the_shards_out_and_their_order_does_not_matter(tmp_path: Path) -> None:
    file, shards, log = write_lines(tmp_path), tmp_path / "shards", tmp_path / "log"
    for index in (2, 0, 1):
        drive(shards, file, log, Selection(index, 3), computing(log, FAST))
        assert bool(why_unfinished(open_ledger(shards, file))) == (index != 1)
    assert len(begun(log)) == SHARDS
    assert b"".join(read_all(open_ledger(shards, file))) == expected(file)


def test_a_shard_that_kills_its_worker_is_set_aside_and_the_rest_finishes(tmp_path: Path) -> None:
    file, shards, log = write_lines(tmp_path), tmp_path / "shards", tmp_path / "log"
    compute = computing(log, FAST)

    def deadly(shard: Shard) -> tuple[bytes, dict[str, int]]:
        result = compute(shard)
        if shard.number == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    progress = drive(shards, file, log, compute=deadly)
    counts = Counter(number for number, _ in begun(log))
    assert counts.pop(5) == MAX_DEATHS == progress.deaths
    assert counts == Counter({number: 1 for number in range(SHARDS) if number != 5})
    ledger = open_ledger(shards, file)
    (failure,) = ledger.failures()
    assert (failure.number, failure.first_line, failure.last_line) == (5, 5 * SIZE + 1, 6 * SIZE)
    assert "SIGKILL" in failure.error
    with pytest.raises(UserError, match="1 of 24 shards are not done, 1 of them set aside"):
        merge(ledger, tmp_path / "out.txt")
    assert not (tmp_path / "out.txt").exists()
    assert missing_shards(ledger, Selection()) == []  # it is not tried again unasked
    assert ledger.clear_failures() == 1
    drive(shards, file, log, compute=compute)
    merge(ledger, tmp_path / "out.txt")
    assert (tmp_path / "out.txt").read_bytes() == expected(file)
    assert ledger.failures() == []


def test_a_shard_that_kills_one_worker_is_tried_by_another(tmp_path: Path) -> None:
    file, shards, log = write_lines(tmp_path, 4), tmp_path / "shards", tmp_path / "log"
    compute, marker = computing(log, FAST), tmp_path / "died"

    def deadly_once(shard: Shard) -> tuple[bytes, dict[str, int]]:
        if shard.number == 2 and not marker.exists():
            marker.touch()
            os._exit(11)
        return compute(shard)

    assert drive(shards, file, log, compute=deadly_once).failures == []
    assert b"".join(read_all(open_ledger(shards, file))) == expected(file)


@pytest.mark.parametrize("error", [DataError("no good", "lines.txt", 35), ZeroDivisionError("3 / 0")])
def test_a_line_that_raises_sets_its_shard_aside_at_once(error: Exception, tmp_path: Path) -> None:
    file, shards, log = write_lines(tmp_path), tmp_path / "shards", tmp_path / "log"
    compute = computing(log, FAST)

    def poisoned(shard: Shard) -> tuple[bytes, dict[str, int]]:
        result = compute(shard)
        if shard.number == 2:
            raise error
        return result

    (failure,) = drive(shards, file, log, compute=poisoned).failures
    assert failure.number == 2
    assert str(error) in failure.error
    assert len(begun(log)) == SHARDS
    status = read_status(open_ledger(shards, file))
    assert (status.done_shards, status.shards, len(status.failures)) == (SHARDS - 1, SHARDS, 1)
    assert status.as_json()["failures"][0]["first_line"] == 2 * SIZE + 1


def test_a_line_that_is_not_text_spoils_its_shard_alone(tmp_path: Path) -> None:
    file, shards, log = write_lines(tmp_path), tmp_path / "shards", tmp_path / "log"
    lines = file.read_bytes().split(b"\n")
    lines[50] = b"\xff"
    file.write_bytes(b"\n".join(lines))
    (failure,) = drive(shards, file, log, compute=computing(log, FAST)).failures
    assert failure.number == 50 // SIZE
    assert f"{file}:51: byte 0xFF" in failure.error
    assert len(open_ledger(shards, file).done()) == SHARDS - 1


def test_two_drivers_in_one_folder_divide_the_work(tmp_path: Path) -> None:
    file, shards, log = write_lines(tmp_path), tmp_path / "shards", tmp_path / "log"
    drivers = [start_driver(shards, file, log) for _ in range(2)]
    for driver in drivers:
        driver.join(60)
        assert driver.exitcode == 0
    assert b"".join(read_all(open_ledger(shards, file))) == expected(file)
    assert len(begun(log)) == SHARDS  # none twice, where locks work


def test_a_shard_that_another_process_has_is_waited_for_and_taken_over_if_that_dies(tmp_path: Path) -> None:
    file, shards, log = write_lines(tmp_path, 3), tmp_path / "shards", tmp_path / "log"
    ledger = open_ledger(shards, file)
    other = _holder(ledger)
    try:
        driver = start_driver(shards, file, log)
        deadline = time.monotonic() + 60
        while ledger.done() != {0, 2}:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert driver.is_alive()
    finally:
        other.process.kill()
        other.process.join()
    driver.join(60)
    assert driver.exitcode == 0
    assert ledger.done() == {0, 1, 2}


def _holder(ledger: Any) -> processes.Child:
    def hold(pipe: Any) -> None:
        with ledger.claim(1) as is_ours:
            assert is_ours
            pipe.send("held")
            signal.pause()

    child = processes.Child(hold, fork=True)
    assert child.pipe.poll(60)
    return child


def test_a_wrong_option_ends_the_job_and_sets_nothing_aside(tmp_path: Path) -> None:
    file, shards, log = write_lines(tmp_path), tmp_path / "shards", tmp_path / "log"

    def refuse(shard: Shard) -> tuple[bytes, dict[str, int]]:
        raise UserError("the beam is too large")

    with pytest.raises(UserError, match="the beam is too large"):
        drive(shards, file, log, compute=refuse)
    assert open_ledger(shards, file).failures() == []
