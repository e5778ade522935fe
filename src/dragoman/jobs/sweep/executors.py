"""Start workers: processes of this machine, or Ray's tasks (on_ray.py). Both train one trial each and end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any, Protocol

from dragoman.core.processes import describe_exit, explain_failed_start


@dataclass(frozen=True)
class Ended:
    """How a worker ended: its error if it had one, or that it was killed."""

    error: str | None = None
    killed: str | None = None


class TrialExecutor(Protocol):
    """Something that runs workers."""

    workers: int  # at once

    def start(self) -> None:
        """Start a worker."""

    def collect(self) -> list[Ended]:
        """The workers that have ended since the last call."""

    @property
    def running(self) -> int:
        """How many workers have not ended yet."""

    def stop(self) -> None:
        """Let the workers save and end, and wait for them."""


class LocalExecutor:
    """Worker processes of this machine; each has its share of the threads, and a GPU of its own if there are any."""

    def __init__(self, order: dict[str, Any], workers: int, threads: int, gpus: list[str]) -> None:
        self.order, self.workers, self.threads, self.gpus = order, workers, threads, gpus
        self.processes: dict[int, subprocess.Popen[bytes]] = {}  # by place, which decides the GPU

    def start(self) -> None:
        """Start a worker in the first free place."""
        place = next(i for i in range(self.workers) if i not in self.processes)
        environment = dict(os.environ)
        environment["OMP_NUM_THREADS"] = str(self.threads)
        if self.gpus:
            environment["CUDA_VISIBLE_DEVICES"] = self.gpus[place % len(self.gpus)]
        # -P: the current folder is not where modules come from. A session of its own: Ctrl-C reaches the driver alone.
        command = [sys.executable, "-P", "-m", "dragoman.jobs.sweep.worker", json.dumps(self.order)]
        with explain_failed_start():
            self.processes[place] = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, start_new_session=True
            )

    def collect(self) -> list[Ended]:
        """The workers that have ended since the last call."""
        ended = []
        for place, process in list(self.processes.items()):
            if process.poll() is not None:
                del self.processes[place]
                ended.append(_how_it_ended(process))
        return ended

    @property
    def running(self) -> int:
        """How many workers have not ended yet."""
        return len(self.processes)

    def stop(self) -> None:
        """Let the workers save and end, and wait for them."""
        for process in self.processes.values():
            assert process.stdin is not None
            process.stdin.close()
        for process in self.processes.values():
            process.wait()
        self.collect()


def _how_it_ended(process: subprocess.Popen[bytes]) -> Ended:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    with process.stdout as out:
        printed = out.read().decode(errors="replace").strip().splitlines()
    if process.returncode == 0:
        return Ended()
    if process.returncode > 128:  # it was asked to stop, but not by this driver; its trial goes on
        return Ended(killed=describe_exit(process.returncode))
    try:
        return Ended(error=json.loads(printed[-1])["error"])
    except (IndexError, ValueError, KeyError, TypeError):
        return Ended(killed=describe_exit(process.returncode))
