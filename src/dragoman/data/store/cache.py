"""The cache of token stores: open the store of a corpus if it exists, else build it.

    folder = hash of (contents of the files, codec, length limits, options of reading, objective)

The folder's name is a hash of everything that its content depends on, so any change leads to
another folder. Files are identified by their SHA-256, which `hashes.json` caches by paths, sizes and
times: a large file is read once. A store of images or audio contains their pixels and frames, so the
hash covers the files that a corpus names, too.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from dragoman.core.errors import DataError, RunError
from dragoman.core.files import read_plain, remove_folder, write_output
from dragoman.core.formats import FORMAT
from dragoman.core.types import Example
from dragoman.data.objectives import Objective, Pairs
from dragoman.data.store import store as stores
from dragoman.data.store.builder import build_store
from dragoman.data.store.store import TokenStore
from dragoman.text.codec import Codec

Hashes = dict[str, tuple[int, int, str]]  # a list of files: (their number, newest modification time in ns, SHA-256)

MAX_HASHES_BYTES = 2**24  # of hashes.json, where a corpus has 150: a hundred thousand of them
MIN_FILE_AGE = 2 * 10**9  # ns: a file modified more recently may change again within the same timestamp


def hash_files(files: Sequence[str | Path], cache: Path) -> str:
    """The SHA-256 over the contents of some files, cached as one: all are read again if one of them changed."""
    names = [str(file) for file in files]
    stamps = [_size_and_time(name) for name in names]
    listed = json.dumps([os.getcwd(), names, stamps])
    key = f"{len(files)} files: {hashlib.sha256(listed.encode()).hexdigest()}"
    known = _load_hashes(cache / "hashes.json")
    if key in known:
        return known[key][2]
    digests = [_hash_file(name) for name in names]
    digest = hashlib.sha256("\n".join(digests).encode()).hexdigest()
    newest = max((time_ns for _, time_ns in stamps), default=0)
    if files and all(digests) and time.time_ns() - newest > MIN_FILE_AGE:
        known[key] = len(files), newest, digest
        write_output(cache / "hashes.json", json.dumps(known, indent=1).encode())
    return digest


def _size_and_time(path: str) -> tuple[int, int]:
    try:
        status = os.stat(path)
    except OSError as error:
        raise DataError(f"the file cannot be read ({error.strerror})", path) from None
    return status.st_size, status.st_mtime_ns


def _hash_file(path: str) -> str:
    try:
        with open(path, "rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest()
    except OSError as error:
        if error.errno in (errno.EIO, errno.EMFILE, errno.ENFILE, errno.ESTALE):  # the next time it may be readable
            raise DataError(f"the file cannot be read ({error.strerror})", path) from None
        return ""


def _load_hashes(file: Path) -> Hashes:
    """The digests that are known; none if the file cannot be read: they are worth time, not an error."""
    try:
        known = json.loads(read_plain(file, MAX_HASHES_BYTES))
        return {path: (int(size), int(time_ns), str(digest)) for path, (size, time_ns, digest) in known.items()}
    except (OSError, RunError, ValueError, TypeError, AttributeError, RecursionError):
        return {}


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
    objective: Objective = Pairs(),
) -> TokenStore:
    """Open the token store of a corpus, or build it if the cache does not have it; DataError if it is empty.

    `read_key` names all options, of reader and objective, that decide which examples are kept.
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
        total = sum(store.skipped.values())
        reason = "there is no pair in it. A pair is a source and a target."
        if total:
            reason = f"no pair is left to use, all {total:,} were left out: {store.skip_summary}"
        raise DataError(reason, files[0] if files else None)
    return store


def _open_existing(folder: Path) -> TokenStore | None:
    if not folder.exists():
        return None
    try:
        return stores.open_store(folder)
    except DataError as damage:
        try:
            remove_folder(folder)
        except OSError:
            raise damage from None
        return None
