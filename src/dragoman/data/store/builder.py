"""Build a token store from examples, pair by pair: memory does not grow with the corpus.

    example ─check→ ids of its sources and its target ─→ one row in each file of data/store/store.py

A folder is built as `.tmp-…`, flushed and renamed when complete. A killed build leaves only a
`.tmp-` folder, which the next build removes. Pairs that cannot be used are counted by reason.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, Literal

import numpy as np

from dragoman.core.errors import DataError
from dragoman.core.formats import FORMAT
from dragoman.core.types import Example
from dragoman.data.objectives import Objective, Pairs, training_blocker
from dragoman.data.store import store
from dragoman.data.store.store import Array
from dragoman.text.codec import Codec

BUFFER_SIZE = 1 << 20  # bytes written at once
LOCK_FILE = "lock"

CreateFile = Callable[[str], IO[bytes]]


def build_store(
    examples: Iterable[Example],
    codec: Codec,
    folder: Path,
    *,
    max_source: int,
    max_target: int,
    keep_text: bool,
    objective: Objective = Pairs(),
) -> store.TokenStore:
    """Encode every usable pair into a new folder and open it; if another process finished it first, that one.

    For an objective of single texts, the source of an example is its text, which is stored as a target.
    """
    try:
        with _temporary_folder(folder) as temporary:
            _write_store(examples, codec, temporary, max_source, max_target, keep_text, objective)
            try:
                temporary.rename(folder)
            except OSError:
                if not folder.is_dir():
                    raise
            _flush_to_disk(folder.parent)
    except OSError as error:
        raise DataError(
            f"the token store could not be built ({error}). Free some space or choose another cache folder.", folder
        ) from error
    return store.open_store(folder)


def _write_store(
    examples: Iterable[Example],
    codec: Codec,
    folder: Path,
    max_source: int,
    max_target: int,
    keep_text: bool,
    objective: Objective,
) -> None:
    skipped: Counter[str] = Counter()
    with ExitStack() as files:

        def create(name: str) -> IO[bytes]:
            return files.enter_context(open(folder / name, "wb", BUFFER_SIZE))

        sources = [_SourceWriter(create, codec, "source")]
        if codec.second_source is not None:
            sources.append(_SourceWriter(create, codec, "second_source"))
        target = _RaggedWriter(create, "target", "ids", _id_dtype(len(codec.target)))
        texts = _RaggedWriter(create, "examples", "jsonl", "u1") if keep_text else None
        lines = create("lines")
        for example in examples:
            if not objective.is_paired:
                example = replace(example, source="", target=example.source)
            reason, target_ids = _encode(example, codec, max_source, max_target, objective, sources)
            if reason:
                skipped[reason] += 1
                continue
            for source in sources:
                source.write()
            target.add(target_ids)
            lines.write(example.line.to_bytes(8, "little"))
            if texts is not None:
                texts.add(_as_json(example))
    paths = sorted(path for path in folder.iterdir() if path.name != LOCK_FILE)
    for path in paths:
        _flush_to_disk(path)
    facts = {
        "format": FORMAT,
        "rows": (folder / "lines").stat().st_size // 8,
        "skipped": dict(skipped),
        "max_source": max_source,
        "max_target": max_target,
        "keep_text": keep_text,
        "paired": objective.is_paired,
        "dtypes": {source.name: source.dtype for source in sources} | {"target": _id_dtype(len(codec.target))},
        "width": sources[0].width,
        "sizes": {path.name: path.stat().st_size for path in paths},
    }
    if len(sources) > 1:
        facts["second_source"] = sources[1].width
    if unreadable := {name: problem for source in sources for name, problem in source.unreadable.items()}:
        facts["unreadable"] = [len(unreadable), next(iter(unreadable.values()))]
    (folder / "store.json").write_text(json.dumps(facts, indent=1), encoding="utf-8")
    _flush_to_disk(folder / "store.json")


def _encode(
    example: Example,
    codec: Codec,
    max_source: int,
    max_target: int,
    objective: Objective,
    sources: Sequence[_SourceWriter],
) -> tuple[str, list[int]]:
    """Why a pair cannot be used ('' if it can), and its target ids; the source writers keep its sources."""
    nothing: list[int] = []
    paired = objective.is_paired
    if example.source_truncated:
        return "truncated", nothing
    if paired and not all(source.text(example).strip() for source in sources):
        return "blank source", nothing
    if example.target is None or not example.target.strip():
        return "blank target" if paired else "blank", nothing
    encoded = [source.read(example) if paired else source.blank() for source in sources]
    if any(ids is None for ids in encoded):
        return "source cannot be read", nothing
    first, *others = [ids for ids in encoded if ids is not None]
    target = codec.encode_target(example)
    if any(len(ids) > max_source for ids in others):
        return "source too long", nothing
    reason = training_blocker(objective, first, target, max_source, max_target)
    return (reason, nothing) if reason else ("", target)


class _SourceWriter:
    """Reads and writes one source of each pair. A file that consecutive pairs name is read and written once."""

    def __init__(self, create: CreateFile, codec: Codec, name: Literal["source", "second_source"]) -> None:
        second = None if isinstance(codec.second_source, str) else codec.second_source
        self.name, self.modality = name, codec.modality if name == "source" else second
        self.encode = codec.encode_source if name == "source" else codec.encode_second_source
        self.dtype = _id_dtype(len(codec.source)) if self.modality is None else self.modality.dtype
        self.width = None if self.modality is None else self.modality.width
        self.data = _RaggedWriter(create, name, "ids", self.dtype)
        self.rows = None if self.modality is None else create(f"{name}.rows")
        self.count = 0  # sources written so far
        self.last_file: tuple[str, str] | None = None
        self.last_ids: Sequence[int] | Array | None = []
        self.is_unwritten = True  # whether last_ids has yet to be written
        self.unreadable: dict[tuple[str, str], str] = {}  # files that cannot be read, and why

    def text(self, example: Example) -> str:
        return example.source if self.name == "source" else example.second_source

    def blank(self) -> Sequence[int]:
        """Make an empty source the next to write, and return it: for an objective of single texts."""
        self.last_ids, self.is_unwritten = [], True
        return []

    def read(self, example: Example) -> Sequence[int] | Array | None:
        """The ids or numbers of a source, kept for `write`; None if its file cannot be read."""
        file = (example.file, self.text(example))
        if self.modality is None or file != self.last_file:
            self.last_file, self.is_unwritten = file, True
            try:
                self.last_ids = self.encode(example)
            except DataError as error:
                if self.modality is None:
                    raise
                self.last_ids = None
                self.unreadable.setdefault(file, str(error))
        return self.last_ids

    def write(self) -> None:
        """Write what was read last, once, and its row for the pair if sources are files."""
        if self.is_unwritten:
            assert self.last_ids is not None
            self.data.add(self.last_ids)
            self.count += 1
            self.is_unwritten = self.modality is None
        if self.rows is not None:
            self.rows.write((self.count - 1).to_bytes(8, "little"))


def _id_dtype(vocabulary_size: int) -> str:
    return "<u2" if vocabulary_size <= 1 << 16 else "<i4"


def _as_json(example: Example) -> bytes:
    pair = [example.source, example.target, example.source_lang, example.target_lang]
    pair += [example.second_source] if example.second_source else []
    return json.dumps(pair, ensure_ascii=False).encode() + b"\n"


class _RaggedWriter:
    """Writes rows of any length, end to end, and their offsets."""

    def __init__(self, create: CreateFile, name: str, suffix: str, dtype: str) -> None:
        self.dtype, self.end = np.dtype(dtype), 0
        self.data, self.offsets = create(f"{name}.{suffix}"), create(f"{name}.offsets")
        self.offsets.write(self.end.to_bytes(8, "little"))

    def add(self, row: Sequence[int] | Array | bytes) -> None:
        self.data.write(row if isinstance(row, bytes) else np.asarray(row, self.dtype).tobytes())
        self.end += len(row)
        self.offsets.write(self.end.to_bytes(8, "little"))


@contextmanager
def _temporary_folder(folder: Path) -> Iterator[Path]:
    """Create a locked `.tmp-` folder beside `folder`, removed afterwards unless renamed; remove unlocked ones."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        with _locked(folder.parent / ".lock"):
            for leftover in folder.parent.glob(".tmp-*/"):
                with suppress(OSError), _locked(leftover / LOCK_FILE, wait=False) as is_leftover:
                    if is_leftover:
                        shutil.rmtree(leftover, ignore_errors=True)
            temporary = folder.parent / f".tmp-{folder.name}-{secrets.token_hex(4)}"
            temporary.mkdir()
            stack.callback(shutil.rmtree, temporary, ignore_errors=True)
            stack.enter_context(_locked(temporary / LOCK_FILE))
        yield temporary


@contextmanager
def _locked(file: Path, wait: bool = True) -> Iterator[bool]:
    """Hold an exclusive file lock; yields whether it was obtained (not if held and `wait` is false, or unsupported)."""
    with open(file, "ab") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            held = True
        except OSError:
            held = False
        yield held


def _flush_to_disk(path: Path) -> None:
    """Flush a file or folder to the disk before something refers to it."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
