"""Weights in numpy's .npz files, read one at a time: a zip of .npy files, of which none may hold Python objects.

What a file claims is checked before anything is read: a header's shape against its own length, and all of them against
the file's size, so that a small file cannot ask for much memory.
"""

from __future__ import annotations

import math
import zipfile
import zlib
from pathlib import Path

import numpy as np
import torch
from numpy.lib import format as npy
from torch import Tensor

from dragoman.checkpoint.streaming import LazyTensor
from dragoman.core import files
from dragoman.core.errors import ModelError

MAX_MEMBERS = 100_000
MAX_HEADER_BYTES = 2**16
MAX_COMPRESSION = 32  # weights are nearly random: a file that claims more of itself is no model
KINDS = "fiu"


def open_npz(path: Path) -> dict[str, LazyTensor]:
    """The arrays of an .npz file by name; ModelError if it is damaged, or claims more than it can hold."""
    found: dict[str, LazyTensor] = {}
    try:
        with files.open_plain(path.resolve()) as file, zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            file.seek(0, 2)
            claimed = sum(member.file_size for member in members)
            if len(members) > MAX_MEMBERS or claimed > MAX_COMPRESSION * file.tell() + MAX_HEADER_BYTES:
                raise ModelError(f"{path}: claims {claimed:,} bytes in {file.tell():,}; it is no model, or damaged")
            for member in members:
                name = member.filename.removesuffix(".npy")
                found[name] = LazyTensor(_read_shape(archive, member), _Loader(path, member.filename))
    except FileNotFoundError:
        raise ModelError(f"{path}: does not exist") from None
    except (zipfile.BadZipFile, zlib.error, ValueError, EOFError, NotImplementedError, RuntimeError) as error:
        raise _damaged(path, error) from None
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror or error}") from None
    return found


def _damaged(path: Path, error: Exception) -> ModelError:
    first = (str(error).splitlines() or [type(error).__name__])[0][:100]
    return ModelError(f"{path}: is no whole .npz file ({first}); copy it again")


def _read_header(archive: zipfile.ZipFile, name: str) -> tuple[tuple[int, ...], bool, np.dtype, int]:
    """Shape, whether columns come first, type, and the bytes before the values; ValueError if it is not an array."""
    with archive.open(name) as file:
        version = npy.read_magic(file)
        read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}.get(version)
        if read is None:
            raise ValueError(f"{name} has version {version}")
        shape, by_columns, dtype = read(file)
        return shape, by_columns, dtype, file.tell()


def _read_shape(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> tuple[int, ...]:
    shape, _, dtype, header = _read_header(archive, member.filename)
    if dtype.kind not in KINDS:
        raise ValueError(f"{member.filename[:60]} is of type {str(dtype)[:20]}, not of numbers")
    if any(n < 0 for n in shape) or header + math.prod(shape) * dtype.itemsize != member.file_size:
        raise ValueError(f"{member.filename[:60]} has {member.file_size:,} bytes, which are not {str(shape)[:60]}")
    return tuple(int(n) for n in shape)


class _Loader:
    """Reads one array when it is called."""

    def __init__(self, path: Path, member: str) -> None:
        self.path, self.member = path, member

    def __call__(self) -> Tensor:
        try:
            with files.open_plain(self.path.resolve()) as file, zipfile.ZipFile(file) as archive:
                shape, by_columns, dtype, header = _read_header(archive, self.member)
                with archive.open(self.member) as member:
                    member.read(header)
                    size = math.prod(shape) * dtype.itemsize
                    data = member.read(size + 1)  # and one more, for the checksum to be read and checked
        except (zipfile.BadZipFile, zlib.error, ValueError, EOFError, OSError) as error:
            raise _damaged(self.path, error) from None
        if len(data) != size:
            raise _damaged(self.path, ValueError(f"{self.member} is cut off"))
        values = np.frombuffer(data, dtype).astype(dtype.newbyteorder("="))
        return torch.from_numpy(values.reshape(shape, order="F" if by_columns else "C").copy())
