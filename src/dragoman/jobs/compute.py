"""Compute the shards of a job that are missing: hand them to an executor, try again after deaths, set aside.

A shard whose worker died is given to another one, since the death may have nothing to do with it. After MAX_DEATHS it
is set aside with its lines, as is one with a line that cannot be read; the others are finished.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from dragoman.jobs.executors import Outcome, ShardExecutor
from dragoman.jobs.ledger import Failure, Ledger
from dragoman.jobs.shards import Shard

MAX_DEATHS = 3  # of workers that had a shard, until it is set aside
READ_AHEAD = 4  # shards that wait for a worker
CLAIM_INTERVAL_S = 0.2  # seconds between two looks at shards that another process computes


@dataclass(frozen=True)
class Selection:
    """The shards that a command computes: those whose number is `index` modulo `count`."""

    index: int = 0
    count: int = 1

    def __contains__(self, number: int) -> bool:
        return number % self.count == self.index


@dataclass
class JobProgress:
    """What a command has done so far."""

    computed: int = 0  # shards
    deaths: int = 0  # of workers
    failures: list[Failure] = field(default_factory=list)


def missing_shards(ledger: Ledger, selection: Selection) -> list[int]:
    """The numbers of the selected shards that are neither done nor set aside, in order."""
    gone = ledger.done() | {failure.number for failure in ledger.failures()}
    return [number for number in range(ledger.job.shards) if number in selection and number not in gone]


def compute_shards(
    ledger: Ledger, shards: Iterable[Shard], executor: ShardExecutor, report: Callable[[JobProgress], None]
) -> JobProgress:
    """Compute shards until each is done or set aside; `report` is called after each."""
    queue, progress = _Queue(ledger, iter(shards)), JobProgress()
    deaths: Counter[int] = Counter()

    def end(shard: Shard, outcome: Outcome) -> None:
        if outcome.kind == "claimed":
            queue.claimed.append(shard)
            return
        if outcome.kind == "died":
            deaths[shard.number] += outcome.is_own_fault
            progress.deaths += 1
            if deaths[shard.number] < MAX_DEATHS:
                queue.again.append(shard)
                return
            times = f"{MAX_DEATHS} times in a row it ended without a result, at last because "
            outcome = Outcome("failed", times + outcome.error)
        if outcome.result is not None and not ledger.is_done(shard.number):
            ledger.write_result(shard.number, *outcome.result)
        if outcome.kind == "failed":
            progress.failures.append(ledger.set_aside(shard.number, outcome.error))
        else:
            progress.computed += 1
        report(progress)

    try:
        while True:
            while executor.has_room and (shard := queue.next()) is not None:
                if shard.error:
                    end(shard, Outcome("failed", shard.error))
                else:
                    executor.submit(shard)
            if executor.is_idle:
                return progress
            has_read = queue.read_ahead()
            ended = executor.wait(block=not has_read)
            for shard, outcome in ended:
                end(shard, outcome)
            if ended and all(outcome.kind == "claimed" for _, outcome in ended):
                time.sleep(CLAIM_INTERVAL_S)
    finally:
        executor.close()


class _Queue:
    """Shards to compute: those to try again first, then new ones, and at last those that another process had."""

    def __init__(self, ledger: Ledger, shards: Iterator[Shard]) -> None:
        self.again: deque[Shard] = deque()
        self.claimed: deque[Shard] = deque()
        self._ledger, self._shards = ledger, shards
        self._ahead: deque[Shard] = deque()

    def next(self) -> Shard | None:
        """The next shard; None if there is none now."""
        if self.again:
            return self.again.popleft()
        if self._ahead or self.read_ahead():
            return self._ahead.popleft()
        while self.claimed:
            shard = self.claimed.popleft()
            if not self._ledger.is_done(shard.number):
                return shard
        return None

    def read_ahead(self) -> bool:
        """Read one more shard, while the workers compute; False if enough were read, or all."""
        before = len(self._ahead)
        if before < READ_AHEAD:
            self._ahead.extend(islice(self._shards, 1))
        return len(self._ahead) > before
