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
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dragoman.core import files
from dragoman.core.errors import DataError
from dragoman.core.formats import FORMAT
from dragoman.core.types import Example

Array = NDArray[Any]  # ids, or (S, F) numbers of a modality, in any dtype
Rows = NDArray[np.int64]  # row numbers, or lengths

MAX_FACTS_BYTES = 2**16  # of store.json, which has 1,000: a stranger's must not fill our memory

Count = Annotated[int, Ge(0)]
Width = Annotated[int, Ge(1)] | None  # numbers at each position of a source; None: it is text, with ids
Dtype = Annotated[str, Field(pattern=r"^[<|][iuf][1248]$")]


class StoreFacts(BaseModel):
    """The content of store.json."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    format: int
    rows: Count
    skipped: dict[str, Count]  # pairs that were left out, by reason
    unreadable: tuple[Count, str] | None = None  # files, and what is wrong with the first
    max_source: Count
    max_target: Count
    keep_text: bool
    paired: bool
    dtypes: dict[str, Dtype]  # of source, target and second_source
    width: Width
    second_source: Width = None  # its width; there is none unless the key is there
    sizes: dict[str, Count]  # of every other file, in bytes


class TokenStore:
    """N pairs of id sequences in memory-mapped files; pickled as its path."""

    def __init__(self, folder: Path, facts: StoreFacts) -> None:
        self.folder = folder
        self.skipped, self.unreadable = facts.skipped, facts.unreadable
        self.max_source, self.max_target = facts.max_source, facts.max_target
        self.keeps_text, self.is_paired = facts.keep_text, facts.paired
        self.lines = _map_file(folder / "lines", "<i8")
        dtypes = facts.dtypes
        self.sources = RaggedArray(folder, "source", "ids", dtypes["source"], facts.width)
        self.targets = RaggedArray(folder, "target", "ids", dtypes["target"])
        self.second_sources = None
        if "second_source" in facts.model_fields_set:
            second = dtypes["second_source"], facts.second_source
            self.second_sources = RaggedArray(folder, "second_source", "ids", *second)
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
    with files.open_plain(path) as file:
        if file.seek(0, os.SEEK_END) == 0:  # an empty file cannot be mapped
            return np.zeros(0, dtype)
        return np.memmap(file, dtype, "r").view(np.ndarray)  # slicing a plain array is ten times as fast


def open_store(folder: Path) -> TokenStore:
    """Open a token store; DataError if a file is missing or truncated, or the format is another."""
    remedy = "Delete the folder; it will be built again."
    try:
        facts = _read_facts(folder / "store.json", remedy)
        for name, size in facts.sizes.items():
            actual = (folder / name).stat().st_size
            if actual != size:
                raise DataError(f"the file has {actual:,} bytes where {size:,} were written. {remedy}", folder / name)
        return TokenStore(folder, facts)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise DataError(f"store.json is damaged ({where}: {first['msg']}). {remedy}", folder) from None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(f"the token store is incomplete ({error}). {remedy}", folder) from None


def _read_facts(path: Path, remedy: str) -> StoreFacts:
    data = files.read_plain(path, MAX_FACTS_BYTES)
    if (found := json.loads(data)["format"]) != FORMAT:
        raise DataError(f"the token store has format {found!r:.20}, not {FORMAT}. {remedy}", path.parent)
    return StoreFacts.model_validate_json(data)
