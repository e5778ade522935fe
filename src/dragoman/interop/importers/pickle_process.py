"""The process that reads pickled weights: `python -I pickle_process.py`, with a request in JSON as its only argument.

It imports nothing of ours. Before a pickle is opened it limits its memory, time and file size, and from then on every
event that Python audits ends it, but for those that reading weights needs: no file is opened but the pickle, for
reading; no module is imported; no socket, process, link or folder is made. torch's reader for weights alone
(weights_only) builds tensors, numbers, texts and plain containers, and calls nothing else that a pickle names.

It writes a safetensors file to a descriptor that it was given. The plain values that were asked for go into its header.
What is wrong is one line on its standard output and exit code 3.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import struct
import sys
from typing import Any

WRONG = 3
EXTRA_MEMORY = 2**30  # bytes beyond the interpreter with torch and some times the file
MEMORY_FACTOR = 4  # of the file's size
MAX_GROWTH = 4  # how many times the file the tensors in it may be: tied ones are written twice
MAX_DEPTH = 8
MAX_TENSORS = 100_000
MAX_VALUES_BYTES = 2**26
CHUNK_VALUES = 1 << 22
ALLOWED_EVENTS = {"pickle.find_class", "mmap.__new__", "object.__getattr__", "object.__setattr__", "builtins.id"}


class Wrong(Exception):
    """What is wrong with a pickle, as the end of a sentence."""


def main() -> None:
    request: dict[str, Any] = json.loads(sys.argv[1])
    sys.path.extend(request["sys_path"])
    import torch
    from torch import serialization

    output = os.fdopen(request["output"], "wb")
    if request["namespaces"]:
        import argparse

        serialization.add_safe_globals([argparse.Namespace])
    warm_up(torch)
    size = sum(os.stat(path).st_size for path in request["paths"])
    set_limits(size)
    paths = {os.path.realpath(path) for path in request["paths"]}
    seal(paths)
    tensors: dict[str, Any] = {}
    values: dict[str, Any] = {}
    try:
        for path in request["paths"]:
            loaded = load(torch, path)
            values |= plain_values(torch, loaded, request["values"])
            collect(torch, loaded, "", tensors, request["skip"], 0)
        write(torch, output, tensors, values, size)
    except Wrong as error:
        stop(str(error))
    except MemoryError:
        stop("needs more memory than its size allows")
    except RecursionError:
        stop("is nested too deeply")
    except Exception as error:  # of torch's reader, which raises what it likes
        stop(explain(str(error)))
    output.close()
    leave(0)


def stop(message: str) -> None:
    """Say what is wrong, and end."""
    line = "".join(c if c.isprintable() else " " for c in message)[:300]
    sys.stdout.buffer.write(line.encode("ascii", errors="replace") + b"\n")
    sys.stdout.flush()
    leave(WRONG)


def leave(code: int) -> None:
    """End without any cleanup: nothing that a pickle left behind runs."""
    os._exit(code)


def warm_up(torch: Any) -> None:
    """Let torch import what it imports late: after sealing it cannot."""
    for zipped in (True, False):
        buffer = io.BytesIO()
        weights = {
            "a": torch.zeros(2),
            "b": torch.zeros(1, dtype=torch.bfloat16),
            "c": torch.nn.Parameter(torch.ones(1)),
        }
        torch.save(weights, buffer, _use_new_zipfile_serialization=zipped)
        buffer.seek(0)
        torch.load(buffer, weights_only=True, map_location="cpu")
    torch.zeros(2).to(torch.float16).view(torch.uint8).numpy().tobytes()
    with contextlib.suppress(Exception):  # whatever it says, it has imported what it needs to say it
        torch.load(io.BytesIO(b"no pickle"), weights_only=True, map_location="cpu")


def set_limits(size: int) -> None:
    """Limit memory, processor time, the size of what is written, open files and core dumps."""
    with open("/proc/self/statm", "rb") as file:
        used = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    for limit, value in (
        (resource.RLIMIT_AS, used + MEMORY_FACTOR * size + EXTRA_MEMORY),
        (resource.RLIMIT_CPU, 120 + size // 2**24),
        (resource.RLIMIT_FSIZE, MAX_GROWTH * size + 2 * MAX_VALUES_BYTES),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(limit)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(limit, (value, value))


def seal(paths: set[str]) -> None:
    """End the process at the first audited event that reading weights does not need."""

    def refuse(event: str, arguments: tuple[Any, ...]) -> None:
        if event in ALLOWED_EVENTS:
            return
        if event == "open":
            path, mode, flags = (*arguments, None, None)[:3]
            reads = (mode is None or set(str(mode)) <= set("rb")) and not int(flags or 0) & (os.O_WRONLY | os.O_RDWR)
            if reads and isinstance(path, str) and os.path.realpath(path) in paths:
                return
        stop(f"asks for something that no weights need ({event})")

    sys.addaudithook(refuse)


def load(torch: Any, path: str) -> Any:
    """The content of a pickle: tensors and plain values."""
    with open(path, "rb") as file:
        is_zip = file.read(4) == b"PK\x03\x04"
    # A zip is mapped, so that memory holds a tensor only while it is written.
    return torch.load(path, map_location="cpu", weights_only=True, mmap=True if is_zip else None)


def plain_values(torch: Any, loaded: Any, names: list[str]) -> dict[str, Any]:
    """The entries of these names as JSON; what is no number, text or container is left out."""

    def plain(value: Any, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise Wrong("is nested too deeply")
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        if isinstance(value, dict):
            return {str(k): plain(v, depth + 1) for k, v in value.items() if isinstance(k, (str, int))}
        if isinstance(value, (list, tuple)):
            return [plain(v, depth + 1) for v in value]
        if type(value).__name__ == "Namespace":
            return plain(dict(vars(value)), depth + 1)
        return None

    return {name: plain(loaded[name], 0) for name in names if isinstance(loaded, dict) and name in loaded}


def collect(torch: Any, value: Any, name: str, tensors: dict[str, Any], skip: list[str], depth: int) -> None:
    """Gather the tensors of nested dictionaries; names of levels are joined by slashes."""
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided or value.is_quantized or value.is_meta:
            raise Wrong(f"has a tensor '{name[:60]}' of a kind that cannot be imported")
        tensors[name] = value.detach()
        if len(tensors) > MAX_TENSORS:
            raise Wrong("has too many tensors")
    elif isinstance(value, dict):
        if depth > MAX_DEPTH:
            raise Wrong("is nested too deeply")
        for key, item in value.items():
            if isinstance(key, str) and not (depth == 0 and key in skip):
                collect(torch, item, f"{name}/{key}" if name else key, tensors, skip, depth + 1)


def write(torch: Any, output: Any, tensors: dict[str, Any], values: dict[str, Any], size: int) -> None:
    """Write a safetensors file, one tensor after the other."""
    if not tensors:
        raise Wrong("holds no tensors")
    names = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
    names |= {torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8"}
    names |= {torch.bool: "BOOL"}
    text = json.dumps(values)
    if len(text) > MAX_VALUES_BYTES:
        raise Wrong("has more settings than a model can have")
    header: dict[str, Any] = {"__metadata__": {"values": text}}
    end = 0
    for name, x in tensors.items():
        if x.dtype not in names:
            raise Wrong(f"has a tensor '{name[:60]}' of type {str(x.dtype)[:20]}, which cannot be imported")
        start, end = end, end + x.numel() * x.element_size()
        header[name] = {"dtype": names[x.dtype], "shape": list(x.shape), "data_offsets": [start, end]}
        if end > MAX_GROWTH * size:
            raise Wrong("claims more numbers than it can hold")
    data = json.dumps(header).encode()
    data += b" " * (-len(data) % 8)
    output.write(struct.pack("<Q", len(data)) + data)
    for x in tensors.values():
        flat = x.reshape(-1)
        for start in range(0, flat.numel(), CHUNK_VALUES):
            part = flat[start : start + CHUNK_VALUES].contiguous()
            output.write(part.view(torch.uint8).numpy().tobytes() if part.dim() else b"")
    output.flush()


def explain(message: str) -> str:
    """torch's reason as the end of a sentence."""
    for begin in (
        "Unsupported global: GLOBAL ",
        "unsupported GLOBAL ",
        "Unsupported class ",
        "Trying to call reduce for unrecognized function ",
    ):
        if begin in message:
            name = message.split(begin, 1)[1].split(" ", 1)[0].strip("`'\"")[:80]
            return f"asks for {name}, which no weights need"
    first = (message.splitlines() or [""])[0][:120]
    return f"cannot be read ({first})"


if __name__ == "__main__":
    main()
