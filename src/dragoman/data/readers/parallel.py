"""source.txt,target.txt: line N of one belongs to line N of the other.

When the two differ in length, every pair after the missing or extra line is wrong, and the count alone does not say
where to look. So the lengths of the lines are kept (8 bytes a pair), and when the longer file has k lines more, the
place p is found at which reading it k lines ahead from there on explains the lengths best:

    p = argmin  Σ_{i < p} |r(i, i)|  +  Σ_{i ≥ p} |r(i + k, i)|
    r(i, j) = log (1 + longer_i) − log (1 + shorter_j) − what is typical
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import IO

import numpy as np

from dragoman.core.errors import DataError
from dragoman.core.types import Example
from dragoman.data.lines import read_lines
from dragoman.data.readers import Reading, readers, sides

LOOK = 4_000_000  # lines whose lengths are kept


class SidesDiffer(DataError):
    """The two files of a pair do not have as many lines."""


@readers.register("parallel")
class Parallel:
    """Two files in step: source.txt,target.txt."""

    def accepts(self, spec: str) -> bool:
        return len(sides(spec)) > 1

    def files(self, spec: str) -> list[Path]:
        return [Path(side) for side in both(spec)]

    def read(self, spec: str, reading: Reading) -> Iterator[Example]:
        files = both(spec)
        lengths = array("I"), array("I")
        counts = [0, 0]
        streams = [read_lines(file, on_error=reading.on_error, tally=reading.tally) for file in files]
        for lines in zip_longest(*streams):
            for side, line in enumerate(lines):
                if line is not None:
                    counts[side] += 1
                    if counts[side] <= LOOK:
                        lengths[side].append(len(line.text))
            source, target = lines
            if source is None or target is None or source.bad or target.bad:
                continue
            references = (target.text,) if reading.extra_targets else ()
            cut = source.cut or target.cut
            yield Example(source.text, target.text, None, None, files[0], source.number, cut, references)
        if counts[0] != counts[1]:
            raise _differ(files, counts, lengths)

    def sources(self, spec: str | IO[bytes], name: str | None, reading: Reading) -> Iterator[Example]:
        raise DataError(
            "these are pairs; give the file with the sources alone", spec if isinstance(spec, str) else name
        )


def both(spec: str) -> tuple[str, str]:
    """The two paths of a spec."""
    paths = sides(spec)
    if len(paths) != 2 or not all(paths):
        raise DataError(f"found {len(paths)} paths, expected two: source.txt,target.txt", spec)
    return paths[0], paths[1]


def departure(longer: np.ndarray, shorter: np.ndarray, k: int) -> int:
    """From which line (from 0) on `longer`, read k lines ahead, fits better; len(shorter) where it never does."""
    a, b = np.log1p(longer, dtype=np.float64), np.log1p(shorter, dtype=np.float64)
    n = len(b)
    typical = np.median(a) - np.median(b)
    here, ahead = np.abs(a[:n] - b - typical), np.abs(a[k : n + k] - b - typical)
    costs = np.concatenate([[0.0], np.cumsum(here - ahead)])  # of changing over at p, up to a constant
    return n - int(np.argmin(costs[::-1]))  # of equals the last: a file that just ends early is the commonest case


def _differ(files: tuple[str, str], counts: list[int], lengths: tuple[array[int], array[int]]) -> SidesDiffer:
    """The error that says both counts, and the first place to look at."""
    long = 0 if counts[0] > counts[1] else 1
    short, k = 1 - long, abs(counts[0] - counts[1])
    numbers = " and ".join(f"{file} has {count:,} lines" for file, count in zip(files, counts, strict=True))
    said = f"{numbers}, and line N of one must belong to line N of the other"
    a, b = (np.frombuffer(lengths[side], dtype=np.uint32) for side in (long, short))
    n = min(counts[short], len(a) - k)  # as far as both can be compared at both shifts
    if n <= 0:
        return SidesDiffer(f"{said}. Give files with as many lines", files[short])
    p = departure(a[: n + k], b[:n], k)
    if p == n == counts[short]:
        text = f"{said}. Up to here the lengths go together, so the file seems to end {k:,} lines too early"
        return SidesDiffer(text, files[short], p)
    if p == n:
        return SidesDiffer(f"{said}. The first {n:,} lines seem to go together; look behind them", files[long], n)
    return SidesDiffer(f"{said}. They seem to part near this line; compare the two files here", files[long], p + 1)
