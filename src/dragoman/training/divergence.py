"""A loss that runs away although every number is finite.

    limit = RUNAWAY_FACTOR · max(log V, first loss)        log V: the loss of a token for a guess among V
    n ← n + 1 where a loss is above the limit, else max(n − 1, 0)        diverged: n = MAX_RUNAWAY_UPDATES

A spike is forgotten as fast as it came, and a loss that swings between large and small is not. A loss may begin above
that of a guess (CTC, R-Drop, large initial weights); once it was below, its beginning is no excuse any more.
"""

from __future__ import annotations

from dragoman.training.state import Progress

RUNAWAY_FACTOR, MAX_RUNAWAY_UPDATES = 2.0, 100


def has_run_away(progress: Progress, loss: float, guess: float) -> bool:
    """Count an update by its loss of a token and that of a guess; returns whether training has diverged."""
    if progress.first_loss is None or loss < guess:
        progress.first_loss = loss
    is_above = loss > RUNAWAY_FACTOR * max(guess, progress.first_loss)
    progress.runaway_updates = max(0, progress.runaway_updates + (1 if is_above else -1))
    return progress.runaway_updates >= MAX_RUNAWAY_UPDATES
