"""The batches of each update: `accumulate` per rank, until the epochs are over.

The ranks take batches in rounds, one each. The last round may reach beyond the last epoch; a rank whose batch lies
there has none in that update, but takes part in it all the same.
"""

from __future__ import annotations

from collections.abc import Iterator

from dragoman.core.types import Batch
from dragoman.data.batching import BatchStream, Cursor


def group_updates(
    stream: Iterator[tuple[Batch, Cursor]], batches: BatchStream, accumulate: int, epochs: int | None
) -> Iterator[tuple[list[Batch], Cursor]]:
    """Group the batches of this rank, from `batches`, into updates; yields each with the cursor after it."""
    while True:
        group = [next(stream) for _ in range(accumulate)]
        counts = [count_within_epochs(epochs, after, batches) for _, after in group]
        if counts[0] == 0:
            return
        own = [batch for (batch, _), count in zip(group, counts, strict=True) if batches.rank < count]
        yield own, group[-1][1] if counts[-1] == batches.ranks else Cursor(epochs or 0)


def count_within_epochs(epochs: int | None, after: Cursor, batches: BatchStream) -> int:
    """How many batches of the round that ends at a cursor belong to the epochs; those beyond come last."""
    if epochs is None or after.epoch < epochs:
        return batches.ranks
    beyond = sum(batches.count_batches(epoch) for epoch in range(epochs, after.epoch))
    return max(0, batches.ranks - beyond - after.batch)
