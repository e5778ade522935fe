"""Which sentence occupies which slot, on the host.

The device runs ahead of the host. A poll is a copy of the device's `done` flags; it counts for a sentence only if the
sentence was admitted before the poll was taken.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dragoman.engines.cuda.transfer import HostCopy


class DonePoll(NamedTuple):
    """The `done` flags (b,) of the slots at one moment, on their way to the host."""

    done: HostCopy
    number: int


class SlotTable:
    """For each of B slots its sentence (−1: free), the polls before its admission, its first and last possible end."""

    def __init__(self, B: int) -> None:
        self.row, self.admitted, self.first_end, self.last_end = (np.full(B, -1, np.int64) for _ in range(4))

    @property
    def occupied(self) -> np.ndarray:
        return self.row >= 0

    def ends(self) -> tuple[int, int]:
        """The first step after which any sentence can be done, and the step after which every one is."""
        return int(self.first_end[self.occupied].min()), int(self.last_end[self.occupied].max())

    def assign(
        self, slots: np.ndarray, rows: np.ndarray, polls: int, first_end: np.ndarray, last_end: np.ndarray
    ) -> None:
        """Put the sentences `rows` into free slots, with the polls so far and their first and last possible end."""
        self.row[slots], self.admitted[slots] = rows, polls
        self.first_end[slots], self.last_end[slots] = first_end, last_end

    def finished(self, poll: DonePoll) -> np.ndarray:
        """The slots whose sentences were admitted before the poll and done at it; waits for the poll."""
        done = poll.done.wait().numpy().astype(bool)
        b = len(done)
        return np.flatnonzero(done & self.occupied[:b] & (self.admitted[:b] < poll.number))

    def release(self, slots: np.ndarray) -> np.ndarray:
        """Free some slots; returns the sentences that were in them."""
        rows: np.ndarray = self.row[slots]
        self.row[slots] = -1
        return rows

    def move(self, source: np.ndarray, to: np.ndarray, polls: int) -> None:
        """Move the sentences of the slots `source` to the slots `to`; earlier polls do not count for them."""
        for x in (self.row, self.first_end, self.last_end):
            x[to] = x[source]
        self.admitted[to], self.row[source] = polls, -1
