"""Workers as Ray's tasks: one trial each, in a process of its own, with a GPU if the cluster has any.

A task whose process or machine dies is started again by Ray, and then claims the trial that it left. The sweep's folder
must be on a file system that all machines share, with flock, and Dragoman must be installed on each of them.
"""

from __future__ import annotations

import os
from typing import Any

from dragoman.core.errors import DragomanError, MissingExtra, Stopped
from dragoman.jobs.sweep.executors import Ended
from dragoman.jobs.sweep.worker import run_order


class RayExecutor:
    """Tasks of the Ray cluster that RAY_ADDRESS names or that this machine is part of; else of one for this command."""

    def __init__(self, order: dict[str, Any], workers: int | None, wants_gpu: bool) -> None:
        try:
            import ray
        except ImportError:
            raise MissingExtra("ray", "ray", "--executor ray") from None
        self.ray: Any = ray
        if not self.ray.is_initialized():
            self.ray.init(log_to_driver=False, logging_level="ERROR")
        available = self.ray.cluster_resources()
        gpus = int(available.get("GPU", 0)) if wants_gpu else 0
        self.workers = workers or gpus or int(available.get("CPU", 1))
        self.order = order | {"current_folder": os.getcwd()}
        needs = {"num_gpus": 1} if gpus else {"num_cpus": 1}
        # max_calls=1: memory, the GPU's too, is freed with the process.
        self.task = self.ray.remote(max_retries=-1, max_calls=1, **needs)(train_one)
        self.references: list[Any] = []

    def start(self) -> None:
        """Start a worker."""
        self.references.append(self.task.remote(self.order))

    def collect(self) -> list[Ended]:
        """The workers that have ended since the last call."""
        if not self.references:
            return []
        done, self.references = self.ray.wait(self.references, num_returns=len(self.references), timeout=0)
        return [self._how_it_ended(reference) for reference in done]

    def _how_it_ended(self, reference: Any) -> Ended:
        try:
            return Ended(error=self.ray.get(reference))
        except self.ray.exceptions.RayError as error:
            return Ended(killed=str(error).strip().splitlines()[-1])

    @property
    def running(self) -> int:
        """How many workers have not ended yet."""
        return len(self.references)

    def stop(self) -> None:
        """Let the workers save and end, and wait for them."""
        for reference in self.references:
            self.ray.cancel(reference)
        if self.references:
            self.ray.wait(self.references, num_returns=len(self.references))
        self.collect()


def train_one(order: dict[str, Any]) -> str | None:
    """Train one trial; returns the error that the driver raises, if there is one."""
    os.chdir(order["current_folder"])
    try:
        run_order(order)
    except Stopped:
        return None
    except DragomanError as error:
        return str(error)
    return None
