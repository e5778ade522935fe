"""The files of other programs' model folders: JSON and YAML within bounds, and weights that are read one at a time.

Only plain files of the folder are opened. Names in an index are names of files beside it, without any folder.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import safetensors
from torch import Tensor

from dragoman.checkpoint.streaming import LazyTensor
from dragoman.core import files
from dragoman.core.errors import ModelError

MAX_JSON_BYTES = 2**26  # a tokenizer.json may have 33 MB
MAX_MODEL_BYTES = 2**26  # of a sentencepiece model


def check_folder(folder: Path) -> None:
    """ModelError unless a path is a folder."""
    if not folder.is_dir():
        found = "is a file" if folder.exists() else "does not exist"
        raise ModelError(f"{folder}: {found}; name the folder that has the model's files")


def read_bytes(path: Path, limit: int = MAX_JSON_BYTES, needed_for: str = "") -> bytes:
    """The content of a plain file of bounded size; ModelError if it is missing or cannot be read."""
    try:
        return files.read_plain(path.resolve() if path.is_symlink() else path, limit)
    except FileNotFoundError:
        reason = f", which has {needed_for}" if needed_for else ""
        raise ModelError(f"{path}: is missing{reason}; copy the whole model folder") from None
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from None


def read_json(path: Path, needed_for: str = "") -> dict[str, Any]:
    """A JSON file with one object; ModelError otherwise."""
    try:
        value = json.loads(read_bytes(path, needed_for=needed_for))
    except (ValueError, RecursionError):
        raise ModelError(f"{path}: is not valid JSON; copy the file again") from None
    if not isinstance(value, dict):
        raise ModelError(f"{path}: holds no JSON object; copy the file again")
    return value


def read_optional_json(path: Path) -> dict[str, Any]:
    """A JSON file with one object; {} if there is none."""
    return read_json(path) if path.exists() else {}


def open_safetensors(paths: Mapping[str, Path] | Path, reopen: bool = False) -> dict[str, LazyTensor]:
    """The weights of one or several safetensors files by name, memory-mapped: each is read when it is loaded.

    Files stay mapped, and what was read counts as memory of the process; with `reopen` each tensor is mapped anew.
    """
    found: dict[str, LazyTensor] = {}
    every = [paths] if isinstance(paths, Path) else dict.fromkeys(paths.values())
    for path in every:
        read_header_bounds(path)
        try:
            file: Any = safetensors.safe_open(path, framework="pt")
            names = list(file.keys())
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in names}
        except (safetensors.SafetensorError, OSError, ValueError) as error:
            first = str(error).splitlines()[0][:100]
            raise ModelError(f"{path}: is no whole safetensors file ({first}); copy it again") from None
        for name in names:
            if isinstance(paths, Path) or paths.get(name) == path:
                load = partial(_load_from, path, name) if reopen else partial(_load, file, name)
                found[name] = LazyTensor(shapes[name], load)
    if missing := [name for name in ([] if isinstance(paths, Path) else paths) if name not in found]:
        raise ModelError(f"{next(iter(every))}: lacks the tensor {missing[0]}, which the index lists; copy the folder")
    return found


def _load(file: Any, name: str) -> Tensor:
    x: Tensor = file.get_tensor(name)
    return x


def _load_from(path: Path, name: str) -> Tensor:
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            return _load(file, name)
    except (safetensors.SafetensorError, OSError) as error:
        reason = str(error).splitlines()[0][:100]
        raise ModelError(f"{path}: changed while it was read ({reason}); import it again") from None


def read_header_bounds(path: Path) -> None:
    """ModelError unless a file is plain and its header is not longer than itself, before anything is mapped."""
    try:
        with files.open_plain(path.resolve() if path.is_symlink() else path) as file:
            size = int.from_bytes(file.read(8), "little")
            file.seek(0, 2)
            if size > file.tell() - 8:
                raise ModelError(f"{path}: is cut off, or no safetensors file; copy it again")
    except FileNotFoundError:
        raise ModelError(f"{path}: is missing; copy the whole model folder") from None
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from None


def open_weights(folder: Path, trust_pickle: bool = False) -> dict[str, LazyTensor]:
    """The weights of a Hugging Face folder: model.safetensors, its shards, or with trust_pickle pytorch_model.bin."""
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.exists():
        return open_safetensors(single, reopen=True)
    if index.exists():
        shards = read_json(index).get("weight_map")
        if not isinstance(shards, dict) or not all(isinstance(name, str) for name in shards.values()):
            raise ModelError(f"{index}: has no weight_map; copy the file again")
        for name in shards.values():
            if Path(name).name != name or name in ("", "..") or not name.isprintable():
                raise ModelError(f"{index}: names a file in another folder, {name[:60]!r}; that is not read")
        return open_safetensors({key: folder / name for key, name in shards.items()}, reopen=True)
    pickles = sorted(folder.glob("pytorch_model*.bin"))
    if pickles:
        from dragoman.interop.importers.pickles import open_pickles

        return open_pickles(pickles, trust_pickle)
    raise ModelError(f"{folder}: has no model.safetensors; copy the whole model folder")
