"""Shards as tasks of a Ray cluster on this machine: a node that is killed loses nothing, and others may come."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman.data.lines import ReadReport
from dragoman.jobs.compute import MAX_DEATHS, JobProgress, Selection, compute_shards, missing_shards
from dragoman.jobs.merge import read_all
from dragoman.jobs.shards import Shard, read_shards, scan_lines

from .fake_job import SIZE, begun, expected, open_ledger, write_lines

pytest.importorskip("ray")
pytestmark = pytest.mark.long
SHARDS = 60


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A head that computes nothing, and two nodes of two CPUs."""
    import ray
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_DEDUP_LOGS", "0")
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    for _ in range(2):
        cluster.add_node(num_cpus=2)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def drive(cluster: Any, file: Path, folder: Path, log: Path, deadly: int = -1) -> JobProgress:
    """Compute what is missing on the cluster; the shard `deadly` kills each of its workers."""
    from dragoman.jobs.executors.ray import RayTasks

    def open_compute(log: Path) -> Callable[[Shard], tuple[bytes, dict[str, int]]]:
        def compute(shard: Shard) -> tuple[bytes, dict[str, int]]:
            with log.open("a") as stream:
                stream.write(f"{shard.number} {os.getpid()}\n")
            if shard.number == deadly:
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(0.1)
            return b"".join(f"{row.cells[0][::-1]}\n".encode() for row, _ in shard.inputs), {}

        return compute

    ledger, lines = open_ledger(folder, file), scan_lines(file, SIZE)
    shards = read_shards(lines, str(file), missing_shards(ledger, Selection()), "stop", ReadReport())
    executor = RayTasks(log, open_compute, cluster.address, None, "cpu")
    return compute_shards(ledger, shards, executor, lambda progress: None)


def kill_node_and_start_another(cluster: Any, log: Path, moment: int) -> None:
    deadline = time.monotonic() + 120
    while len(begun(log)) < moment and time.monotonic() < deadline:
        time.sleep(0.01)
    node = random.choice(cluster.list_all_nodes()[1:])
    cluster.remove_node(node, allow_graceful=False)  # SIGKILL
    time.sleep(random.uniform(0, 2))
    cluster.add_node(num_cpus=2)


def test_a_node_killed_at_a_random_moment_and_one_started_again_lose_nothing(cluster: Any, tmp_path: Path) -> None:
    rng = random.Random(torch.initial_seed())
    file, folder, log = write_lines(tmp_path, SHARDS), tmp_path / "shards", tmp_path / "log"
    moments = sorted(rng.randint(1, SHARDS - 10) for _ in range(2))

    with ThreadPoolExecutor(1) as thread:  # Ray starts nodes from the main thread only
        driving = thread.submit(drive, cluster, file, folder, log)
        for moment in moments:
            kill_node_and_start_another(cluster, log, moment)
        assert driving.result(120).failures == []
    assert b"".join(read_all(open_ledger(folder, file))) == expected(file)
    again = len(begun(log)) - SHARDS
    assert again <= 2 * 2, "each of the two workers of a node that died had one shard"


def test_a_shard_that_kills_its_workers_is_set_aside_and_the_rest_finishes(cluster: Any, tmp_path: Path) -> None:
    file, folder, log = write_lines(tmp_path, 8), tmp_path / "shards", tmp_path / "log"
    progress = drive(cluster, file, folder, log, deadly=3)
    assert [failure.number for failure in progress.failures] == [3]
    assert sum(number == 3 for number, _ in begun(log)) == MAX_DEATHS
    assert open_ledger(folder, file).done() == set(range(8)) - {3}
