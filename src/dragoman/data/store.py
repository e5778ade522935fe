"""The token ids of a corpus in memory-mapped files: built once, then read by any number of processes.

    examples ─codec→ ids ─build→ folder ─open→ Store          prepare = open what is there, else build it

A folder holds, for N pairs (all numbers little-endian):

    source.ids  target.ids           ids one pair after another; 16 bits where the vocabulary fits, else 32
    source.offsets  target.offsets   N + 1 places: the ids of pair i are ids[offsets[i] : offsets[i + 1]]
                                     (where the source is no text: F numbers at each place instead of one id)
    source.rows                      where the source is no text, N numbers: whose source in source.offsets a pair has,
                                     so that an image with five captions is there once
    second.ids, .offsets, .rows      a second source, as the first
    lines                            N line numbers in the user's file
    examples.jsonl  (and .offsets)   the texts and languages, only where subwords are to be sampled
    store.json                       version, counts, and the size of every file, so that a truncated one is noticed
    lock                             empty; held by the process that builds the folder

The name of a folder is a hash of all that its content depends on, so nothing in it ever changes. It is built aside and
renamed when whole: a killed build leaves only a `.tmp-` folder, which the next build removes.
"""

from __future__ import annotations

import builtins
import fcntl
import hashlib
import json
import os
import secrets
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from dragoman.core.errors import DataError
from dragoman.core.interfaces import Example
from dragoman.data.objectives import Objective

if TYPE_CHECKING:
    from dragoman.text.codec import Codec

VERSION = 1
BUFFER = 1 << 20  # bytes written at once
SETTLED = 2 * 10**9  # ns: a file changed more recently may change again without its time showing it

Ids = NDArray[Any]


class Store:
    """N pairs of id sequences, read where they lie. It travels to another process as its path."""

    def __init__(self, folder: Path, facts: dict[str, Any]) -> None:
        self.folder = folder
        self.skipped: dict[str, int] = facts["skipped"]
        self.max_source, self.max_target = int(facts["max_source"]), int(facts["max_target"])
        self.keeps_text, self.paired = bool(facts["keep_text"]), bool(facts.get("paired", True))
        self.lines = _map(folder / "lines", "<i8")
        shared = _map(folder / "source.rows", "<i8") if facts.get("width") is not None else None
        self._source = _Rows(folder, "source", "ids", facts["dtypes"]["source"], facts.get("width"), shared)
        self._target = _Rows(folder, "target", "ids", facts["dtypes"]["target"])
        self._second = None
        if (width := facts.get("second", "none")) != "none":
            shared = _map(folder / "second.rows", "<i8") if width is not None else None
            self._second = _Rows(folder, "second", "ids", facts["dtypes"]["second"], width, shared)
        self._examples = _Rows(folder, "examples", "jsonl", "u1") if self.keeps_text else None

    def __len__(self) -> int:
        return len(self.lines)

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (self.folder,)

    def source(self, i: int) -> Ids:
        return self._source[i]

    def target(self, i: int) -> Ids:
        return self._target[i]

    def second(self, i: int) -> Ids | None:
        """The second source, where there is one."""
        return None if self._second is None else self._second[i]

    @property
    def two(self) -> bool:
        """Whether there is a second source."""
        return self._second is not None

    def sources(self, rows: NDArray[np.int64]) -> tuple[Ids, NDArray[np.int64]]:
        """The ids of some rows, one after another, and how many each has."""
        return self._source.together(rows)

    def targets(self, rows: NDArray[np.int64]) -> tuple[Ids, NDArray[np.int64]]:
        return self._target.together(rows)

    def seconds(self, rows: NDArray[np.int64]) -> tuple[Ids, NDArray[np.int64]]:
        assert self._second is not None
        return self._second.together(rows)

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
        return source if self._second is None else np.maximum(source, self._second.lengths(rows)), target

    def example(self, i: int) -> Example:
        """The texts and languages of a pair."""
        if self._examples is None:
            raise ValueError(f"{self.folder} was built without texts")
        source, target, source_lang, target_lang, *more = json.loads(self._examples[i].tobytes())
        second = more[0] if more else ""
        return Example(source, target, source_lang, target_lang, line=int(self.lines[i]), second=second)


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


# -- opening and building ----------------------------------------------------------------------------------------------


def open(folder: Path) -> Store:
    """A store that was built before; DataError where a file of it is missing or has not its size."""
    remedy = "Delete the folder; it will be built again."
    try:
        facts = json.loads((folder / "store.json").read_bytes())
        if facts["version"] != VERSION:
            raise DataError(f"the token store has version {facts['version']}, not {VERSION}. {remedy}", folder)
        for name, size in facts["sizes"].items():
            found = (folder / name).stat().st_size
            if found != size:
                raise DataError(f"the file has {found:,} bytes where {size:,} were written. {remedy}", folder / name)
        return Store(folder, facts)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"this is not a whole token store ({error}). {remedy}", folder) from None


def build(
    examples: Iterable[Example],
    codec: Codec,
    folder: Path,
    *,
    max_source: int,
    max_target: int,
    keep_text: bool,
    objective: Objective | None = None,
) -> Store:
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
    return open(folder)


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
        if codec.second is not None:
            sources.append(files.enter_context(_Sources(folder, codec, "second")))
        target = files.enter_context(_Writer(folder, "target", "ids", _dtype(len(codec.target))))
        texts = files.enter_context(_Writer(folder, "examples", "jsonl", "u1")) if keep_text else None
        lines = files.enter_context(builtins.open(folder / "lines", "wb", BUFFER))
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
        "version": VERSION,
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
        facts["second"] = sources[1].width
    _write_aside(folder / "store.json", facts)


def _encode(
    example: Example,
    codec: Codec,
    max_source: int,
    max_target: int,
    objective: Objective | None,
    sources: Sequence[_Sources],
) -> tuple[str, list[int]]:
    """Why a pair cannot be used ('' where it can), and its target's ids; its sources wait to be written.

    Limits count all ids of a side, tags and </s> too.
    """
    nothing: list[int] = []
    paired = objective is None or objective.paired
    if example.cut:
        return "cut", nothing
    if paired and not all(source.named(example).strip() for source in sources):
        return "blank source", nothing
    if example.target is None or not example.target.strip():
        return "blank target" if paired else "blank", nothing
    found = [source.read(example) if paired else source.blank() for source in sources]
    if any(ids is None for ids in found):
        return "source cannot be read", nothing
    source = found[0] if found[0] is not None else []
    target = codec.encode_target(example.target, source=example.source)
    if any(len(ids) > max_source for ids in found if ids is not None):
        return "source too long", nothing
    if len(target) > (max_target if paired else min(max_source, max_target)):  # a text may stand on either side
        return "target too long" if paired else "too long", nothing
    if objective is None or objective.trivial:
        return "", target
    if problem := objective.problem(source, target):
        return problem, nothing
    longest = objective.lengths(np.array([len(source)]), np.array([len(target)]))
    if int(longest[0][0]) > max_source or int(longest[1][0]) > max_target:
        return "too long", nothing
    return "", target


class _Sources:
    """One source of each pair, read and written. A file that pair after pair names is read and written once."""

    def __init__(self, folder: Path, codec: Codec, name: Literal["source", "second"]) -> None:
        second = None if isinstance(codec.second, str) else codec.second
        self.name, self.medium = name, codec.medium if name == "source" else second
        self.encode = codec.encode_source if name == "source" else codec.encode_second
        self.dtype = _dtype(len(codec.source)) if self.medium is None else self.medium.dtype
        self.width = None if self.medium is None else self.medium.width
        self.data = _Writer(folder, name, "ids", self.dtype)
        self.rows = None if self.medium is None else builtins.open(folder / f"{name}.rows", "wb", BUFFER)  # noqa: SIM115
        self.count = 0  # written so far
        self.file: tuple[str, str] | None = None  # read last
        self.found: Sequence[int] | Ids | None = []
        self.fresh = True  # whether what was found last has yet to be written

    def named(self, example: Example) -> str:
        """The text, or the name of the file."""
        return example.source if self.name == "source" else example.second

    def blank(self) -> Sequence[int]:
        self.found, self.fresh = [], True
        return []

    def read(self, example: Example) -> Sequence[int] | Ids | None:
        """The ids or numbers; None where a file cannot be read."""
        file = (example.file, self.named(example))
        if self.medium is None or file != self.file:
            self.file, self.fresh = file, True
            try:
                self.found = self.encode(example)
            except DataError:
                if self.medium is None:
                    raise
                self.found = None
        return self.found

    def write(self) -> None:
        """Keep what was read last."""
        if self.fresh:
            assert self.found is not None
            self.data.add(self.found)
            self.count += 1
            self.fresh = self.medium is None
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
    pair += [example.second] if example.second else []
    return json.dumps(pair, ensure_ascii=False).encode() + b"\n"


class _Writer:
    """Writes what _Rows reads."""

    def __init__(self, folder: Path, name: str, suffix: str, dtype: str) -> None:
        self.dtype, self.end = np.dtype(dtype), 0
        self.data = builtins.open(folder / f"{name}.{suffix}", "wb", BUFFER)  # noqa: SIM115 - closed in __exit__
        self.offsets = builtins.open(folder / f"{name}.offsets", "wb", BUFFER)  # noqa: SIM115
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

LOCK = "lock"


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
    with builtins.open(file, "ab") as handle:
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


def _write_aside(path: Path, value: Any) -> None:
    """Replace a JSON file by another, whole or not at all."""
    aside = path.with_name(f".tmp-{path.name}-{secrets.token_hex(4)}")
    try:
        aside.write_text(json.dumps(value, indent=1), encoding="utf-8")
        _sync(aside)
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


# -- the cache ---------------------------------------------------------------------------------------------------------


def fingerprint(files: Sequence[Path], cache: Path) -> str:
    """SHA-256 over the contents of some files, in their order; a large file is read once and remembered."""
    known = _known(cache / "hashes.json")
    fresh, digests = {}, []
    for file in files:
        path = str(Path(file).absolute())
        try:
            stamp = [os.stat(path).st_size, os.stat(path).st_mtime_ns]
            digest = known[path][2] if path in known and known[path][:2] == stamp else None
            if digest is None:
                with builtins.open(path, "rb") as content:
                    digest = hashlib.file_digest(content, "sha256").hexdigest()
                if time.time_ns() - stamp[1] > SETTLED:
                    fresh[path] = [*stamp, digest]
        except OSError as error:
            raise DataError(f"the file cannot be read ({error.strerror})", file) from None
        digests.append(digest)
    if fresh:
        try:
            cache.mkdir(parents=True, exist_ok=True)
            _write_aside(cache / "hashes.json", known | fresh)
        except OSError as error:
            raise DataError(f"the cache folder cannot be written ({error.strerror})", cache) from None
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()


def _known(file: Path) -> dict[str, list[Any]]:
    """The digests of earlier runs: {path: [size, time in ns, digest]}; a damaged file is as good as none."""
    try:
        known = json.loads(file.read_bytes())
        return {path: [int(size), int(time_ns), str(digest)] for path, (size, time_ns, digest) in known.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def prepare(
    files: Sequence[Path],
    examples: Callable[[], Iterable[Example]],
    codec: Codec,
    cache: Path,
    *,
    max_source: int,
    max_target: int,
    keep_text: bool,
    reading: str = "",
    objective: Objective | None = None,
) -> Store:
    """The store of a corpus: opened where the cache has it, built where not.

    `examples` must be a function of the contents of `files` and of `reading`, which names whatever else decides what
    comes out of them (the kind of reader, its options, languages given in the config).
    """
    depends = [VERSION, fingerprint(files, cache), codec.fingerprint, max_source, max_target, keep_text, reading]
    folder = cache / hashlib.sha256(json.dumps(depends).encode()).hexdigest()[:24]
    store = _whole(folder)
    if store is None:
        store = build(
            examples(),
            codec,
            folder,
            max_source=max_source,
            max_target=max_target,
            keep_text=keep_text,
            objective=objective,
        )
    if not len(store):
        raise DataError(_nothing_left(store), files[0] if files else None)
    return store


def _whole(folder: Path) -> Store | None:
    """The store in a folder, if it is there and whole; a damaged one is moved out of the way and removed."""
    if not folder.exists():
        return None
    try:
        return open(folder)
    except DataError as damage:
        aside = folder.with_name(f".tmp-{folder.name}-{secrets.token_hex(4)}")
        try:
            folder.rename(aside)
        except OSError:
            raise damage from None
        shutil.rmtree(aside, ignore_errors=True)
        return None


def _nothing_left(store: Store) -> str:
    total = sum(store.skipped.values())
    if not total:
        return "there is no pair in it. A pair is a source and a target."
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in sorted(store.skipped.items()))
    return (
        f"no pair is left to use: all {total:,} were skipped ({reasons}; "
        f"at most {store.max_source:,} source and {store.max_target:,} target tokens are allowed)."
    )
