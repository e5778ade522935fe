"""Which rank is alive: each rank counts up a number in the common store every second.

A broken or silent connection does not show which rank failed; these heartbeats do. A rank whose number no longer
changes is named, and all ranks end with an error that names it, so that the user knows which machine failed.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dragoman.core.errors import RunError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

INTERVAL = 1.0  # seconds between two heartbeats
MISSED_BEATS = 2.5  # a rank that missed so many is lost, once a connection has broken
GRACE_BEATS = 8.0  # how long to wait, after that, until a rank has missed so many
CONNECT_GRACE = 2.0  # seconds after the timeout in which a library may still end its own waiting
EXIT_SECONDS = 2.0  # that a process has to end by itself, or to let others read why it ends
RESTART_HINT = "Mend or replace it, and start again: the same command goes on from the last checkpoint"


class HeartbeatMonitor:
    """Sends the heartbeats of this rank and notes, by its own clock, when those of the others last changed.

    Two threads: one calls the store, which may never answer; the other only watches the clock, and ends the process
    where the main thread cannot (it may wait inside a collective forever).
    """

    def __init__(self, store: Store, rank: int, world_size: int, timeout: float) -> None:
        self.store, self.rank, self.world_size, self.timeout = store, rank, world_size, timeout
        self.collectives = 0  # that this rank has joined
        self.interval = min(INTERVAL, timeout / 5)
        self.keys = [f"beat/{other}" for other in range(world_size)]
        self.beats = [b"0 0"] * world_size
        self.changed_at, self.polled_at = [time.monotonic()] * world_size, time.monotonic()
        self.failure: str | None = None  # why all ranks must end
        self.connect_by = math.inf  # when the ranks must be connected
        self.deadline = math.inf  # when this process is ended, if it has not by itself
        self.failure_raised = False  # whether the main thread knows of a lost rank, and is about to end
        self.stopped = threading.Event()

    def start(self) -> None:
        """Send the first heartbeat and start the threads."""
        # Before any collective: a rank may be lost before it could send a second one.
        self.store.set(self.keys[self.rank], "0 0")
        for work in (self._send_heartbeats, self._watch_clock):
            threading.Thread(target=work, name=work.__name__, daemon=True).start()

    # -- in threads ------------------------------------------------------------------------------------------------

    def _send_heartbeats(self) -> None:
        """Thread: count up this rank's heartbeat, note which others changed, and set a failure if one is lost."""
        count = 0
        while not self.stopped.wait(self.interval):
            count += 1
            try:
                self.store.set(self.keys[self.rank], f"{count} {self.collectives}")
                all_started = self.store.check(self.keys)
                beats = self.store.multi_get(self.keys) if all_started else self.beats
                announced = self.store.get("left/1").decode() if self.store.check(["left/1"]) else None
            except RuntimeError as error:
                self._note_first_failure(f"rank {self.rank} lost the store on rank 0's machine: {error}")
                return
            now = self.polled_at = time.monotonic()
            if not all_started:
                self.changed_at = [now] * self.world_size
            self.changed_at = [
                now if new != old else at for new, old, at in zip(beats, self.beats, self.changed_at, strict=True)
            ]
            self.beats = beats
            rank, seconds = self.most_silent_rank()
            if announced is not None:
                self._note_first_failure(announced)
            elif seconds > self.timeout:
                self._note_first_failure(silence_message(rank, seconds))

    def _watch_clock(self) -> None:
        """Thread: set a failure if this process was frozen or the store is silent; end the process at the deadline."""
        before = time.monotonic()
        while not self.stopped.wait(self.interval / 2):
            now = time.monotonic()
            if now - before > self.timeout:
                self._note_first_failure(
                    f"rank {self.rank} was frozen for {now - before:.0f} s; the others went on without it"
                )
            elif now - self.polled_at > self.timeout:
                self._note_first_failure(
                    f"rank {self.rank} has had no answer from the store on rank 0's machine for "
                    f"{now - self.polled_at:.0f} s: rank 0 or the network to it is frozen or cut off. {RESTART_HINT}"
                )
            elif now > self.connect_by:
                self._note_first_failure(
                    f"rank {self.rank} could not connect to the others within {self.timeout} s "
                    f"(training.rank_timeout). {RESTART_HINT}"
                )
            before = now
            if now > self.deadline:
                os.write(2, f"error: {self.failure or 'a rank was lost'}\n".encode())
                os._exit(RunError.code)

    def _note_first_failure(self, message: str) -> None:
        """Unless a failure is noted already, note why all ranks must end; this process ends in EXIT_SECONDS at most."""
        if self.failure is None:
            self.failure, self.deadline = message, min(self.deadline, time.monotonic() + EXIT_SECONDS)

    # -- in the main thread ----------------------------------------------------------------------------------------

    @contextmanager
    def connecting(self) -> Iterator[None]:
        """For a block that connects the ranks: after the timeout this process ends, though the block may wait on.

        gloo waits several times its timeout for a peer whose first message was lost.
        """
        self.connect_by = time.monotonic() + self.timeout + CONNECT_GRACE
        try:
            yield
        finally:
            self.connect_by = math.inf

    def most_silent_rank(self) -> tuple[int, float]:
        """The rank whose last heartbeat is longest ago, and how many seconds before the last poll that was."""
        silence = [0.0 if rank == self.rank else self.polled_at - at for rank, at in enumerate(self.changed_at)]
        return max(enumerate(silence), key=lambda pair: pair[1])

    def raise_failure(self) -> None:
        """Raise the failure that the threads have noticed, if any."""
        if self.failure is not None:
            self.failure_raised = True
            raise RunError(self.failure)

    def explain_failure(self, error: str, waited: float) -> RunError:
        """The error for a collective that broke after `waited` seconds: which rank is lost, and why.

        Waits until a rank has missed its heartbeats or announced its failure. After a wait of the whole timeout that
        would have shown already: then a rank is alive but did not join the collective.
        """
        self.failure_raised = True
        end = time.monotonic() + (GRACE_BEATS if waited < self.timeout else 1.0) * self.interval
        self.deadline = min(self.deadline, end + EXIT_SECONDS)  # NCCL may let a process wait when it ends
        while self.failure is None and time.monotonic() < end:
            rank, seconds = self.most_silent_rank()
            if seconds > MISSED_BEATS * self.interval:
                return RunError(silence_message(rank, seconds))
            time.sleep(self.interval / 10)
        if self.failure is not None:
            return RunError(self.failure)
        counts = [
            self.collectives if rank == self.rank else int(beat.split()[1]) for rank, beat in enumerate(self.beats)
        ]
        behind = [rank for rank, count in enumerate(counts) if count < self.collectives]
        if behind:
            return RunError(
                f"{format_ranks(behind)} sent heartbeats but did not join the collective that the others waited for "
                f"(training.rank_timeout is {self.timeout} s). {RESTART_HINT}"
            )
        return RunError(f"the ranks lost each other: {error}")

    def announce_failure(self, message: str) -> None:
        """Tell the other ranks why this one ends; only the first announcement counts, later ones follow from it."""
        self.store.set(f"left/{self.store.add('left', 1)}", message)


def silence_message(rank: int, seconds: float) -> str:
    return f"rank {rank} has sent no heartbeat for {seconds:.1f} s: it was killed, frozen or cut off. {RESTART_HINT}"


def format_ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
