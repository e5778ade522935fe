"""No body that the limits admit stalls the server: six clients send megabytes, others are answered (FAULTS 33)."""

from __future__ import annotations

import json
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("uvicorn")

from .sockets import connect

CLIENTS = 6
MEGABYTE = 1_040_000  # just below max_body
MEBIBYTES = 50  # that the listener's memory may grow by
LIVE = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"


def text_list(text: str, count: int, **options: Any) -> bytes:
    return json.dumps({"inputs": [text] * count, **options}).encode()


def filled(start: bytes, item: bytes, end: bytes) -> bytes:
    """A body of a megabyte: as many items as fit."""
    return start + item * ((MEGABYTE - len(start + end)) // len(item)) + end


PROSE = ("The quick brown fox, it says, jumps over the lazy dog; and so on. " * 800)[:50_000]
BODIES: dict[str, tuple[str, bytes]] = {
    "zeros": ("/v1/predict", filled(b'{"inputs":[', b"0,", b"0]}")),
    "objects": ("/v1/score", filled(b'{"inputs":[', b"{},", b"{}]}")),
    "empty texts": ("/v1/predict", filled(b'{"inputs":[', b'"",', b'""]}')),
    "fields": ("/v1/predict", b"{" + b",".join(b'"%d":0' % i for i in range(MEGABYTE // 11)) + b"}"),
    "lists in lists": ("/v1/inspect/probes", filled(b'{"minimal_pairs":[', b"[[]],", b"[]]}")),
    "wrong phrases": ("/v1/predict", filled(b'{"inputs":["a"],"choices":[', b"1,", b"1]}")),
    "wrong tokens": ("/v1/inspect/steps", json.dumps({"source": "a", "prefix": [""] * 4096}).encode()),
    "escapes": ("/v1/predict", filled(b'{"inputs":["', b'\\",', b'"]}')),
    "unterminated": ("/v1/predict", filled(b'{"inputs":["a', b"\\\\", b"")),
    "zeros to translate": ("/translate", filled(b'{"target":"small","q":[', b"0,", b"0]}")),
    "sentences": ("/translate", json.dumps({"target": "small", "q": ["a. " * 16_000] * 21}).encode()),
    "texts": ("/v1/predict", text_list(PROSE, 20)),
    "texts in escapes": ("/v1/predict", text_list("\u4e2d\u6587" * 8_000, 10)),
    "texts of a view": ("/v1/inspect/embedding_space", json.dumps({"sources": [PROSE[:500]] * 2000}).encode()),
    "texts that are admitted": ("/v1/predict", text_list(PROSE[:700], 250, beam=1, max_new_tokens=1)),
}


def post(path: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body


def status(port: int, data: bytes) -> int:
    with connect(port) as client:
        client.settimeout(60)
        said = b""
        with suppress(ConnectionError):  # it may be closed on us, after an answer
            client.sendall(data)
        with suppress(ConnectionError):
            while more := client.recv(65536):
                said += more
        return int(said.split()[1])


@contextmanager
def load(port: int, requests: list[bytes]) -> Iterator[Counter[int]]:
    """Six clients that send the requests in turn, without a pause; how often each status came."""
    found: Counter[int] = Counter()
    is_over = threading.Event()

    def send(first: int) -> None:
        i = first
        while not is_over.is_set():
            found[status(port, requests[i % len(requests)])] += 1
            i += 1

    clients = [threading.Thread(target=send, args=(i,), daemon=True) for i in range(CLIENTS)]
    for client in clients:
        client.start()
    try:
        yield found
    finally:
        is_over.set()
        for client in clients:
            client.join(120)


def latencies(server: Any, seconds: float) -> tuple[list[float], list[float]]:
    """Milliseconds of health checks: by the clock, and of the server's CPU time meanwhile.

    The second is what the first would be if the machine had nothing else to do: the server waits for nobody.
    """
    by_clock, by_cpu = [], []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        began, cpu = time.perf_counter(), cpu_ms(server.process.pid)
        with connect(server.port) as client:
            client.sendall(LIVE)
            said = b""
            while not said.endswith(b'{"live":true}'):
                said += (more := client.recv(65536))
                assert more
        by_clock.append(1000 * (time.perf_counter() - began))
        by_cpu.append(cpu_ms(server.process.pid) - cpu)
        time.sleep(0.01)
    return by_clock, by_cpu


def cpu_ms(pid: int) -> float:
    """The CPU time of all threads of a process."""
    files = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(file.read_text().split()[0]) for file in files) / 1e6


def peak_memory(pid: int, reset: bool = False) -> float:
    """The most MiB that a process had since the last reset."""
    if reset:
        Path(f"/proc/{pid}/clear_refs").write_text("5")
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().split("\n") if ":" in line)
    return int(lines["VmHWM"].split()[0]) / 1024


def test_six_megabytes_at_once_are_answered_with_little_memory(server: Any) -> None:
    before = peak_memory(server.process.pid, reset=True)
    for name in ("zeros", "fields", "zeros to translate", "texts"):
        with ThreadPoolExecutor(CLIENTS) as clients:
            codes = list(clients.map(lambda data: status(server.port, data), [post(*BODIES[name])] * CLIENTS))
        assert set(codes) <= {413, 422}
    assert peak_memory(server.process.pid) - before < MEBIBYTES


@pytest.mark.long
def test_a_health_check_takes_less_than_50_ms_whatever_six_clients_send(
    start: Callable[..., Any], until: Callable[..., float]
) -> None:
    server = start("small", "tagged", "--workers", "1", "--set", "deadline_s=10")
    status(server.port, post(*BODIES["texts of a view"]))
    before = peak_memory(server.process.pid, reset=True)
    mixes = {name: [post(*body)] for name, body in BODIES.items()}
    mixes["all of them"] = [post(*body) for body in BODIES.values()]
    slow = {}
    for name, requests in mixes.items():
        with load(server.port, requests) as codes:
            until(lambda found=codes: found.total())  # type: ignore[misc]
            p99, cpu_p99 = (statistics.quantiles(found, n=100)[98] for found in latencies(server, 3.0))
        print(f"{name:24} p99 {p99:5.1f} ms, {cpu_p99:5.1f} ms of CPU time  {dict(codes)}")
        assert set(codes) <= {200, 413, 422, 429, 504}
        if cpu_p99 >= 50:
            slow[name] = cpu_p99
    grown = peak_memory(server.process.pid) - before
    print(f"memory of the listener: {before:.0f} MiB, at most {grown:.0f} more")
    assert not slow
    assert grown < MEBIBYTES
    assert server.stop() == 0
    assert "Traceback" not in server.stderr()
