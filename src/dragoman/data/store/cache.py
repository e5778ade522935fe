"""The cache of token stores: open the store of a corpus if it exists, else build it.

    folder = hash of (contents of the files, codec, length limits, options of reading, objective)

The folder's name is a hash of everything that its content depends on, so any change leads to
another folder. Files are identified by their SHA-256, which `hashes.json` caches by path, size and
time: a large file is read once. A store of images or audio contains their pixels and frames, so the
hash covers the files that a corpus names, too.
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
from typing import TYPE_CHECKING

from dragoman.core.errors import DataError
from dragoman.core.formats import FORMAT
from dragoman.core.types import Example
from dragoman.data.objectives import Objective
from dragoman.data.store import store as stores
from dragoman.data.store.builder import build_store
from dragoman.data.store.store import TokenStore

if TYPE_CHECKING:
    from dragoman.text.codec import Codec

Hashes = dict[str, tuple[int, int, str]]  # path: (size, modification time in ns, SHA-256)

MIN_FILE_AGE = 2 * 10**9  # ns: a file modified more recently may change again within the same timestamp


def hash_files(files: Sequence[Path], cache: Path) -> str:
    """The SHA-256 over the contents of some files, in order; cached for each file."""
    known = _load_hashes(cache / "hashes.json")
    fresh: Hashes = {}
    digests = []
    for file in files:
        path = str(Path(file).absolute())
        stamp = _size_and_time(path)
        digest = known[path][2] if path in known and known[path][:2] == stamp else None
        if digest is None:
            digest = _hash_file(path)
            if time.time_ns() - stamp[1] > MIN_FILE_AGE:
                fresh[path] = (*stamp, digest)
        digests.append(digest)
    if fresh:
        _save_hashes(known | fresh, cache)
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()


def hash_many_files(files: Sequence[str], cache: Path) -> str:
    """The SHA-256 over the contents of many small files, cached as one: all are read again if one of them changed.

    100,000 cached files take a second and one line in hashes.json. An unreadable file counts as empty.
    """
    stamps = [_size_and_time(file) for file in files]
    listed = json.dumps([os.getcwd(), list(files), stamps])
    name = f"{len(files)} files: {hashlib.sha256(listed.encode()).hexdigest()}"
    known = _load_hashes(cache / "hashes.json")
    if name in known:
        return known[name][2]
    digests = [_hash_file_or_empty(file) for file in files]
    digest = hashlib.sha256("\n".join(digests).encode()).hexdigest()
    newest = max((time_ns for _, time_ns in stamps), default=0)
    if files and all(digests) and time.time_ns() - newest > MIN_FILE_AGE:
        _save_hashes(known | {name: (len(files), newest, digest)}, cache)
    return digest


def _size_and_time(path: str) -> tuple[int, int]:
    """Size and modification time (ns) of a file, the key of its cached hash; DataError if it cannot be read."""
    try:
        status = os.stat(path)
    except OSError as error:
        raise DataError(f"the file cannot be read ({error.strerror})", path) from None
    return status.st_size, status.st_mtime_ns


def _hash_file(path: str) -> str:
    """The SHA-256 of a file; DataError if it cannot be read."""
    try:
        with open(path, "rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"the file cannot be read ({error.strerror})", path) from None


def _hash_file_or_empty(path: str) -> str:
    """The SHA-256 of a file; "" if it cannot be read."""
    try:
        return _hash_file(path)
    except DataError:
        return ""


def _load_hashes(file: Path) -> Hashes:
    """The cached hashes; {} if the file is missing or damaged."""
    try:
        known = json.loads(file.read_bytes())
        return {path: (int(size), int(time_ns), str(digest)) for path, (size, time_ns, digest) in known.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _save_hashes(hashes: Hashes, cache: Path) -> None:
    """Replace hashes.json atomically; not flushed to the disk, since a damaged file only costs time."""
    temporary = cache / f".tmp-hashes.json-{secrets.token_hex(4)}"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(hashes, indent=1), encoding="utf-8")
        temporary.replace(cache / "hashes.json")
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise DataError(f"the cache folder cannot be written ({error.strerror})", cache) from None


def open_or_build(
    files: Sequence[Path],
    examples: Callable[[], Iterable[Example]],
    codec: Codec,
    cache: Path,
    *,
    max_source: int,
    max_target: int,
    keep_text: bool,
    read_key: str = "",
    objective: Objective | None = None,
) -> TokenStore:
    """Open the token store of a corpus, or build it if the cache does not have it; DataError if it is empty.

    `examples` must depend only on the contents of `files` and on `read_key`, a text with all other
    options that decide which examples there are and which are kept: the reader with its options,
    the objective with its options.
    """
    depends = [FORMAT, hash_files(files, cache), codec.fingerprint, max_source, max_target, keep_text, read_key]
    folder = cache / hashlib.sha256(json.dumps(depends).encode()).hexdigest()[:24]
    store = _open_existing(folder)
    if store is None:
        store = build_store(
            examples(),
            codec,
            folder,
            max_source=max_source,
            max_target=max_target,
            keep_text=keep_text,
            objective=objective,
        )
    if not len(store):
        raise DataError(_empty_store_reason(store), files[0] if files else None)
    return store


def _open_existing(folder: Path) -> TokenStore | None:
    """The store in a folder, or None if there is none; a damaged one is removed."""
    if not folder.exists():
        return None
    try:
        return stores.open_store(folder)
    except DataError as damage:
        temporary = folder.with_name(f".tmp-{folder.name}-{secrets.token_hex(4)}")
        try:
            folder.rename(temporary)
        except OSError:
            raise damage from None
        shutil.rmtree(temporary, ignore_errors=True)
        return None


def _empty_store_reason(store: TokenStore) -> str:
    """Why a store has no pairs: there were none, or all were left out, and for which reasons."""
    total = sum(store.skipped.values())
    if not total:
        return "there is no pair in it. A pair is a source and a target."
    return f"no pair is left to use, all {total:,} were left out: {store.skip_summary}"
