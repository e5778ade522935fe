"""Every file call of a server's start, and of its worker's, fails once: it serves, or says why it cannot."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .disk import FAULTS
from .parsers import whole_model

PROCESSES = ("dragoman serve", "dragoman.serve.worker_process")
SAYS = {"EIO": os.strerror(5), "EMFILE": os.strerror(24)}
DEADLINE_S = 120.0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served") / "model"
    folder.mkdir()
    for name, data in whole_model().items():
        (folder / name).write_bytes(data)
    return folder


def start_and_stop(model: Path, process: str, n: int, fault: str) -> tuple[int, str, list[tuple[str, str]]]:
    """Start a server with a fault, end it once it serves; its exit code, its words, the calls of the process."""
    log = model.parent / "calls"
    log.unlink(missing_ok=True)
    spec = {"process": process, "folder": str(model), "n": n, "fault": fault, "log": str(log)}
    preload, path = Path(__file__).parent / "preload", os.environ.get("PYTHONPATH", "")
    server = subprocess.Popen(
        [sys.executable, "-m", "dragoman", "serve", str(model), "--port", "0", "--workers", "1", "--device", "cpu"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=os.environ | {"PYTHONPATH": f"{preload}:{path}", "DRAGOMAN_PRELOAD": json.dumps(spec)},
    )
    assert server.stdout is not None
    words, end = b"", time.monotonic() + DEADLINE_S
    with selectors.DefaultSelector() as selector:
        selector.register(server.stdout, selectors.EVENT_READ)
        while time.monotonic() < end and selector.select(end - time.monotonic()):
            if not (part := os.read(server.stdout.fileno(), 65536)):
                break
            words += part
            if b"serving " in part:
                server.send_signal(signal.SIGTERM)
    server.kill() if time.monotonic() >= end else None
    calls = [tuple(line.split("\t")) for line in log.read_text().split("\n")[:-1]] if log.exists() else []
    return server.wait(), words.decode(errors="replace"), calls  # type: ignore[return-value]


@pytest.mark.long
@pytest.mark.parametrize("process", PROCESSES)
def test_a_file_call_that_fails_at_a_servers_start_is_survived_or_explained(process: str, model: Path) -> None:
    code, words, calls = start_and_stop(model, process, 10**9, "EIO")
    assert code == 0, words
    assert calls
    problems = []
    for n, (kind, path) in enumerate(calls):
        for fault in FAULTS[kind]:
            if fault not in SAYS:
                continue
            code, words, _ = start_and_stop(model, process, n, fault)
            errors = [line for line in words.split("\n") if line.startswith("error: ")]
            explained = code == 2 and len(errors) == 1 and SAYS[fault] in errors[0]
            if "Traceback" in words or not (explained or (code == 0 and "serving " in words)):
                problems.append(f"{process}, call {n} ({kind} {path}), {fault}: exit code {code}:\n{words}")
    assert not problems, "\n".join(problems)
