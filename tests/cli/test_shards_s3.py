"""Bulk work with model, input and ledger in an S3 store (moto's server) behind a network that cuts and stalls."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from .conftest import Done, process

pytest.importorskip("s3fs")
pytest.importorskip("moto.server")
pytestmark = pytest.mark.long
RUN = "runs/copy"
STALL_S = 3.0  # longer than the client waits


class FaultyNetwork:
    """Passes connections on; some are cut after a few bytes of the request or of the answer, some stall."""

    def __init__(self, port: int, rng: random.Random) -> None:
        self._target, self._rng, self.rate, self.faults = port, rng, 0.0, 0
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._server.accept()
                upstream = socket.create_connection(("127.0.0.1", self._target))
                fault = self._rng.choice(["request", "answer", "stall"]) if self._rng.random() < self.rate else ""
                self.faults += bool(fault)
                limit = self._rng.randint(0, 3000)
                for one, other, kind in ((client, upstream, "request"), (upstream, client, "answer")):
                    limited = limit if fault in (kind, "stall") else None
                    threading.Thread(target=_pass_on, args=(one, other, limited, fault == "stall"), daemon=True).start()

    def close(self) -> None:
        self._server.close()


def _pass_on(source: socket.socket, target: socket.socket, limit: int | None, stalls: bool) -> None:
    """Copy bytes until the end, or until a limit, after which the connection stalls or is cut."""
    with suppress(OSError):
        passed = 0
        while data := source.recv(1 << 16):
            if limit is not None and passed + len(data) > limit:
                target.sendall(data[: limit - passed])
                if stalls:
                    time.sleep(STALL_S)
                break
            target.sendall(data)
            passed += len(data)
    for one in (source, target):
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FaultyNetwork]:
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    network = FaultyNetwork(server.get_host_and_port()[1], random.Random(torch.initial_seed()))
    for name, value in {
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "y",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{network.port}",
        "OMP_NUM_THREADS": "1",
        "FSSPEC_CONFIG_DIR": str(tmp_path / "fsspec"),
    }.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "fsspec").mkdir()
    timeouts = {"config_kwargs": {"read_timeout": 1, "connect_timeout": 1, "retries": {"max_attempts": 1}}}
    (tmp_path / "fsspec" / "s3.json").write_text(json.dumps({"s3": timeouts}))
    yield network
    network.close()
    server.stop()


def test_a_job_in_s3_is_killed_goes_on_and_gives_what_plain_work_gives(
    network: FaultyNetwork, work: Path, here: Callable[..., Done], tmp_path: Path
) -> None:
    import s3fs

    source, output = tmp_path / "sources.txt", tmp_path / "out.txt"
    source.write_text("a b c d\nd c\nb\n" * 15_000)
    store = s3fs.S3FileSystem(skip_instance_cache=True)
    store.mkdir("bucket")
    store.put_file(str(source), "bucket/sources.txt")
    store.put(str(work / RUN), "bucket/run", recursive=True)
    args = ["predict", "s3://bucket/run", "s3://bucket/sources.txt", "--beam", "1", "--workers", "2"]
    args += ["--shards", "s3://bucket/work", "-o", str(output)]
    network.rate = 0.2
    with subprocess.Popen([sys.executable, "-m", "dragoman", *args], cwd=work, env=os.environ) as driver:
        deadline = time.monotonic() + 120
        while True:
            network_rate, network.rate = network.rate, 0.0  # for this look alone
            store.invalidate_cache()
            done = store.glob("bucket/work/shard-*")
            network.rate = network_rate
            if len(done) >= 2:
                break
            assert driver.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        driver.send_signal(signal.SIGKILL)
    finished = process(*args, cwd=work)
    assert finished.code == 0, finished.err
    assert network.faults > 0
    network.rate = 0.0
    plain = here("predict", RUN, source, "--beam", "1", "--workers", "2")
    assert output.read_text() == plain.out
    status = json.loads(here("shards", "status", "s3://bucket/work", "--json").out)
    assert (status["complete"], status["lines"]) == (True, 45_000)
