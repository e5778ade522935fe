"""Who of many ranks is alive: each counts up a number in their common store every second.

A broken or silent connection does not say whose fault it is; these numbers do. One that stands still is named, and all
ranks end with that name, so that whoever started them knows which machine to look at.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Sequence
from typing import Any

from dragoman.core.errors import RunError

BEAT = 1.0  # seconds between two signs of life
MISSED = 2.5  # beats without which a rank is taken for dead once a connection has broken
GRACE = 8.0  # beats to wait for a name after that, at most
LINGER = 2.0  # seconds that a process has to end by itself, or to let others hear why it ends
AGAIN = "Mend or replace it, and start again: the same command goes on from the last checkpoint"


class Watch:
    """Signs of life: every rank counts up its own number in the store and notes when the others' last moved.

    Clocks of machines differ, so each measures by its own. Two threads: one speaks with the store, which may never
    answer; the other only looks at the clock, and ends the process where the main thread cannot (it may be waiting
    inside a collective for good).
    """

    def __init__(self, store: Any, number: int, count: int, timeout: float) -> None:
        self.store, self.number, self.count, self.timeout = store, number, count, timeout
        self.turn = 0  # exchanges that this rank has come to
        self.pause = min(BEAT, timeout / 5)
        self.keys = [f"beat/{rank}" for rank in range(count)]
        self.beats, self.moved, self.heard = [b"0 0"] * count, [time.monotonic()] * count, time.monotonic()
        self.verdict: str | None = None  # why all must end
        self.deadline = math.inf  # when this process ends, if it has not by itself
        self.blamed = False  # whether the main thread knows of a lost rank, and is about to end
        self.over = threading.Event()

    def start(self) -> None:
        # The first sign of life comes before any exchange: a rank may be lost before it could give a second.
        self.store.set(self.keys[self.number], "0 0")
        for work in (self._beat, self._guard):
            threading.Thread(target=work, name=work.__name__, daemon=True).start()

    # -- in threads ------------------------------------------------------------------------------------------------

    def _beat(self) -> None:
        count = 0
        while not self.over.wait(self.pause):
            count += 1
            try:
                self.store.set(self.keys[self.number], f"{count} {self.turn}")
                begun = self.store.check(self.keys)  # else someone has yet to
                beats = self.store.multi_get(self.keys) if begun else self.beats
                goodbye = self.store.get("left/1").decode() if self.store.check(["left/1"]) else None
            except RuntimeError as error:
                self._judge(f"rank {self.number} lost the store that rank 0's machine keeps: {error}")
                return
            now = self.heard = time.monotonic()
            if not begun:
                self.moved = [now] * self.count
            self.moved = [now if new != old else at for new, old, at in zip(beats, self.beats, self.moved, strict=True)]
            self.beats = beats
            rank, quiet = self.quietest()
            if goodbye is not None:
                self._judge(goodbye)
            elif quiet > self.timeout:
                self._judge(silence(rank, quiet))

    def _guard(self) -> None:
        before = time.monotonic()
        while not self.over.wait(self.pause / 2):
            now = time.monotonic()
            if now - before > self.timeout:
                self._judge(
                    f"rank {self.number} itself stood still for {now - before:.0f} s; the others went on without it"
                )
            elif now - self.heard > self.timeout:
                text = f"rank {self.number} has heard nothing from the store on rank 0's machine for "
                self._judge(f"{text}{now - self.heard:.0f} s: rank 0 or the way to it is frozen or cut off. {AGAIN}")
            before = now
            if now > self.deadline:
                os.write(2, f"error: {self.verdict or 'a rank was lost'}\n".encode())
                os._exit(RunError.code)

    def _judge(self, text: str) -> None:
        if self.verdict is None:
            self.verdict, self.deadline = text, min(self.deadline, time.monotonic() + LINGER)

    # -- in the main thread ----------------------------------------------------------------------------------------

    def quietest(self) -> tuple[int, float]:
        """The rank that gave its last sign of life longest ago, and how long ago, at the time of the last look."""
        quiet = [0.0 if rank == self.number else self.heard - at for rank, at in enumerate(self.moved)]
        return max(enumerate(quiet), key=lambda pair: pair[1])

    def check(self) -> None:
        """Raise what the threads have found out."""
        if self.verdict is not None:
            self.blamed = True
            raise RunError(self.verdict)

    def blame(self, error: str, waited: float) -> RunError:
        """Whose fault it is that an exchange broke: someone will have been silent for long enough soon, or say why.

        After a wait of the whole timeout that would show already: then someone lives, and did not come.
        """
        self.blamed = True
        end = time.monotonic() + (GRACE if waited < self.timeout else 1.0) * self.pause
        self.deadline = min(self.deadline, end + LINGER)  # NCCL may let a process wait when it ends
        while self.verdict is None and time.monotonic() < end:
            rank, quiet = self.quietest()
            if quiet > MISSED * self.pause:
                return RunError(silence(rank, quiet))
            time.sleep(self.pause / 10)
        if self.verdict is not None:
            return RunError(self.verdict)
        turns = [self.turn if rank == self.number else int(beat.split()[1]) for rank, beat in enumerate(self.beats)]
        behind = [rank for rank, turn in enumerate(turns) if turn < self.turn]
        if behind:
            text = f"{named(behind)} gave signs of life but did not come to the exchange that the others waited for"
            return RunError(f"{text} (training.rank_timeout is {self.timeout} s). {AGAIN}")
        return RunError(f"the ranks lost each other: {error}")

    def say_goodbye(self, text: str) -> None:
        """The first goodbye is the one that counts: those that follow are its echo."""
        self.store.set(f"left/{self.store.add('left', 1)}", text)


def silence(rank: int, seconds: float) -> str:
    return f"rank {rank} has given no sign of life for {seconds:.1f} s: it was killed, frozen or cut off. {AGAIN}"


def named(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
