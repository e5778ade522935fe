"""The manifest of a model folder: kind and format, the size and the SHA-256 of every other file, and of itself.

    run folder ─best, last→ model folder ─manifest.json→ entries of files ─fingerprint→ what decides a model's results

This module does not import torch.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TypedDict

from dragoman.checkpoint import archive, model_paths
from dragoman.checkpoint.model_paths import FILE_NAME
from dragoman.core import files
from dragoman.core.errors import ModelError
from dragoman.core.formats import FORMAT, MAX_POINTER_BYTES, check_format, check_run_format
from dragoman.version import __version__

KIND = "dragoman model"  # in every manifest; those of earlier development versions lack it
COPY_AGAIN = "copy the whole model again"
MAX_MANIFEST_BYTES = 20_000  # a file's entry has 130


class FileEntry(TypedDict):
    """What the manifest says of a file."""

    bytes: int
    sha256: str


def resolve(path: Path) -> Path:
    """The model folder of a path: the path itself, or the best (else the last) checkpoint of a run.

    A packed model is a file, and is used as a folder: its files are ZIP/NAME.
    """
    model_paths.check_exists(path)
    if archive.is_archive(path):
        return path
    if not os.path.isdir(path):
        raise ModelError(f"{path}: is no model: neither a folder nor a zip that dragoman pack wrote")
    try:
        is_model = (path / "manifest.json").is_file()
    except PermissionError:
        raise ModelError(f"{path}: may not be read: permission denied; change its permissions, or copy it") from None
    if is_model:
        return path
    for pointer in ("best", "last"):
        name = read_pointer(path, pointer)
        if name is not None:
            check_run_format(path)
            folder = path / "checkpoints" / name
            if folder.is_symlink() or folder.parent.is_symlink():
                raise ModelError(f"{folder}: is a link; a run folder holds no links, copy the checkpoint into it")
            return folder
    if (path / "config.yaml").exists():
        raise ModelError(f"{path}: this run has no checkpoint yet; let it train until the first one is saved")
    runs = sorted(entry.name for entry in path.iterdir() if (entry / "config.yaml").is_file())
    hint = f"; it holds {', '.join(runs[:5])}{', …' if len(runs) > 5 else ''}: name one" if runs else ""
    raise ModelError(f"{path}: neither a model folder (no manifest.json) nor a run folder (no config.yaml){hint}")


def read_pointer(run: Path, pointer: str) -> str | None:
    """The name of the checkpoint that a run's pointer file (`best`, `last`) names; None if there is none."""
    try:
        name = files.read_plain(run / pointer, MAX_POINTER_BYTES).decode().strip()
    except (OSError, UnicodeDecodeError):
        return None
    return name if FILE_NAME.fullmatch(name) and (run / "checkpoints" / name).is_dir() else None


def read_manifest(folder: Path) -> dict[str, FileEntry]:
    """The files of a model, with sizes and checksums; ModelError if the manifest is damaged or of another format."""
    path = folder / "manifest.json"
    damaged = ModelError(f"{path}: checksum mismatch, the manifest was changed or damaged; {COPY_AGAIN}")
    with open_model_file(path) as (file, size):
        if size > MAX_MANIFEST_BYTES:
            raise ModelError(f"{path}: has {size:,} bytes, more than the {MAX_MANIFEST_BYTES:,} that are allowed")
        data = file.read(MAX_MANIFEST_BYTES)
    try:
        value = json.loads(data)
        if not isinstance(value, dict) or _with_digest(value) != data:
            raise damaged
    except (ValueError, RecursionError):
        raise damaged from None
    # Earlier development versions also wrote format 1, but no kind.
    check_format(value.get("format") if value.get("kind") == KIND else None, folder)
    entries: dict[str, FileEntry] | None = value.get("files")
    if not isinstance(entries, dict) or not all(map(is_entry, entries.values())):
        raise damaged
    return entries


def verify_checksums(folder: Path) -> None:
    """Raise ModelError unless every file of a model is as the manifest says; a training state may be missing."""
    for name, entry in read_manifest(folder).items():
        path = folder / name
        if not FILE_NAME.fullmatch(name) or (name.startswith("training.") and not os.path.lexists(path)):
            continue
        with open_model_file(path) as (file, size):
            if size != entry["bytes"]:
                raise ModelError(f"{path}: has {size:,} bytes, not {entry['bytes']:,}; {COPY_AGAIN}")
            check_digest(path, stream_digest(file), entry)


def is_entry(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("bytes"), int) and isinstance(value.get("sha256"), str)


def fingerprint(models: str | Path) -> str:
    """The SHA-256 of what decides a model's results: the checksums of its files, or of those of an ensemble's members.

    A copy of a model has the same, with or without its training state.
    """
    digests = [
        {name: entry["sha256"] for name, entry in read_manifest(resolve(Path(path))).items() if "training." not in name}
        for path in model_paths.parse_model_paths(models)
    ]
    return hashlib.sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest()


@contextmanager
def open_model_file(path: Path) -> Iterator[tuple[IO[bytes], int]]:
    """Open a file of a model folder, or of a packed model as ZIP/NAME, with its size; ModelError if it cannot be."""
    try:
        with files.explain_read_errors(path):
            if archive.is_archive(path.parent):
                with archive.open_member(path) as opened:
                    yield opened
            else:
                with files.open_plain(path) as file:
                    yield file, os.fstat(file.fileno()).st_size
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}; {COPY_AGAIN}") from None


def stream_digest(file: Any) -> str:
    return hashlib.file_digest(file, "sha256").hexdigest()


def check_digest(path: Path, digest: str, entry: FileEntry) -> None:
    if digest != entry["sha256"]:
        raise ModelError(f"{path}: checksum mismatch, the file was changed or damaged; {COPY_AGAIN}")


def build_manifest(contents: Mapping[str, bytes]) -> bytes:
    """The manifest.json for some files: their sizes and checksums."""
    return sign_entries({name: describe_file(data) for name, data in contents.items()})


def describe_file(data: bytes) -> FileEntry:
    """What the manifest says of a file with this content."""
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def sign_entries(entries: Mapping[str, FileEntry]) -> bytes:
    """The manifest.json that lists files by name."""
    return _with_digest({"kind": KIND, "format": FORMAT, "dragoman": __version__, "files": dict(entries)})


def _with_digest(value: Mapping[str, object]) -> bytes:
    """A manifest as JSON with the digest of its own content, in one canonical form: any edit is detected."""
    value = {key: item for key, item in value.items() if key != "sha256"}
    digest = hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
    return (json.dumps(value | {"sha256": digest}, indent=1, sort_keys=True) + "\n").encode()
