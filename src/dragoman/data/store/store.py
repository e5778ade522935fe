"""The token ids of a corpus in memory-mapped files: read by any number of processes, and in no process's memory.

    examples ─codec→ ids ─building.build→ folder ─open→ Store

A folder holds, for N pairs (all numbers little-endian):

    source.ids  target.ids           ids one pair after another; 16 bits where the vocabulary fits, else 32
    source.offsets  target.offsets   N + 1 places: the ids of pair i are ids[offsets[i] : offsets[i + 1]]
                                     (where the source is no text: F numbers at each place instead of one id)
    source.rows                      where the source is no text, N numbers: whose source in source.offsets a pair has,
                                     so that an image with five captions is there once
    second_source.ids, .offsets, …   a second source, as the first
    lines                            N line numbers in the user's file
    examples.jsonl  (and .offsets)   the texts and languages, only where subwords are to be sampled
    store.json                       format, counts, and the size of every file, so that a truncated one is noticed
    lock                             empty; held by the process that builds the folder

data/store/builder.py writes such a folder, whole or not at all; nothing in it ever changes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.core.errors import DataError
from dragoman.core.formats import FORMAT
from dragoman.core.types import Example

Ids = NDArray[Any]


class Store:
    """N pairs of id sequences, read where they lie. It travels to another process as its path."""

    def __init__(self, folder: Path, facts: dict[str, Any]) -> None:
        self.folder = folder
        self.skipped: dict[str, int] = facts["skipped"]
        self.unreadable: tuple[int, str] | None = tuple(facts["unreadable"]) if "unreadable" in facts else None
        self.max_source, self.max_target = int(facts["max_source"]), int(facts["max_target"])
        self.keeps_text, self.paired = bool(facts["keep_text"]), bool(facts["paired"])
        self.lines = _map(folder / "lines", "<i8")
        shared = _map(folder / "source.rows", "<i8") if facts["width"] is not None else None
        self._source = _Rows(folder, "source", "ids", facts["dtypes"]["source"], facts["width"], shared)
        self._target = _Rows(folder, "target", "ids", facts["dtypes"]["target"])
        self._second_source = None
        if (width := facts.get("second_source", "none")) != "none":
            shared = _map(folder / "second_source.rows", "<i8") if width is not None else None
            self._second_source = _Rows(folder, "second_source", "ids", facts["dtypes"]["second_source"], width, shared)
        self._examples = _Rows(folder, "examples", "jsonl", "u1") if self.keeps_text else None

    def __len__(self) -> int:
        return len(self.lines)

    @property
    def why_skipped(self) -> str:
        """How many pairs were left out for which reasons, what would let them in, and which file was the first."""
        text = ", ".join(f"{count:,} {reason}" for reason, count in sorted(self.skipped.items()))
        if any("too long" in reason for reason in self.skipped):
            text += f" (at most {self.max_source:,} source and {self.max_target:,} target positions are allowed; "
            text += "data.max_source and data.max_target may allow more)"
        if self.unreadable is not None:
            files, first = self.unreadable
            text += f" ({files:,} {'file' if files == 1 else 'files, the first'}: {first})"
        return text

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (self.folder,)

    def source(self, i: int) -> Ids:
        return self._source[i]

    def target(self, i: int) -> Ids:
        return self._target[i]

    def second_source(self, i: int) -> Ids | None:
        """The second source, where there is one."""
        return None if self._second_source is None else self._second_source[i]

    @property
    def two(self) -> bool:
        """Whether there is a second source."""
        return self._second_source is not None

    def sources(self, rows: NDArray[np.int64]) -> tuple[Ids, NDArray[np.int64]]:
        """The ids of some rows, one after another, and how many each has."""
        return self._source.together(rows)

    def targets(self, rows: NDArray[np.int64]) -> tuple[Ids, NDArray[np.int64]]:
        return self._target.together(rows)

    def second_sources(self, rows: NDArray[np.int64]) -> tuple[Ids, NDArray[np.int64]]:
        assert self._second_source is not None
        return self._second_source.together(rows)

    @property
    def source_lengths(self) -> NDArray[np.int32]:
        """Of the longer source, where there are two."""
        return self.lengths(np.arange(len(self)))[0].astype(np.int32)

    @property
    def target_lengths(self) -> NDArray[np.int32]:
        return np.diff(self._target.offsets).astype(np.int32)

    def lengths(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Source and target lengths of some rows only, where all would not fit into memory; of the longer source."""
        source, target = self._source.lengths(rows), self._target.lengths(rows)
        return source if self._second_source is None else np.maximum(source, self._second_source.lengths(rows)), target

    def example(self, i: int) -> Example:
        """The texts and languages of a pair."""
        if self._examples is None:
            raise ValueError(f"{self.folder} was built without texts")
        source, target, source_lang, target_lang, *more = json.loads(self._examples[i].tobytes())
        second = more[0] if more else ""
        return Example(source, target, source_lang, target_lang, line=int(self.lines[i]), second_source=second)


class _Rows:
    """Rows of any length in one file, with a file of the places where they begin.

    With `rows`, row i is the one of that number: what several pairs have in common is there once.
    """

    def __init__(
        self, folder: Path, name: str, suffix: str, dtype: str, width: int | None = None, rows: Ids | None = None
    ) -> None:
        data = _map(folder / f"{name}.{suffix}", dtype)
        self.data = data if width is None else data.reshape(-1, width)
        self.offsets, self.rows = _map(folder / f"{name}.offsets", "<i8"), rows

    def __getitem__(self, i: int) -> Ids:
        i = i if self.rows is None else int(self.rows[i])
        return self.data[self.offsets[i] : self.offsets[i + 1]]

    def together(self, rows: NDArray[np.int64]) -> tuple[Ids, NDArray[np.int64]]:
        starts, lengths = self.offsets[self._numbers(rows)], self.lengths(rows)
        before = np.cumsum(lengths) - lengths  # where each row begins in the result
        places = np.arange(int(lengths.sum())) + np.repeat(starts - before, lengths)
        return self.data[places], lengths

    def lengths(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        rows = self._numbers(rows)
        return np.asarray(self.offsets[rows + 1] - self.offsets[rows], dtype=np.int64)

    def _numbers(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return rows if self.rows is None else self.rows[rows]


def _map(path: Path, dtype: str) -> Ids:
    if path.stat().st_size == 0:  # an empty file cannot be mapped
        return np.zeros(0, dtype)
    return np.memmap(path, dtype, "r").view(np.ndarray)  # slices of a plain array are made ten times as fast


def open(folder: Path) -> Store:
    """A store that was built before; DataError where a file of it is missing or has not its size."""
    remedy = "Delete the folder; it will be built again."
    try:
        facts = json.loads((folder / "store.json").read_bytes())
        if facts["format"] != FORMAT:
            raise DataError(f"the token store has format {facts['format']}, not {FORMAT}. {remedy}", folder)
        for name, size in facts["sizes"].items():
            found = (folder / name).stat().st_size
            if found != size:
                raise DataError(f"the file has {found:,} bytes where {size:,} were written. {remedy}", folder / name)
        return Store(folder, facts)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"this is not a whole token store ({error}). {remedy}", folder) from None
