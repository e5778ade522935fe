"""Shards computed on this machine: by forked workers, which share the model's memory, or by this process."""

from __future__ import annotations

from multiprocessing import connection

from dragoman.core.processes import Child, answer_tasks, defer_interrupt, kill_children
from dragoman.jobs.executors import Compute, Outcome, compute_into, compute_outcome
from dragoman.jobs.ledger import Ledger
from dragoman.jobs.shards import Shard


class ForkedWorkers:
    """Up to `count` forks of this process; one that dies is replaced.

    Each writes its results itself; at a URL this process does, since connections do not survive a fork.
    """

    def __init__(self, ledger: Ledger, compute: Compute, count: int) -> None:
        self._ledger, self._compute, self._count = ledger, compute, count
        self._running: dict[Child, Shard] = {}
        self._idle: list[Child] = []

    @property
    def has_room(self) -> bool:
        """Whether a worker is idle, or may be started."""
        return len(self._running) < self._count

    def submit(self, shard: Shard) -> None:
        """Send a shard to an idle worker, else to a new one."""
        if not self._idle:
            with defer_interrupt():
                self._idle.append(Child(answer_tasks, self._run, fork=True, siblings=list(self._running)))
        worker = self._idle.pop()
        self._running[worker] = shard
        try:
            worker.pipe.send(shard)
        except OSError:  # it died; wait() notices
            worker.process.kill()

    def _run(self, shard: Shard) -> Outcome:
        if self._ledger.is_remote:
            return compute_outcome(self._compute, shard)
        return compute_into(self._ledger, self._compute, shard)

    @property
    def is_idle(self) -> bool:
        """Whether no shard is being computed."""
        return not self._running

    def wait(self, *, block: bool) -> list[tuple[Shard, Outcome]]:
        """The shards whose workers have answered or died; with `block`, wait for one."""
        ended = []
        ready = connection.wait([worker.pipe for worker in self._running], None if block else 0)
        for worker in [worker for worker in self._running if worker.pipe in ready]:
            shard = self._running[worker]
            try:
                outcome = worker.pipe.recv()
            except (EOFError, OSError):
                del self._running[worker]
                ended.append((shard, Outcome("died", f"its worker {worker.wait_for_exit()}")))
                kill_children([worker])
                continue
            del self._running[worker]
            self._idle.append(worker)
            if isinstance(outcome, Exception):  # no fault of this shard: a full disk, wrong options, our bug
                raise outcome
            ended.append((shard, outcome[0]))
        return ended

    def close(self) -> None:
        """End the workers; what they had not finished is computed again by the next command."""
        kill_children([*self._running, *self._idle])


class ThisProcess:
    """This process, one shard after the other: on a GPU, which one process fills, and with several threads."""

    def __init__(self, ledger: Ledger, compute: Compute) -> None:
        self._ledger, self._compute = ledger, compute
        self._next: Shard | None = None

    @property
    def has_room(self) -> bool:
        """Whether no shard waits."""
        return self._next is None

    def submit(self, shard: Shard) -> None:
        """Keep a shard for wait()."""
        self._next = shard

    @property
    def is_idle(self) -> bool:
        """Whether no shard waits."""
        return self._next is None

    def wait(self, *, block: bool) -> list[tuple[Shard, Outcome]]:
        """Compute the shard that waits."""
        shard, self._next = self._next, None
        return [] if shard is None else [(shard, compute_into(self._ledger, self._compute, shard))]

    def close(self) -> None:
        """Nothing is to be ended."""
