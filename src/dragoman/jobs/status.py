"""How far a job is: lines, shards, speed, time left and failures, from its folder alone.

The speed is that of the results' times in the folder, all processes together. It is for people: nothing depends on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dragoman.jobs.ledger import Failure, Ledger


@dataclass(frozen=True)
class Status:
    """What a folder says of its job."""

    folder: str
    command: str
    lines: int
    shards: int
    done_lines: int
    done_shards: int
    bytes: int  # of the results
    lines_per_second: float | None  # None: not known from fewer than two results
    failures: list[Failure]

    @property
    def is_complete(self) -> bool:
        """Whether every shard is done."""
        return self.done_shards == self.shards

    @property
    def seconds_left(self) -> float | None:
        """How long the shards that are neither done nor set aside take at the speed so far; None: not known."""
        aside = sum(failure.last_line - failure.first_line + 1 for failure in self.failures)
        left = self.lines - self.done_lines - aside
        return None if not self.lines_per_second else left / self.lines_per_second

    def as_json(self) -> dict[str, Any]:
        """The status as one JSON object."""
        return {
            "folder": self.folder,
            "command": self.command,
            "lines": self.lines,
            "done_lines": self.done_lines,
            "shards": self.shards,
            "done_shards": self.done_shards,
            "complete": self.is_complete,
            "bytes": self.bytes,
            "lines_per_second": self.lines_per_second,
            "seconds_left": self.seconds_left,
            "failures": [failure.as_json() for failure in self.failures],
        }


def read_status(ledger: Ledger) -> Status:
    """Read how far a job is."""
    written: list[tuple[float, int]] = []  # time and lines of each result
    size = 0
    for number, file in ledger.results():
        size += file.size
        written.append((file.modified, len(ledger.job.lines_of(number))))
    written.sort()
    seconds = written[-1][0] - written[0][0] if written else 0.0
    speed = sum(lines for _, lines in written[1:]) / seconds if seconds > 0 else None
    return Status(
        str(ledger.folder),
        ledger.job.command,
        ledger.job.lines,
        ledger.job.shards,
        sum(lines for _, lines in written),
        len(written),
        size,
        speed,
        ledger.failures(),
    )
