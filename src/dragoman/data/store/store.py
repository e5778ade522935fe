"""The token store: the ids of a corpus in memory-mapped files, shared by any number of processes.

    examples ─codec→ ids ─builder.build_store→ folder ─open_store→ TokenStore

A folder holds, for N pairs (all numbers little-endian):

    source.ids  target.ids           the ids of all pairs end to end; 16 bits if the vocabulary fits, else 32
    source.offsets  target.offsets   N + 1 positions: the ids of pair i are ids[offsets[i] : offsets[i + 1]]
                                     (if the source is not text: F numbers at each position instead of one id)
    source.rows                      if the source is not text, N numbers: the row of source.offsets for each pair, so
                                     that an image with five captions is stored once
    second_source.ids, .offsets, …   a second source, like the first
    lines                            N line numbers in the user's file
    examples.jsonl  (and .offsets)   the texts and languages, only if subwords are sampled
    store.json                       format, counts, and the size of every file, to detect truncated ones
    lock                             empty; locked by the process that builds the folder

data/store/builder.py writes such a folder atomically; it never changes afterwards.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.core.errors import DataError
from dragoman.core.formats import FORMAT
from dragoman.core.types import Example

Array = NDArray[Any]  # ids, or (S, F) numbers of a modality, in any dtype
Rows = NDArray[np.int64]  # row numbers, or lengths


class TokenStore:
    """N pairs of id sequences in memory-mapped files; pickled as its path."""

    def __init__(self, folder: Path, facts: dict[str, Any]) -> None:  # facts: the parsed store.json
        self.folder = folder
        self.skipped: dict[str, int] = facts["skipped"]
        self.unreadable: tuple[int, str] | None = tuple(facts["unreadable"]) if "unreadable" in facts else None
        self.max_source, self.max_target = int(facts["max_source"]), int(facts["max_target"])
        self.keeps_text, self.is_paired = bool(facts["keep_text"]), bool(facts["paired"])
        self.lines = _map_file(folder / "lines", "<i8")
        dtypes = facts["dtypes"]
        self.sources = RaggedArray(folder, "source", "ids", dtypes["source"], facts["width"])
        self.targets = RaggedArray(folder, "target", "ids", dtypes["target"])
        self.second_sources = None
        if "second_source" in facts:
            self.second_sources = RaggedArray(
                folder, "second_source", "ids", dtypes["second_source"], facts["second_source"]
            )
        self._examples = RaggedArray(folder, "examples", "jsonl", "u1") if self.keeps_text else None

    def __len__(self) -> int:
        return len(self.lines)

    @property
    def skip_summary(self) -> str:
        """How many pairs were left out for each reason, with a remedy and the first unreadable file."""
        text = ", ".join(f"{count:,} {reason}" for reason, count in sorted(self.skipped.items()))
        if any("too long" in reason for reason in self.skipped):
            text += f" (at most {self.max_source:,} source and {self.max_target:,} target positions are allowed; "
            text += "data.max_source and data.max_target may allow more)"
        if self.unreadable is not None:
            files, first = self.unreadable
            text += f" ({files:,} {'file' if files == 1 else 'files, the first'}: {first})"
        return text

    def __reduce__(self) -> tuple[Callable[[Path], TokenStore], tuple[Path]]:
        return open_store, (self.folder,)

    def lengths(self, rows: Rows) -> tuple[Rows, Rows]:
        """Source and target lengths of some rows, without reading them; of the longer source if there are two."""
        source, target = self.sources.lengths(rows), self.targets.lengths(rows)
        second = self.second_sources
        return source if second is None else np.maximum(source, second.lengths(rows)), target

    def example(self, i: int) -> Example:
        """The texts and languages of pair i; ValueError if the store was built without texts."""
        if self._examples is None:
            raise ValueError(f"{self.folder} was built without texts")
        source, target, source_lang, target_lang, *more = json.loads(self._examples[i].tobytes())
        second = more[0] if more else ""
        return Example(source, target, source_lang, target_lang, line=int(self.lines[i]), second_source=second)


class RaggedArray:
    """Rows of any length in one file, with a file of their offsets.

    If a row is not text but positions of `width` numbers, row i is the stored row rows[i]: several pairs can share one.
    """

    def __init__(self, folder: Path, name: str, suffix: str, dtype: str, width: int | None = None) -> None:
        data = _map_file(folder / f"{name}.{suffix}", dtype)
        self.data = data if width is None else data.reshape(-1, width)
        self.offsets = _map_file(folder / f"{name}.offsets", "<i8")
        self.rows = None if width is None else _map_file(folder / f"{name}.rows", "<i8")

    def __getitem__(self, i: int) -> Array:
        i = i if self.rows is None else int(self.rows[i])
        return self.data[self.offsets[i] : self.offsets[i + 1]]

    def gather(self, rows: Rows) -> tuple[Array, Rows]:
        """The data of some rows end to end, and their lengths."""
        starts, lengths = self.offsets[self._stored_rows(rows)], self.lengths(rows)
        before = np.cumsum(lengths) - lengths  # where each row begins in the result
        indices = np.arange(int(lengths.sum())) + np.repeat(starts - before, lengths)
        return self.data[indices], lengths

    def lengths(self, rows: Rows) -> Rows:
        rows = self._stored_rows(rows)
        return np.asarray(self.offsets[rows + 1] - self.offsets[rows], dtype=np.int64)

    def _stored_rows(self, rows: Rows) -> Rows:
        return rows if self.rows is None else self.rows[rows]


def _map_file(path: Path, dtype: str) -> Array:
    if path.stat().st_size == 0:  # an empty file cannot be mapped
        return np.zeros(0, dtype)
    return np.memmap(path, dtype, "r").view(np.ndarray)  # slicing a plain array is ten times as fast


def open_store(folder: Path) -> TokenStore:
    """Open a token store; DataError if a file is missing or truncated, or the format is another."""
    remedy = "Delete the folder; it will be built again."
    try:
        facts = json.loads((folder / "store.json").read_bytes())
        if facts["format"] != FORMAT:
            raise DataError(f"the token store has format {facts['format']}, not {FORMAT}. {remedy}", folder)
        for name, size in facts["sizes"].items():
            actual = (folder / name).stat().st_size
            if actual != size:
                raise DataError(f"the file has {actual:,} bytes where {size:,} were written. {remedy}", folder / name)
        return TokenStore(folder, facts)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"the token store is incomplete ({error}). {remedy}", folder) from None
