"""Windows: inputs that are sorted by length and cut into batches together. The only place where inputs are cut.

    inputs ─read ahead→ Window(inputs, first_index) …

Batches fill better in a larger window (greedy search, a Transformer of 4 + 4 layers of 128, lines per second on one
core: 88 with windows of 64, 146 of 256, 169 of 1,024, 193 of 2,048). So a window has `size` inputs, numbered from the
first. Only an input that is too small to give each worker a whole window is shared out evenly among them.

The last bits of a score depend on the batch, and so on the window. From `workers` × `size` inputs on, windows are the
same for any number of workers, and the same as the shards of a bulk job (jobs/shards.py).
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

WINDOW = 4096  # inputs of a window
MEDIA_WINDOW = 128  # where inputs are files, all of which are held at once: 4,096 clips of 16 frames are 10 GB
NEARLY_FULL = 1024  # inputs of a window whose batches are nearly full
SMALLEST = 64  # inputs that are worth a window at all
SMALLEST_THREADED = 2048  # where an engine has threads of its own, so that one process uses all cores

Input = TypeVar("Input")


@dataclass(frozen=True)
class Window(Generic[Input]):
    """Consecutive inputs, and the index of the first of them in the whole input."""

    inputs: list[Input]
    first_index: int
    is_last: bool = False

    def __str__(self) -> str:
        """ "lines 1 to 100", for messages."""
        return f"lines {self.first_index + 1:,} to {self.first_index + len(self.inputs):,}"


def cut_windows(
    inputs: Iterable[Input], workers: int = 1, size: int = WINDOW, first_index: int = 0, smallest: int = SMALLEST
) -> Iterator[Window[Input]]:
    """Yield windows of `size` inputs, smaller if there are too few for all workers; an error of the inputs comes last.

    `workers` windows are read ahead. Fewer than two times `smallest` inputs are one window.
    """
    start = first_index
    ahead: deque[Input] = deque()
    iterator: Iterator[Input] = iter(inputs)
    error: Exception | None = None
    full_size = size
    while True:
        try:
            ahead.extend(itertools.islice(iterator, workers * full_size - len(ahead)))
        except Exception as raised:  # what was read before it is in `ahead`
            error, iterator = raised, iter(())
        if not ahead:
            break
        at_end = len(ahead) < workers * full_size
        if at_end and first_index == start:
            size = even_size(len(ahead), workers, full_size, smallest)
        window = [ahead.popleft() for _ in range(min(size, len(ahead)))]
        yield Window(window, first_index, at_end and not ahead)
        first_index += len(window)
    if error is not None:
        raise error


def even_size(remaining: int, workers: int, full_size: int, smallest: int = SMALLEST) -> int:
    """Return the window size that shares the remaining inputs evenly among the workers, at most `full_size`."""
    if workers == 1 or remaining < 2 * smallest:
        return full_size
    size = max(-(-remaining // (2 * workers)), min(NEARLY_FULL, -(-remaining // workers)), smallest)
    return min(size, full_size)
