"""Examples → the folder that a store is read from, pair by pair: memory does not grow with the corpus.

    example ─can it be used?→ ids of its sources and its target ─→ one row in each file of data/store/store.py

A folder is built aside, in `.tmp-…`, flushed and renamed when whole: a killed build leaves only a `.tmp-` folder, which
the next build removes. Pairs that cannot be used are counted by reason.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from dragoman.core.errors import DataError
from dragoman.core.formats import FORMAT
from dragoman.core.types import Example
from dragoman.data.objectives import Objective, unfit
from dragoman.data.store import store
from dragoman.data.store.store import Ids

if TYPE_CHECKING:
    from dragoman.text.codec import Codec

BUFFER = 1 << 20  # bytes written at once
LOCK = "lock"


def build(
    examples: Iterable[Example],
    codec: Codec,
    folder: Path,
    *,
    max_source: int,
    max_target: int,
    keep_text: bool,
    objective: Objective | None = None,
) -> store.Store:
    """Encode every usable pair into a new folder; where another process finished that folder first, it is used.

    For an objective that learns from single texts, the example's source is that text, and it is stored as a target.
    """
    try:
        with _workshop(folder) as place:
            _write(examples, codec, place, max_source, max_target, keep_text, objective)
            try:
                place.rename(folder)
            except OSError:
                if not folder.is_dir():
                    raise
            _sync(folder.parent)
    except OSError as error:
        raise DataError(
            f"the token store could not be built ({error}). Free some space or choose another cache folder.", folder
        ) from error
    return store.open(folder)


def _write(
    examples: Iterable[Example],
    codec: Codec,
    folder: Path,
    max_source: int,
    max_target: int,
    keep_text: bool,
    objective: Objective | None,
) -> None:
    """Fill a folder, pair by pair: memory does not grow with the corpus."""
    skipped: Counter[str] = Counter()
    with ExitStack() as files:
        sources = [files.enter_context(_Sources(folder, codec, "source"))]
        if codec.second_source is not None:
            sources.append(files.enter_context(_Sources(folder, codec, "second_source")))
        target = files.enter_context(_Writer(folder, "target", "ids", _dtype(len(codec.target))))
        texts = files.enter_context(_Writer(folder, "examples", "jsonl", "u1")) if keep_text else None
        lines = files.enter_context(open(folder / "lines", "wb", BUFFER))
        for example in examples:
            if objective is not None and not objective.paired:
                example = replace(example, source="", target=example.source)
            reason, said = _encode(example, codec, max_source, max_target, objective, sources)
            if reason:
                skipped[reason] += 1
                continue
            for source in sources:
                source.write()
            target.add(said)
            lines.write(example.line.to_bytes(8, "little"))
            if texts is not None:
                texts.add(_as_json(example))
    paths = sorted(path for path in folder.iterdir() if path.name != LOCK)
    for path in paths:
        _sync(path)
    facts = {
        "format": FORMAT,
        "rows": (folder / "lines").stat().st_size // 8,
        "skipped": dict(skipped),
        "max_source": max_source,
        "max_target": max_target,
        "keep_text": keep_text,
        "paired": objective is None or objective.paired,
        "dtypes": {source.name: source.dtype for source in sources} | {"target": _dtype(len(codec.target))},
        "width": sources[0].width,
        "sizes": {path.name: path.stat().st_size for path in paths},
    }
    if len(sources) > 1:
        facts["second_source"] = sources[1].width
    if unreadable := {name: problem for source in sources for name, problem in source.unreadable.items()}:
        facts["unreadable"] = [len(unreadable), next(iter(unreadable.values()))]
    (folder / "store.json").write_text(json.dumps(facts, indent=1), encoding="utf-8")
    _sync(folder / "store.json")


def _encode(
    example: Example,
    codec: Codec,
    max_source: int,
    max_target: int,
    objective: Objective | None,
    sources: Sequence[_Sources],
) -> tuple[str, list[int]]:
    """Why a pair cannot be used ('' where it can), and its target's ids; its sources wait to be written."""
    nothing: list[int] = []
    paired = objective is None or objective.paired
    if example.source_truncated:
        return "cut", nothing
    if paired and not all(source.named(example).strip() for source in sources):
        return "blank source", nothing
    if example.target is None or not example.target.strip():
        return "blank target" if paired else "blank", nothing
    found = [source.read(example) if paired else source.blank() for source in sources]
    if any(ids is None for ids in found):
        return "source cannot be read", nothing
    first, *others = [ids for ids in found if ids is not None]
    target = codec.encode_target(example.target, source=example.source)
    if any(len(ids) > max_source for ids in others):
        return "source too long", nothing
    reason = unfit(objective, first, target, max_source, max_target)
    return (reason, nothing) if reason else ("", target)


class _Sources:
    """One source of each pair, read and written. A file that pair after pair names is read and written once."""

    def __init__(self, folder: Path, codec: Codec, name: Literal["source", "second_source"]) -> None:
        second = None if isinstance(codec.second_source, str) else codec.second_source
        self.name, self.modality = name, codec.modality if name == "source" else second
        self.encode = codec.encode_source if name == "source" else codec.encode_second_source
        self.dtype = _dtype(len(codec.source)) if self.modality is None else self.modality.dtype
        self.width = None if self.modality is None else self.modality.width
        self.data = _Writer(folder, name, "ids", self.dtype)
        self.rows = None if self.modality is None else open(folder / f"{name}.rows", "wb", BUFFER)  # noqa: SIM115
        self.count = 0  # written so far
        self.file: tuple[str, str] | None = None  # read last
        self.found: Sequence[int] | Ids | None = []
        self.fresh = True  # whether what was found last has yet to be written
        self.unreadable: dict[tuple[str, str], str] = {}  # files that cannot be read, and why

    def named(self, example: Example) -> str:
        """The text, or the name of the file."""
        return example.source if self.name == "source" else example.second_source

    def blank(self) -> Sequence[int]:
        self.found, self.fresh = [], True
        return []

    def read(self, example: Example) -> Sequence[int] | Ids | None:
        """The ids or numbers; None where a file cannot be read."""
        file = (example.file, self.named(example))
        if self.modality is None or file != self.file:
            self.file, self.fresh = file, True
            try:
                self.found = self.encode(example)
            except DataError as error:
                if self.modality is None:
                    raise
                self.found = None
                self.unreadable.setdefault(file, str(error))
        return self.found

    def write(self) -> None:
        """Keep what was read last."""
        if self.fresh:
            assert self.found is not None
            self.data.add(self.found)
            self.count += 1
            self.fresh = self.modality is None
        if self.rows is not None:
            self.rows.write((self.count - 1).to_bytes(8, "little"))

    def __enter__(self) -> _Sources:
        return self

    def __exit__(self, *_: object) -> None:
        with self.data, self.rows or nullcontext():
            pass


def _dtype(vocabulary: int) -> str:
    return "<u2" if vocabulary <= 1 << 16 else "<i4"


def _as_json(example: Example) -> bytes:
    pair = [example.source, example.target, example.source_lang, example.target_lang]
    pair += [example.second_source] if example.second_source else []
    return json.dumps(pair, ensure_ascii=False).encode() + b"\n"


class _Writer:
    """Writes rows of any length as a store reads them."""

    def __init__(self, folder: Path, name: str, suffix: str, dtype: str) -> None:
        self.dtype, self.end = np.dtype(dtype), 0
        self.data = open(folder / f"{name}.{suffix}", "wb", BUFFER)  # noqa: SIM115 - closed in __exit__
        self.offsets = open(folder / f"{name}.offsets", "wb", BUFFER)  # noqa: SIM115
        self.offsets.write(self.end.to_bytes(8, "little"))

    def add(self, row: Sequence[int] | Ids | bytes) -> None:
        self.data.write(row if isinstance(row, bytes) else np.asarray(row, self.dtype).tobytes())
        self.end += len(row)
        self.offsets.write(self.end.to_bytes(8, "little"))

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, *_: object) -> None:
        with self.data, self.offsets:  # both are closed, even where flushing the first finds the disk full
            pass


# -- the folder in which a store is built ------------------------------------------------------------------------------


@contextmanager
def _workshop(folder: Path) -> Iterator[Path]:
    """A new `.tmp-` folder beside `folder`, removed afterwards if it is still there.

    It is locked as long as its process lives: that tells what killed builds left from what others are building now.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as held:
        with _locked(folder.parent / ".lock"):
            for leftover in folder.parent.glob(".tmp-*/"):
                with suppress(OSError), _locked(leftover / LOCK, wait=False) as dead:
                    if dead:
                        shutil.rmtree(leftover, ignore_errors=True)
            place = folder.parent / f".tmp-{folder.name}-{secrets.token_hex(4)}"
            place.mkdir()
            held.callback(shutil.rmtree, place, ignore_errors=True)
            held.enter_context(_locked(place / LOCK))
        yield place


@contextmanager
def _locked(file: Path, wait: bool = True) -> Iterator[bool]:
    """Hold a lock that ends with this process; yields whether it is held (some file systems have no locks)."""
    with open(file, "ab") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            held = True
        except OSError:
            held = False
        yield held


def _sync(path: Path) -> None:
    """Make sure that a file or folder is on the disk before something refers to it."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
