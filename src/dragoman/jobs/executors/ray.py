"""Shards computed by Ray: core tasks, each one shard; the results come back to this process, which writes them.

So only this process needs the folder and the input; the nodes of the cluster need the model, at the same path. A worker
process of Ray loads the model once and keeps it for the next task.

Ray's own retries are off: they know no end for a shard that kills its worker. A task that ended without a result is
submitted again here. Where Ray says that its node went away, that does not count against the shard. Neither Ray Data
nor actor pools are used: when a cluster shrinks they hang or lose blocks.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any

from dragoman.core.errors import MissingExtra, UserError
from dragoman.jobs.executors import Compute, Outcome, compute_outcome
from dragoman.jobs.shards import Shard

TASKS_PER_CPU = 2  # one that runs and one that waits, so that a worker never waits for this process
WAIT_S = 1.0  # seconds of one wait, which Ctrl-C can end
# No telemetry unless it is asked for; and what the next version of Ray does, without its warning.
ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}

_opened: tuple[bytes, Compute] | None = None  # in a worker of Ray: the model it has loaded, and what for


class RayTasks:
    """Tasks of a Ray cluster; nodes may come and go."""

    def __init__(
        self,
        arguments: object,
        open_compute: Callable[[Any], Compute],
        address: str | None,
        workers: int | None,
        device: str,
    ) -> None:
        """Connect to a cluster; each task calls open_compute(arguments) once in its process."""
        try:
            import ray
        except ImportError:
            raise MissingExtra("ray", "ray", "--executor ray") from None
        self._ray: Any = ray
        self._workers = workers
        self._resource = "GPU" if device.startswith("cuda") else "CPU"
        self._was_connected = ray.is_initialized()
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        if not self._was_connected:
            try:
                ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, include_dashboard=False)
            except (ConnectionError, ValueError, RuntimeError) as error:
                place = "a Ray cluster" if address is None else f"the Ray cluster at {address}"
                reason = str(error).splitlines()[0] if str(error) else type(error).__name__
                raise UserError(f"--executor ray: {place} cannot be reached: {reason}") from None
        needs = {"num_gpus": 1} if self._resource == "GPU" else {"num_cpus": 1}
        self._task = self._ray.remote(max_retries=0, **needs)(compute_in_ray)
        self._arguments = ray.put((open_compute, arguments))
        self._running: dict[Any, Shard] = {}
        self._capacity = 0
        self._count_workers()

    def _count_workers(self) -> None:
        workers = int(self._ray.cluster_resources().get(self._resource, 0))
        self._capacity = TASKS_PER_CPU * max(1, workers) if self._workers is None else self._workers

    @property
    def has_room(self) -> bool:
        """Whether the cluster has work for less than TASKS_PER_CPU tasks a worker."""
        return len(self._running) < self._capacity

    def submit(self, shard: Shard) -> None:
        """Submit a task for a shard."""
        self._running[self._task.remote(self._arguments, shard)] = shard

    @property
    def is_idle(self) -> bool:
        """Whether no task was submitted that has not ended."""
        return not self._running

    def wait(self, *, block: bool) -> list[tuple[Shard, Outcome]]:
        """The tasks that have ended; with `block`, wait for one."""
        while True:
            ready, _ = self._ray.wait(list(self._running), num_returns=1, timeout=WAIT_S if block else 0)
            self._count_workers()  # nodes come and go
            if ready or not block:
                return [(shard, self._receive(task)) for task in ready for shard in [self._running.pop(task)]]

    def _receive(self, task: Any) -> Outcome:
        errors = self._ray.exceptions
        try:
            result = self._ray.get(task)
        except errors.RayTaskError as error:
            raise RuntimeError(f"a task of Ray failed: {error}") from None
        except errors.RayError as error:
            machine_left = isinstance(error, errors.NodeDiedError | errors.ObjectLostError)
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            return Outcome("died", f"its worker in Ray ended: {reason}", is_own_fault=not machine_left)
        if isinstance(result, UserError):
            raise result
        outcome: Outcome = result
        return outcome

    def close(self) -> None:
        """Cancel what runs, and disconnect from a cluster that this command connected to."""
        if self._was_connected:
            for task in self._running:
                self._ray.cancel(task, force=True)
        else:
            self._ray.shutdown()


def compute_in_ray(opened: tuple[Callable[[Any], Compute], Any], shard: Shard) -> Outcome | UserError:
    """In a worker of Ray: compute a shard with the model that this process has loaded."""
    import pickle

    global _opened
    open_compute, arguments = opened
    try:
        key = pickle.dumps(arguments)
        if _opened is None or _opened[0] != key:
            _opened = key, open_compute(arguments)
        return compute_outcome(_opened[1], shard)
    except UserError as error:  # wrong options, no model at this path: it ends the command
        return error
