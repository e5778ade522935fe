"""The results of all shards, in order: as one file, or one after the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from dragoman.core import files
from dragoman.core.errors import UserError
from dragoman.jobs.ledger import Ledger


def why_unfinished(ledger: Ledger) -> str:
    """Why the results cannot be merged yet, as a sentence; "" if all shards are done."""
    done, failures = ledger.done(), ledger.failures()
    missing = ledger.job.shards - len(done)
    if not missing:
        return ""
    text = f"{ledger.folder}: {missing:,} of {ledger.job.shards:,} shards are not done"
    if failures:
        text += f", {len(failures):,} of them set aside (dragoman shards status {ledger.folder} says why)"
    return text


def read_all(ledger: Ledger) -> Iterator[bytes]:
    """Yield the results of each shard, checked, in order; UserError unless all are done."""
    if problem := why_unfinished(ledger):
        raise UserError(problem)
    for number in range(ledger.job.shards):
        yield ledger.read_result(number).data


def merge(ledger: Ledger, output: Path, inputs: Iterable[str | Path] = ()) -> Counter[str]:
    """Write the results of all shards into one file, which appears when it is whole; returns the sums of the counts."""
    if problem := why_unfinished(ledger):
        raise UserError(problem)
    counts: Counter[str] = Counter()
    with files.open_output(output, inputs) as file:
        for number in range(ledger.job.shards):
            result = ledger.read_result(number)
            file.write(result.data)
            counts.update(result.counts)
    return counts
