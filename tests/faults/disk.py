"""The file calls of this process below one folder: listed, recorded, or made to fail.

    with interpose(folder, hook):   # hook(call) may raise an OSError, or return how many bytes of a write to take
        ...

Python's own functions are replaced, not the kernel's: what a library opens by itself (safetensors) is not seen.
"""

from __future__ import annotations

import builtins
import errno
import fcntl
import io
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Call:
    """One call: its kind, the path it is about, and what else a recording needs."""

    kind: str  # open, create, read, write, sync, rename, mkdir, remove, list, lock, truncate, mode
    path: str
    target: str = ""  # of a rename
    data: bytes = b""  # of a write …
    offset: int = 0  # … and where
    flags: int = 0  # of an open

    @property
    def label(self) -> str:
        """Kind and name; without numbers, which differ from process to process."""
        return f"{self.kind} {re.sub(NUMBERS, '', os.path.basename(self.path))}"


Hook = Callable[[Call], int | None]

NUMBERS = r"[0-9a-f]{8,}|\d+"

# What may happen to a call of each kind, besides nothing.
FAULTS = {
    "open": ("EIO", "EMFILE", "slow", "kill"),
    "create": ("ENOSPC", "full", "EIO", "EMFILE", "slow", "kill"),
    "read": ("EIO",),
    "write": ("ENOSPC", "full", "EIO", "short", "slow", "kill"),
    "sync": ("ENOSPC", "EIO", "slow", "kill"),
    "rename": ("ENOSPC", "EIO", "kill"),
    "mkdir": ("ENOSPC", "full", "EIO", "kill"),
    "remove": ("EIO", "kill"),
    "list": ("EIO", "EMFILE"),
    "lock": ("EIO",),
    "truncate": ("ENOSPC", "EIO", "kill"),
    "mode": ("EIO",),
}
SLOW_S = 0.02
KILLED = 137


class Fault:
    """A hook that lets one call of a process fail: the n-th, counted from 0; `expected` is what call that must be."""

    def __init__(self, n: int, kind: str, expected: str | None = None) -> None:
        self.n, self.kind, self.expected, self.calls = n, kind, expected, 0

    def __call__(self, call: Call) -> int | None:
        self.calls += 1
        if self.calls == self.n + 1 and self.expected not in (None, call.label):
            raise AssertionError(f"call {self.n} is '{call.label}', not '{self.expected}'")
        if self.kind == "full" and self.calls > self.n and call.kind in ("create", "write", "mkdir"):  # and stays so
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), None if call.kind == "write" else call.path)
        if self.calls != self.n + 1 or self.kind == "full":
            return None
        if self.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.kind == "slow":
            time.sleep(SLOW_S)
            return None
        if self.kind == "short":
            return max(len(call.data) // 2, 1)
        number = getattr(errno, self.kind)
        # As of the kernel: a call with a descriptor knows no name.
        name = None if call.kind in ("read", "write", "sync", "lock", "truncate") else call.path
        raise OSError(number, os.strerror(number), name)


@contextmanager
def interpose(folder: Path, hook: Hook) -> Iterator[None]:
    """Call `hook` before each file call below `folder` inside the block."""
    root = os.path.realpath(folder)
    real = {name: getattr(os, name) for name in dir(os) if callable(getattr(os, name))}
    real_open, real_flock = builtins.open, fcntl.flock

    def resolve(path: Any, dir_fd: int | None = None) -> str | None:
        """The absolute path of a path or descriptor, without its last link; None unless it is below the folder."""
        try:
            if isinstance(path, int):
                found = real["readlink"](f"/proc/self/fd/{path}")
            else:
                base = "" if dir_fd is None else real["readlink"](f"/proc/self/fd/{dir_fd}")
                parent, name = os.path.split(os.path.join(base, os.fsdecode(path)))
                found = os.path.join(os.path.realpath(parent), name)
        except (OSError, TypeError, ValueError):
            return None
        return found if found == root or found.startswith(root + "/") else None

    def call(kind: str, path: Any, dir_fd: int | None = None, **more: Any) -> int | None:
        found = resolve(path, dir_fd)
        return None if found is None else hook(Call(kind, found, **more))

    class RawFile(io.FileIO):
        """A file whose reads and writes go through the hook."""

        def write(self, data: Any, /) -> int:
            data = bytes(data)
            end = os.fstat(self.fileno()).st_size if "a" in self.mode else self.tell()
            taken = call("write", self.fileno(), data=data, offset=end)
            return super().write(data if taken is None else data[:taken])

        def readinto(self, buffer: Any, /) -> int:
            call("read", self.fileno())
            return super().readinto(buffer)

        def readall(self) -> bytes:
            call("read", self.fileno())
            return super().readall()

        def truncate(self, size: int | None = None, /) -> int:
            size = self.tell() if size is None else size
            call("truncate", self.fileno(), offset=size)
            return super().truncate(size)

    def open_kind(flags: int) -> str:
        return "create" if flags & os.O_CREAT else "open"

    def patched_open(
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,
        opener: Any = None,
    ) -> Any:
        if resolve(file) is None:
            return real_open(file, mode, buffering, encoding, errors, newline, closefd, opener)
        plain = mode.replace("b", "").replace("t", "")
        if not isinstance(file, int) and opener is None:
            flags = os.O_RDONLY if plain == "r" else os.O_CREAT | (os.O_TRUNC if "w" in plain else 0)
            call(open_kind(flags), file, flags=flags)
        raw = RawFile(file, plain, closefd, opener)
        if buffering == 0:
            return raw
        size = io.DEFAULT_BUFFER_SIZE if buffering <= 1 else buffering
        buffered: Any
        if "+" in plain:
            buffered = io.BufferedRandom(raw, size)
        else:
            buffered = io.BufferedReader(raw, size) if plain == "r" else io.BufferedWriter(raw, size)
        if "b" in mode:
            return buffered
        text = io.TextIOWrapper(buffered, io.text_encoding(encoding), errors, newline, line_buffering=buffering == 1)
        text.mode = mode  # type: ignore[misc]
        return text

    def patched_os_open(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        call(open_kind(flags), path, dir_fd, flags=flags)
        return real["open"](path, flags, mode, dir_fd=dir_fd)

    def patched_os_write(handle: int, data: Any, /) -> int:
        data = bytes(data)
        taken = call("write", handle, data=data, offset=os.lseek(handle, 0, os.SEEK_CUR) if resolve(handle) else 0)
        return real["write"](handle, data if taken is None else data[:taken])

    def renamer(name: str) -> Callable[..., None]:
        def rename(old: Any, new: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None) -> None:
            call("rename", old, src_dir_fd, target=resolve(new, dst_dir_fd) or "")
            real[name](old, new, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

        return rename

    def simple(name: str, kind: str) -> Callable[..., Any]:
        def run(path: Any = ".", *args: Any, dir_fd: int | None = None, **options: Any) -> Any:
            call(kind, path, dir_fd, offset=args[0] if kind == "truncate" else 0)
            options |= {} if dir_fd is None else {"dir_fd": dir_fd}
            return real[name](path, *args, **options)

        return run

    def patched_flock(file: Any, operation: int, /) -> None:
        call("lock", file if isinstance(file, int) else file.fileno())
        real_flock(file, operation)

    kinds = {"fsync": "sync", "fdatasync": "sync", "mkdir": "mkdir", "unlink": "remove", "remove": "remove"}
    kinds |= {"rmdir": "remove", "scandir": "list", "listdir": "list", "ftruncate": "truncate", "truncate": "truncate"}
    kinds |= {"fchmod": "mode", "chmod": "mode", "fchown": "mode", "chown": "mode"}
    patched = {name: simple(name, kind) for name, kind in kinds.items()}
    patched |= {"open": patched_os_open, "write": patched_os_write}
    patched |= {name: renamer(name) for name in ("rename", "replace")}
    try:
        for name, function in patched.items():
            setattr(os, name, function)
        builtins.open = io.open = patched_open  # type: ignore[assignment]
        fcntl.flock = patched_flock
        yield
    finally:
        for name in patched:
            setattr(os, name, real[name])
        builtins.open = io.open = real_open
        fcntl.flock = real_flock
