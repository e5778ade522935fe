"""A server that is told to end finishes what it has, and takes its workers with it."""

from __future__ import annotations

import os
import queue
import signal
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_sigterm_finishes_what_is_in_flight_and_takes_on_nothing_new(
    start: Callable[..., Any], until: Callable[..., float]
) -> None:
    server = start("small", "endless", "--workers", "1")
    workers = server.workers()
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def ask(beam: int) -> None:  # another beam is another job: they wait for one another
        answers.put(server.predict("abc", model="endless", beam=beam))

    asking = [threading.Thread(target=ask, args=(beam,), daemon=True) for beam in (2, 3, 4)]
    for thread in asking:
        thread.start()
    until(lambda: server.metric("dragoman_in_flight") == 4)  # with the one that asks for it
    began = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(30) == 0
    assert time.monotonic() - began < 30
    for thread in asking:
        thread.join(5)
    found = [answers.get_nowait() for _ in asking]
    assert [answer.status_code for answer in found] == [200] * 3
    assert all(len(answer.json()["results"][0]["tokens"]) == 904 for answer in found)
    assert all(answer.headers["connection"] == "close" for answer in found)  # no client asks again on it
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", server.port), timeout=1)
    until(lambda: not any(map(alive, workers)))
    assert "Traceback" not in server.stderr()


def test_a_stream_is_finished_while_draining_and_an_idle_connection_does_not_delay_the_exit(
    start: Callable[..., Any], events: Callable[[str], list[tuple[str, Any]]]
) -> None:
    server = start("endless", "--workers", "1", "--set", "keep_alive_s=600")
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as idle:
        idle.sendall(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert idle.recv(12) == b"HTTP/1.1 200"
        body = {"inputs": ["abc"], "beam": 1, "stream": True}
        with server.client.stream("POST", "/v1/predict", json=body) as answer:
            parts = answer.iter_text()
            told = next(parts)
            server.process.send_signal(signal.SIGTERM)
            told += "".join(parts)
        *tokens, (last, result), (end, _) = events(told)
        assert (last, end) == ("result", "done")
        assert [data["token"] for _, data in tokens] == result["tokens"]
        assert len(tokens) == 904
        assert server.process.wait(30) == 0
    assert "Traceback" not in server.stderr()


@pytest.mark.long
def test_requests_still_running_after_drain_s_get_a_503(start: Callable[..., Any], until: Callable[..., float]) -> None:
    server = start("plodding", "--workers", "1", "--set", "drain_s=0.5")
    workers = server.workers()
    lost: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def ask() -> None:
        try:
            lost.put(server.predict("abc", beam=1))
        except httpx.HTTPError as error:
            lost.put(error)

    threading.Thread(target=ask, daemon=True).start()
    until(lambda: server.metric("dragoman_jobs_running") > 0)
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(15) == 0
    answer = lost.get(timeout=5)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "ending")
    until(lambda: not any(map(alive, workers)))
    assert "Traceback" not in server.stderr()


def test_the_workers_end_with_a_server_that_is_killed(start: Callable[..., Any], until: Callable[..., float]) -> None:
    server = start("small", "--workers", "2")
    workers = server.workers()
    assert len(workers) == 2
    for pid in workers:
        os.kill(pid, signal.SIGTERM)  # is the parent's business: a worker goes on
    assert server.predict("abc").status_code == 200
    assert server.workers() == workers
    server.process.kill()
    server.process.wait(10)
    until(lambda: not any(map(alive, workers)))
