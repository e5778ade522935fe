"""Token stores are built once: the store of a corpus is opened where it is already there, and built where not.

    folder = hash of (contents of the files, codec, limits, how they are read, for what)   prepare = open or build it

The name of a folder says all that its content depends on, so a change in any of it leads to another folder. What the
files contain is known by their SHA-256, remembered in `hashes.json` by path, size and time: a large file is read once.
A store of images or sounds has their very pixels and frames, so the files that a corpus names count as the corpus does.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.core.errors import DataError
from dragoman.core.formats import FORMAT
from dragoman.core.types import Example
from dragoman.data.objectives import Objective
from dragoman.data.store import store as stores
from dragoman.data.store.builder import build
from dragoman.data.store.store import Store

if TYPE_CHECKING:
    from dragoman.text.codec import Codec

SETTLED = 2 * 10**9  # ns: a file changed more recently may change again without its time showing it


def fingerprint(files: Sequence[Path], cache: Path) -> str:
    """SHA-256 over the contents of some files, in their order; a large file is read once and remembered."""
    known = _known(cache / "hashes.json")
    fresh, digests = {}, []
    for file in files:
        path = str(Path(file).absolute())
        stamp = _stamp(path)
        digest = known[path][2] if path in known and known[path][:2] == stamp else None
        if digest is None:
            digest = _digest(path)
            if time.time_ns() - stamp[1] > SETTLED:
                fresh[path] = [*stamp, digest]
        digests.append(digest)
    if fresh:
        _remember(known | fresh, cache)
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()


def fingerprint_of_many(files: Sequence[str], cache: Path) -> str:
    """The same of small files, however many: they are remembered as one, and all are read again when one has changed.

    100,000 that were seen before take a second, and one line in hashes.json. One that cannot be read holds nothing.
    """
    stamps = [_stamp(file) for file in files]
    listed = json.dumps([os.getcwd(), list(files), stamps])
    name = f"{len(files)} files: {hashlib.sha256(listed.encode()).hexdigest()}"
    known = _known(cache / "hashes.json")
    if name in known:
        return str(known[name][2])
    digests = [_digest_or_nothing(file) for file in files]
    digest = hashlib.sha256("\n".join(digests).encode()).hexdigest()
    newest = max((time_ns for _, time_ns in stamps), default=0)
    if files and all(digests) and time.time_ns() - newest > SETTLED:
        _remember(known | {name: [len(files), newest, digest]}, cache)
    return digest


def _stamp(path: str) -> list[int]:
    """Size and time of a file: while they stay, so does what it holds."""
    try:
        found = os.stat(path)
    except OSError as error:
        raise DataError(f"the file cannot be read ({error.strerror})", path) from None
    return [found.st_size, found.st_mtime_ns]


def _digest(path: str) -> str:
    try:
        with open(path, "rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"the file cannot be read ({error.strerror})", path) from None


def _digest_or_nothing(path: str) -> str:
    try:
        return _digest(path)
    except DataError:
        return ""


def _known(file: Path) -> dict[str, list[Any]]:
    """The digests of earlier runs: {path: [size, time in ns, digest]}; a damaged file is as good as none."""
    try:
        known = json.loads(file.read_bytes())
        return {path: [int(size), int(time_ns), str(digest)] for path, (size, time_ns, digest) in known.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _remember(digests: dict[str, list[Any]], cache: Path) -> None:
    """Replace what was known, whole or not at all; not flushed to the disk, since a damaged file is as good as none."""
    aside = cache / f".tmp-hashes.json-{secrets.token_hex(4)}"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        aside.write_text(json.dumps(digests, indent=1), encoding="utf-8")
        aside.replace(cache / "hashes.json")
    except OSError as error:
        with suppress(OSError):
            aside.unlink()
        raise DataError(f"the cache folder cannot be written ({error.strerror})", cache) from None


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
    comes out of them (the kind of reader, its options) and which of them are kept (the objective and its options).
    """
    depends = [FORMAT, fingerprint(files, cache), codec.fingerprint, max_source, max_target, keep_text, reading]
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
        return stores.open(folder)
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
    return f"no pair is left to use, all {total:,} were left out: {store.why_skipped}"
