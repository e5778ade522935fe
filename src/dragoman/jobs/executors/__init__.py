"""Executors: who computes shards. `compute_shards` gives them work, tries again, and sets aside.

Shard ─submit→ a worker ─wait→ (Shard, Outcome)

local   forked processes of this machine, or this process itself
ray     tasks of a Ray cluster
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from dragoman.core.errors import DataError, UserError
from dragoman.jobs.ledger import Ledger
from dragoman.jobs.shards import Shard

Compute = Callable[[Shard], tuple[bytes, dict[str, int]]]  # the results of a shard, and counts to add up


@dataclass(frozen=True)
class Outcome:
    """How a shard ended: done; computed, with results that are to be written; claimed by another process; failed, the
    reason said; or its worker died."""

    kind: Literal["done", "computed", "claimed", "failed", "died"]
    error: str = ""
    result: tuple[bytes, dict[str, int]] | None = None
    is_own_fault: bool = True  # of a death: a shard that kills its workers, not a machine that went away


class ShardExecutor(Protocol):
    """Workers that compute shards, each one at a time."""

    @property
    def has_room(self) -> bool: ...

    def submit(self, shard: Shard) -> None: ...

    @property
    def is_idle(self) -> bool: ...

    def wait(self, *, block: bool) -> list[tuple[Shard, Outcome]]:
        """The shards that have ended; with `block`, wait for one."""
        ...

    def close(self) -> None: ...


def compute_into(ledger: Ledger, compute: Compute, shard: Shard) -> Outcome:
    """Compute a shard and write its results, unless it is done or another process has it.

    An error of the inputs, or one that nobody foresaw, fails the shard. Other errors are the command's and are raised.
    """
    with ledger.claim(shard.number) as is_ours:
        if not is_ours:
            return Outcome("claimed")
        if ledger.is_done(shard.number):
            return Outcome("done")
        outcome = compute_outcome(compute, shard)
        if outcome.result is None:
            return outcome
        ledger.write_result(shard.number, *outcome.result)
    return Outcome("done")


def compute_outcome(compute: Compute, shard: Shard) -> Outcome:
    """Compute a shard for a process that writes its results."""
    try:
        return Outcome("computed", result=compute(shard))
    except MemoryError:
        return Outcome("died", "memory ran out")
    except Exception as error:
        return explain_failure(error)


def explain_failure(error: Exception) -> Outcome:
    """The outcome of an error of computing; a UserError that is not about the data is raised."""
    if isinstance(error, DataError):
        return Outcome("failed", str(error))
    if isinstance(error, UserError):
        raise error
    return Outcome("failed", f"{type(error).__name__}: {error}")
