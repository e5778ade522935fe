"""The calls on sockets and pipes of whole processes: counted, or made to fail (preload/sockets.c).

A call site is a process (the first one, or those it starts), a call, and what it is on. The C code sees every call of
every library, torch's store and gloo included; this module tells it, through a file that both have mapped, which call
fails. A process that commands are forked from has imported everything, so that each begins within milliseconds.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from .commands import Finished
from .shims import compile_shim

# In the order of preload/sockets.c.
CALLS = ("accept", "connect", "recv", "send", "read", "write", "socket", "pipe", "wait")
OBJECTS = ("listener", "tcp", "store", "unix", "pipe", "new")
PROCESSES = ("first", "other")
LAYOUT = struct.Struct(f"{8 + len(PROCESSES) * len(CALLS) * len(OBJECTS)}i")
PID, PORT, SIDE, CALL, OBJECT, SKIP, FAULT, FIRED, COUNTS = range(9)
SHORT, SLOW = -1, -2

# What may happen to a call of each kind; to a read or write of a pipe, there is no connection to be reset.
HARMLESS = ("EINTR", "short", "slow")
FAULTS = {
    "accept": ("EMFILE", "ENFILE", "ENOBUFS", "ECONNABORTED", "EPROTO", "EINTR"),
    "connect": ("ECONNREFUSED", "ETIMEDOUT"),
    "recv": ("ECONNRESET", "ETIMEDOUT", *HARMLESS),
    "send": ("EPIPE", "ECONNRESET", "ENOBUFS", *HARMLESS),
    "read": ("EIO", *HARMLESS),
    "write": ("EPIPE", *HARMLESS),
    "socket": ("EMFILE", "ENOBUFS"),
    "pipe": ("EMFILE", "ENFILE"),
    "wait": ("EINTR",),
}
NAMES = {"short": SHORT, "slow": SLOW}


class Site(NamedTuple):
    """Where a call is made."""

    process: str
    call: str
    object: str


class Control:
    """The numbers that the C code reads and writes, in a file."""

    def __init__(self, folder: Path) -> None:
        self.library, self.path = compile_shim("sockets", folder), folder / "control"
        self.path.write_bytes(bytes(LAYOUT.size))
        with self.path.open("r+b") as file:
            self.memory = mmap.mmap(file.fileno(), LAYOUT.size)
        self.hits = 0  # faults that have met a call

    @property
    def environment(self) -> dict[str, str]:
        return os.environ | {
            "LD_PRELOAD": str(self.library),
            "DRAGOMAN_SOCKETS": str(self.path),
            "OMP_NUM_THREADS": "1",
        }

    def __getitem__(self, place: int) -> int:
        (value,) = struct.unpack_from("i", self.memory, 4 * place)
        return int(value)

    def __setitem__(self, place: int, value: int) -> None:
        struct.pack_into("i", self.memory, 4 * place, value)

    def counts(self) -> dict[Site, int]:
        """How many calls each site has made since `clear`."""
        sites = [Site(process, call, object) for process in PROCESSES for call in CALLS for object in OBJECTS]
        counts = LAYOUT.unpack(self.memory[:])[COUNTS:]
        return {site: count for site, count in zip(sites, counts, strict=True) if count}

    def clear(self) -> None:
        """Let no call fail, and count from 0; the process and the port stay."""
        self[FAULT] = 0
        self.hits += self[FIRED]
        self.memory[4 * SIDE :] = bytes(LAYOUT.size - 4 * SIDE)

    def arm(self, site: Site, n: int, fault: str) -> None:
        """Let the n-th call of a site from now on fail, counted from 0."""
        self.clear()
        self[SIDE], self[CALL] = PROCESSES.index(site.process), CALLS.index(site.call)
        self[OBJECT], self[SKIP] = OBJECTS.index(site.object), n
        self[FAULT] = NAMES[fault] if fault in NAMES else getattr(errno, fault)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


# -- commands ----------------------------------------------------------------------------------------------------------

# Each line of its input has the commands of some processes, which run at the same time; the first of them is the
# control's first process. Its answer is their exit codes.
FORKING = """
import importlib, json, os, signal, struct, sys, traceback
modules, control, seconds = json.loads(sys.argv[1]), sys.argv[2], int(sys.argv[3])
for module in modules:
    importlib.import_module(module)
import torch
from dragoman.cli.main import main
torch.set_num_threads(1)

def run(number, arguments, environment, folder, words):
    if number == 0:
        with open(control, "r+b") as file:
            file.write(struct.pack("i", os.getpid()))
    signal.alarm(seconds)
    for handle, path in ((0, os.devnull), (1, words), (2, words)):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644), handle)
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = ["dragoman", *arguments]
    try:
        main()
    except SystemExit as end:
        return int(end.code or 0)
    except BaseException:
        traceback.print_exc()
        return 1

for line in sys.stdin:
    pids = []
    for number, command in enumerate(json.loads(line)):
        pid = os.fork()
        if pid == 0:
            code = run(number, *command)
            sys.stdout.flush(), sys.stderr.flush()
            os._exit(code)
        pids.append(pid)
    print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]), flush=True)
"""


class Commands:
    """A preloaded process that has imported everything, and forks for each command."""

    def __init__(self, control: Control, modules: Sequence[str], seconds: int) -> None:
        self.control = control
        arguments = [json.dumps(modules), str(control.path), str(seconds)]
        self.process = subprocess.Popen(
            [sys.executable, "-c", FORKING, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=control.environment,
            text=True,
        )

    def run(self, folder: Path, *commands: tuple[Sequence[str], Mapping[str, str]]) -> list[Finished]:
        """Run commands, with what is added to their environment, side by side in a folder."""
        words = [folder.parent / f"words-{number}" for number in range(len(commands))]
        rows: list[Any] = []
        for path, (arguments, environment) in zip(words, commands, strict=True):
            path.unlink(missing_ok=True)
            rows.append([list(arguments), dict(environment), str(folder), str(path)])
        self.control[PID] = -1  # until the first of them is there
        send(self.process.stdin, json.dumps(rows))
        assert self.process.stdout is not None
        codes = json.loads(self.process.stdout.readline())
        return [
            Finished(code, path.read_text(errors="replace") if path.exists() else "")
            for code, path in zip(codes, words, strict=True)
        ]

    def end(self) -> None:
        self.process.kill()
        self.process.wait(10)


def send(file: IO[str] | None, line: str) -> None:
    assert file is not None
    file.write(line + "\n")
    file.flush()
