"""Ranks as real processes that meet through gloo: forks of a process that has imported everything.

They are started with the variables that torchrun sets, so that a test can kill each of them.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

DEADLINE = 60.0

PROGRAM = """
import os, sys
words = os.open(words, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
os.dup2(words, 1), os.dup2(words, 2)
os.environ.update(environment)
import torch
torch.set_num_threads(1)
exec(before)
sys.argv = ["dragoman", *arguments]
from dragoman.cli.main import main
main()
"""


class World:
    """The ranks of one training, as processes."""

    def __init__(self, folder: Path, arguments: list[str], count: int, before: str = "") -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.words = [folder / f"words-{port}-{rank}" for rank in range(count)]
        shared = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        self.ranks: list[BaseProcess] = []
        for rank, words in enumerate(self.words):
            names = {
                "words": str(words),
                "environment": shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                "arguments": arguments,
                "before": before,
            }
            process = multiprocessing.get_context("forkserver").Process(
                target=exec, args=(PROGRAM, names | {"__name__": "rank"})
            )
            process.start()
            self.ranks.append(process)

    def output(self, rank: int) -> str:
        return self.words[rank].read_text() if self.words[rank].exists() else ""

    def send(self, rank: int, number: int) -> None:
        pid = self.ranks[rank].pid
        assert pid is not None
        os.kill(pid, number)

    def wait(self, *ranks: int, seconds: float = DEADLINE) -> list[int | None]:
        """The exit codes of some ranks, or of all."""
        end = time.monotonic() + seconds
        for rank in ranks or range(len(self.ranks)):
            self.ranks[rank].join(max(0.0, end - time.monotonic()))
            assert self.ranks[rank].exitcode is not None, f"rank {rank} is still running:\n{self.output(rank)}"
        return [self.ranks[rank].exitcode for rank in ranks or range(len(self.ranks))]

    def until(self, true: Callable[[], bool]) -> None:
        end = time.monotonic() + DEADLINE
        while not true():
            assert time.monotonic() < end, [self.output(rank) for rank in range(len(self.ranks))]
            assert all(process.is_alive() for process in self.ranks), [self.output(r) for r in range(len(self.ranks))]
            time.sleep(0.005)

    def end(self) -> None:
        for process in self.ranks:
            process.kill()
            process.join()


def reached(run: Path) -> int:
    """The last step that metrics.jsonl speaks of; its last line may be half written."""
    try:
        lines = (run / "metrics.jsonl").read_text().split("\n")
    except FileNotFoundError:
        return 0
    return max((json.loads(line)["step"] for line in lines[:-1]), default=0)


def weights(run: Path) -> dict[str, torch.Tensor]:
    last = (run / "last").read_text().strip()
    return safetensors.torch.load_file(run / "checkpoints" / last / "model.safetensors")


def progress(run: Path) -> dict[str, Any]:
    last = (run / "last").read_text().strip()
    return json.loads((run / "checkpoints" / last / "training.json").read_text())
