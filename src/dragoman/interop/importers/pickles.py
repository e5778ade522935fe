"""Weights in Python pickles (pytorch_model.bin, OpenNMT-py's .pt), read by a process that can do nothing else.

    pickle ─pickle_process.py→ a safetensors file without a name ─→ tensors

A pickle is a program. It is refused unless the user trusts it; and then it is still read by a reader that calls nothing
but what builds tensors, in a process of its own, whose memory, time and access to everything else are limited.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from dragoman.checkpoint.streaming import LazyTensor
from dragoman.core import files
from dragoman.core.errors import ModelError
from dragoman.interop.importers import checkpoint_files
from dragoman.interop.importers.pickle_process import WRONG

PROGRAM = Path(__file__).with_name("pickle_process.py")
ZIP_SLACK = 2**20  # bytes that a zip may claim beyond its own size: torch stores members as they are
TIMEOUT = 1800  # seconds
MAX_MEMBERS = 200_000


def open_pickles(paths: Sequence[Path], trust_pickle: bool) -> dict[str, LazyTensor]:
    """The tensors of pickled state dicts by name; ModelError unless the user trusts them, and if one is damaged."""
    return read_pickles(paths, trust_pickle)[0]


def read_pickles(
    paths: Sequence[Path],
    trust_pickle: bool,
    *,
    values: Sequence[str] = (),
    skip: Sequence[str] = (),
    namespaces: bool = False,
) -> tuple[dict[str, LazyTensor], dict[str, Any]]:
    """The tensors of pickles, nested names joined by slashes, and the plain `values` of the top level by name.

    `skip` are entries of the top level whose tensors are not needed; `namespaces` allows argparse's.
    """
    for path in paths:
        check_file(path)
    if not trust_pickle:
        raise ModelError(
            f"{paths[0]}: is a pickle, which may hold a program; if you trust who made it, give --trust-pickle "
            "(it is read by a process that can do nothing else)"
        )
    with tempfile.TemporaryDirectory(prefix="dragoman-pickle-") as folder:
        result = Path(folder) / "weights.safetensors"
        request = {
            "paths": [str(path.resolve()) for path in paths],
            "values": list(values),
            "skip": list(skip),
            "namespaces": namespaces,
            "sys_path": [str(Path(torch.__file__).parents[1])],
        }
        run_process(paths[0], request, result, folder)
        tensors = checkpoint_files.open_safetensors(result)  # mapped: the file may go
        found = read_values(result)
    return tensors, found


def check_file(path: Path) -> None:
    """ModelError unless a file is plain, and claims no more than it has."""
    try:
        with files.open_plain(path.resolve()) as file:
            size = file.seek(0, 2)
            file.seek(0)
            if file.read(4) != b"PK\x03\x04":
                return
            with zipfile.ZipFile(file) as archive:
                members = archive.infolist()
                claimed = sum(member.file_size for member in members)
                if len(members) > MAX_MEMBERS or claimed > size + ZIP_SLACK:
                    raise ModelError(f"{path}: claims {claimed:,} bytes in {size:,}; it is no model, or damaged")
    except FileNotFoundError:
        raise ModelError(f"{path}: does not exist") from None
    except (zipfile.BadZipFile, NotImplementedError, ValueError, EOFError):
        raise ModelError(f"{path}: is cut off or damaged; copy it again") from None
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror or error}") from None


def run_process(path: Path, request: dict[str, Any], result: Path, folder: str) -> None:
    """Run the process that converts pickles; ModelError with its reason if it fails."""
    output = os.open(result, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        done = subprocess.run(
            [sys.executable, "-I", str(PROGRAM), json.dumps({**request, "output": output})],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            pass_fds=[output],
            cwd=folder,
            env={"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "LC_ALL": "C.UTF-8", "HOME": folder},
            start_new_session=True,
            timeout=TIMEOUT,
        )
    except subprocess.TimeoutExpired:
        raise ModelError(
            f"{path}: could not be read within {TIMEOUT // 60} minutes; it is damaged, or no model"
        ) from None
    finally:
        os.close(output)
    if done.returncode == WRONG:
        reason = done.stdout.decode("ascii", errors="replace").strip().splitlines()
        raise ModelError(f"{path}: {reason[0][:300] if reason else 'cannot be read'}; it is not imported")
    if done.returncode:
        raise ModelError(
            f"{path}: reading it needs more memory or time than its size allows; it is damaged, or no model"
        )


def read_values(path: Path) -> dict[str, Any]:
    """The plain values in the header of what the process wrote."""
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    values: dict[str, Any] = json.loads(header["__metadata__"]["values"])
    return values
