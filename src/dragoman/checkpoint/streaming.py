"""Writes a model folder whose weights need not fit into memory together: one tensor after another.

The library safetensors writes a file from all its tensors at once, so the file's format is written by hand here:

    8 bytes: n    n bytes: {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, …}    the tensors
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from dragoman.checkpoint.model_folder import WEIGHTS, FileEntry, describe_file, sign_entries
from dragoman.config import Config
from dragoman.core import files
from dragoman.core.errors import ModelError
from dragoman.text.codec import Codec

ALIGNMENT = 8  # of the first tensor in the file
CHUNK_VALUES = 1 << 22  # values that are written at once


class LazyTensor(NamedTuple):
    """A tensor that is read, or computed, when it is written."""

    shape: tuple[int, ...]
    load: Callable[[], Tensor]

    @classmethod
    def of(cls, x: Tensor) -> LazyTensor:
        return cls(tuple(x.shape), lambda: x)


def save_model(
    folder: Path,
    config: Config,
    weights: Mapping[str, LazyTensor],
    codec: Codec,
    extra: Mapping[str, bytes],
    state: Mapping[str, Mapping[str, LazyTensor]] = {},
) -> None:
    """Write a model folder atomically, its weights in float32 and one at a time; `extra` are further files.

    `state` are further safetensors files, which are written in the same way, after the weights.
    """
    contents = {"config.yaml": config.to_yaml().encode(), **codec.to_files(), **extra}
    large = {WEIGHTS: weights, **state}
    numbers = sum(math.prod(x.shape) for tensors in large.values() for x in tensors.values())
    with files.new_folder(folder, sum(map(len, contents.values())) + 4 * numbers) as temporary:
        entries = {name: describe_file(data) for name, data in contents.items()}
        for name, tensors in large.items():
            entries[name] = write_weights(temporary / name, tensors, check_finite=name == WEIGHTS)
        for name, data in {**contents, "manifest.json": sign_entries(entries)}.items():
            (temporary / name).write_bytes(data)
        for path in temporary.iterdir():
            files.flush_to_disk(path)


def write_weights(path: Path, weights: Mapping[str, LazyTensor], check_finite: bool = True) -> FileEntry:
    """Write a safetensors file in float32; returns its size and SHA-256."""
    header: dict[str, object] = {}
    end = 0
    for name, x in weights.items():
        start, end = end, end + 4 * math.prod(x.shape)
        header[name] = {"dtype": "F32", "shape": list(x.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    digest, size = hashlib.sha256(), 0
    with path.open("xb") as file:
        for data in (struct.pack("<Q", len(text)), text):
            digest.update(data)
            size += file.write(data)
        for name, x in weights.items():
            values = x.load()
            if tuple(values.shape) != tuple(x.shape):
                raise ModelError(f"{name}: is {tuple(values.shape)} where {tuple(x.shape)} was announced")
            flat = values.detach().reshape(-1)
            for start in range(0, flat.numel(), CHUNK_VALUES):
                part = flat[start : start + CHUNK_VALUES].to(torch.float32).contiguous()
                if check_finite and not torch.isfinite(part).all():
                    raise ModelError(f"{name}: has values that are not finite; the file it comes from is damaged")
                data = part.numpy().tobytes()
                digest.update(data)
                size += file.write(data)
    return {"bytes": size, "sha256": digest.hexdigest()}
