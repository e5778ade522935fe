"""A worker process alone, without the pool that starts it."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import io, os
from dragoman.serve.worker_process import WorkerProcess
reads, writes = os.pipe()
os.close(reads)
WorkerProcess(io.BytesIO(), os.fdopen(writes, "wb")).send({"kind": "pong"})
"""


def test_a_worker_whose_pipe_is_gone_ends_without_a_word() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")
