"""Whoever is killed, and whenever: the merged results are those of plain work, and almost nothing is computed twice."""

from __future__ import annotations

import hashlib
import random
import time
from pathlib import Path

import pytest
import torch

from dragoman.core import processes
from dragoman.jobs.merge import merge

from .fake_job import SECONDS, begun, expected, kill, open_ledger, start_driver, wait_for_shards, write_lines

pytestmark = pytest.mark.skipif(not processes.can_fork(), reason="workers need Linux")


def check(target: str, kills: int, folder: Path) -> None:
    rng, count = random.Random(torch.initial_seed()), 8 * kills
    file, shards, log = write_lines(folder, count), folder / "shards", folder / "log"
    dead, process = 0, start_driver(shards, file, log)
    for number in range(kills):
        left = count - len({number for number, _ in begun(log)})
        wait_for_shards(log, len(begun(log)) + rng.randint(1, max(1, 2 * left // (kills - number + 1))), process)
        time.sleep(rng.uniform(0, SECONDS))  # at any moment of a shard
        dead += kill(target, process, log, rng)
        if not process.is_alive():
            process = start_driver(shards, file, log)
    process.join(60)
    assert process.exitcode == 0
    merge(open_ledger(shards, file), folder / "out.txt")
    assert hashlib.sha256((folder / "out.txt").read_bytes()).digest() == hashlib.sha256(expected(file)).digest()
    again = len(begun(log)) - len({number for number, _ in begun(log)})
    assert again <= dead, "each worker that died had one shard"
    names = {path.name for path in shards.iterdir() if not path.name.startswith(".tmp-")}
    assert names == {"job.json", "claims", *(f"shard-{number:06}.result" for number in range(count))}


@pytest.mark.parametrize("target", ["worker", "driver", "group"])
def test_kills_at_three_random_moments_lose_nothing(target: str, tmp_path: Path) -> None:
    check(target, 3, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("target", ["worker", "driver", "group"])
def test_kills_at_twenty_random_moments_lose_nothing(target: str, tmp_path: Path) -> None:
    check(target, 20, tmp_path)
