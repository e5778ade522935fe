"""Two aligned files, source.txt,target.txt: line N of one belongs to line N of the other.

If the files have different numbers of lines, every pair after the missing or extra line is wrong,
and the counts alone do not tell where that is. So the lengths of the lines are kept (8 bytes a
pair). If the longer file has k more lines, the misalignment is the line p from which a shift by k
explains the lengths best:

    p = argmin  Σ_{i < p} |r(i, i)|  +  Σ_{i ≥ p} |r(i + k, i)|
    r(i, j) = log (1 + longer_i) − log (1 + shorter_j) − the typical difference
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
from dragoman.data.readers import PairReader, ReadOptions, readers, split_spec

MAX_LENGTHS_KEPT = 4_000_000  # lines whose lengths are kept


class LineCountMismatch(DataError):
    """The source and the target file have different numbers of lines."""


@readers.register("parallel")
class Parallel(PairReader):
    """Two aligned files: source.txt,target.txt."""

    def accepts(self, spec: str) -> bool:
        return len(split_spec(spec)) > 1

    def files(self, spec: str) -> list[Path]:
        return [Path(side) for side in source_and_target_paths(spec)]

    def read_pairs(self, spec: str, options: ReadOptions) -> Iterator[Example]:
        """The pairs of two files, bad lines left out; LineCountMismatch at the end if they are not equally long."""
        files = source_and_target_paths(spec)
        lengths = array("I"), array("I")
        counts = [0, 0]
        streams = [read_lines(file, on_error=options.on_error, report=options.report) for file in files]
        for lines in zip_longest(*streams):
            for side, line in enumerate(lines):
                if line is not None:
                    counts[side] += 1
                    if counts[side] <= MAX_LENGTHS_KEPT:
                        lengths[side].append(len(line.text))
            source, target = lines
            if source is None or target is None or source.error or target.error:
                continue
            references = (target.text,) if options.extra_targets else ()
            is_truncated = source.is_truncated or target.is_truncated
            yield Example(source.text, target.text, None, None, files[0], source.number, is_truncated, references)
        if counts[0] != counts[1]:
            raise _line_count_error(files, counts, lengths)

    def read_sources(self, spec: str | IO[bytes], name: str | None, options: ReadOptions) -> Iterator[Example]:
        raise DataError(
            "these are pairs; give the file with the sources alone", spec if isinstance(spec, str) else name
        )


def source_and_target_paths(spec: str) -> tuple[str, str]:
    """The two paths of a spec; DataError if there are not two."""
    paths = split_spec(spec)
    if len(paths) != 2 or not all(paths):
        raise DataError(f"found {len(paths)} paths, expected two: source.txt,target.txt", spec)
    return paths[0], paths[1]


def find_misalignment(longer: np.ndarray, shorter: np.ndarray, k: int) -> int:
    """The line, from 0, from which `longer` shifted by k fits better; len(shorter) if it never does."""
    a, b = np.log1p(longer, dtype=np.float64), np.log1p(shorter, dtype=np.float64)
    n = len(b)
    typical = np.median(a) - np.median(b)
    unshifted, shifted = np.abs(a[:n] - b - typical), np.abs(a[k : n + k] - b - typical)
    costs = np.concatenate([[0.0], np.cumsum(unshifted - shifted)])  # of the shift at p, up to a constant
    return n - int(np.argmin(costs[::-1]))  # of equals the last: most often a file just ends early


def _line_count_error(
    files: tuple[str, str], counts: list[int], lengths: tuple[array[int], array[int]]
) -> LineCountMismatch:
    long = 0 if counts[0] > counts[1] else 1
    short, k = 1 - long, abs(counts[0] - counts[1])
    numbers = " and ".join(f"{file} has {count:,} lines" for file, count in zip(files, counts, strict=True))
    problem = f"{numbers}, and line N of one must belong to line N of the other"
    a, b = (np.frombuffer(lengths[side], dtype=np.uint32) for side in (long, short))
    n = min(counts[short], len(a) - k)  # as far as both can be compared at both shifts
    if n <= 0:
        return LineCountMismatch(f"{problem}. Give files with equally many lines", files[short])
    p = find_misalignment(a[: n + k], b[:n], k)
    if p == n == counts[short]:
        text = f"{problem}. Up to here the lengths match, so the file seems to end {k:,} lines too early"
        return LineCountMismatch(text, files[short], p)
    if p == n:
        return LineCountMismatch(f"{problem}. The first {n:,} lines seem to match; look after them", files[long], n)
    text = f"{problem}. They seem to diverge near this line; compare the two files here"
    return LineCountMismatch(text, files[long], p + 1)
