"""Connections that say nothing are closed in time, and those that speak are answered meanwhile (FAULTS 21)."""

from __future__ import annotations

import asyncio
import json
import resource
import selectors
import socket
import time
from contextlib import AbstractContextManager, ExitStack, suppress
from typing import Any

import pytest

pytest.importorskip("uvicorn")

import uvicorn

from dragoman.serve import connections
from dragoman.serve.middleware import RequestLimitMiddleware
from dragoman.serve.settings import ServerSettings

from .sockets import connect, served, wait_for

GET = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"


async def hello(scope: Any, receive: Any, send: Any) -> None:
    """Says hello; from /large it sends 50 MB, and /slow takes its time."""
    if scope["path"] == "/slow":
        await asyncio.sleep(0.6)
    count = 1000 if scope["path"] == "/large" else 0
    size = str(50_000 * count + 5).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", size)]})
    for _ in range(count):
        await send({"type": "http.response.body", "body": b"x" * 50_000, "more_body": True})
    await send({"type": "http.response.body", "body": b"hello"})


def greeting(settings: ServerSettings) -> AbstractContextManager[tuple[int, uvicorn.Server]]:
    return served(RequestLimitMiddleware(hello, settings), settings)


def rest(client: socket.socket) -> bytes:
    """All that comes until the server closes; fails where it does not within the socket's 10 seconds."""
    parts = []
    with suppress(ConnectionResetError):
        while data := client.recv(65536):
            parts.append(data)
    return b"".join(parts)


def greeted(client: socket.socket) -> bool:
    """Whether a request is answered as it should be."""
    client.sendall(GET)
    said = b""
    while not said.endswith(b"hello") and (data := client.recv(65536)):
        said += data
    return said.startswith(b"HTTP/1.1 200 ")


def test_a_connection_that_says_nothing_is_closed():
    with greeting(ServerSettings(header_s=0.3)) as (port, _), connect(port) as client:
        assert rest(client) == b""


@pytest.mark.parametrize("start", [b"G", GET[:-2], b"\r\n"])
def test_a_head_that_stays_unfinished_is_closed_with_a_408(start):
    with greeting(ServerSettings(header_s=0.3)) as (port, _), connect(port) as client:
        client.sendall(start)
        said = rest(client)
    if start.strip():
        assert said.startswith(b"HTTP/1.1 408 ")
        assert json.loads(said.split(b"\r\n\r\n", 1)[1])["error"]["code"] == "slow_head"


def test_a_head_that_arrives_byte_by_byte_has_the_same_timeout():
    with greeting(ServerSettings(header_s=0.5)) as (port, _), connect(port) as client:
        client.settimeout(0.02)
        began, said = time.monotonic(), b""
        client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ")
        while not said:
            assert time.monotonic() - began < 10
            with suppress(TimeoutError):
                said = client.recv(1000)
            with suppress(OSError):
                client.sendall(b"x")
    assert b" 408 " in said


def test_an_idle_connection_is_kept_for_a_while_then_closed():
    with greeting(ServerSettings(header_s=5.0, keep_alive_s=0.4)) as (port, _), connect(port) as client:
        for _ in range(3):
            assert greeted(client)
        began = time.monotonic()
        assert rest(client) == b""
        assert time.monotonic() - began < 4.5  # uvicorn's own limit is 5


def test_the_second_head_on_a_connection_has_a_time_of_its_own():
    with greeting(ServerSettings(header_s=0.3, keep_alive_s=8.0)) as (port, _), connect(port) as client:
        assert greeted(client)
        client.sendall(GET[:10])
        assert rest(client).startswith(b"HTTP/1.1 408 ")


def test_an_answer_may_take_longer_than_a_head():
    with greeting(ServerSettings(header_s=0.2, keep_alive_s=0.3)) as (port, _), connect(port) as client:
        client.sendall(GET.replace(b"/health/live", b"/slow"))
        assert rest(client).startswith(b"HTTP/1.1 200 ")


def test_requests_sent_ahead_are_all_answered():
    with greeting(ServerSettings(header_s=0.3, keep_alive_s=0.5)) as (port, _), connect(port) as client:
        client.sendall(GET * 20)
        assert rest(client).count(b"HTTP/1.1 200 ") == 20


@pytest.mark.parametrize(
    "start",
    [b"GET / HTTP/1.1\r\nX: " + b"x" * 100_000, b"GET /" + b"x" * 100_000, (b"A: b\r\n" * 20_000), b"\x16\x03\x01 tls"],
)
def test_an_oversized_or_malformed_head_is_a_400(start):
    with greeting(ServerSettings()) as (port, _):
        with connect(port) as client:
            with suppress(OSError):  # it may be closed on us, after an answer
                client.sendall(start + b"\r\n\r\n")
            assert rest(client).startswith(b"HTTP/1.1 400 ")
        with connect(port) as client:
            assert greeted(client)


def test_a_head_is_refused_as_soon_as_it_is_too_large():
    with greeting(ServerSettings(max_head=2000)) as (port, _), connect(port) as client:
        client.sendall(GET[:-2] + b"X: " + b"x" * 10_000)
        assert rest(client).startswith(b"HTTP/1.1 400 ")


def test_a_connection_over_the_limit_gets_a_503_and_a_closed_one_makes_room_for_another():
    with greeting(ServerSettings(max_connections=3)) as (port, server), ExitStack() as stack:
        first = [stack.enter_context(connect(port)) for _ in range(3)]
        wait_for(lambda: len(server.server_state.connections) == 3)
        with connect(port) as client:
            said = rest(client)
            assert said.startswith(b"HTTP/1.1 503 ")
            assert b"Retry-After: 1" in said
            assert b"3 connections" in said
        first[0].close()
        wait_for(lambda: len(server.server_state.connections) == 2)
        with connect(port) as client:
            assert greeted(client)


def test_by_default_every_timeout_of_a_connection_is_below_10_seconds():
    settings = ServerSettings()
    assert max(settings.header_s, settings.body_s, settings.keep_alive_s) < 10


def test_there_are_never_more_connections_than_descriptors():
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert connections.connection_limit(10) == 10
    assert connections.connection_limit(10**9) == (
        soft - connections.RESERVED_DESCRIPTORS if soft != resource.RLIM_INFINITY else 10**9
    )


def test_a_client_that_does_not_read_its_answer_is_dropped():
    with greeting(ServerSettings(body_s=0.5)) as (port, server), connect(port) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.sendall(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")
        wait_for(lambda: server.server_state.tasks)
        wait_for(lambda: not server.server_state.connections and not server.server_state.tasks)


def test_a_client_that_reads_a_large_answer_gets_all_of_it():
    with greeting(ServerSettings(body_s=0.5)) as (port, _), connect(port) as client:
        client.sendall(b"GET /large HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert len(rest(client).split(b"\r\n\r\n", 1)[1]) == 50_000_005


@pytest.mark.parametrize("requests", [1, 3])
def test_a_client_that_sends_no_more_still_gets_its_answers(requests):
    with greeting(ServerSettings(keep_alive_s=60)) as (port, server), connect(port) as client:
        client.sendall(GET.replace(b"/health/live", b"/slow") * requests)
        client.shutdown(socket.SHUT_WR)
        said = rest(client)  # until the server closes, long before keep_alive_s
        assert said.count(b"HTTP/1.1 200 ") == said.count(b"hello") == requests
        wait_for(lambda: not server.server_state.connections)


@pytest.mark.parametrize(
    "start", [b"", GET[:20], b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nhalf"]
)
def test_a_client_that_sends_no_more_within_a_request_is_dropped(start):
    with greeting(ServerSettings()) as (port, server), connect(port) as client:
        client.sendall(start)
        client.shutdown(socket.SHUT_WR)
        assert b" 200 " not in rest(client)
        wait_for(lambda: not server.server_state.connections and not server.server_state.tasks)


def test_a_client_that_is_gone_is_noticed_although_it_might_only_have_stopped_sending():
    gone: list[float] = []

    async def wait_for_disconnect(scope: Any, receive: Any, send: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        gone.append(time.monotonic())

    with served(wait_for_disconnect, ServerSettings()) as (port, server):
        with connect(port) as client:
            client.sendall(GET)
            wait_for(lambda: server.server_state.tasks)
        left = time.monotonic()
        wait_for(lambda: gone)
        assert gone[0] - left < 0.2  # FAULTS 24


async def tell_events(scope: Any, receive: Any, send: Any) -> None:
    """Stream two server-sent events half a second apart; stop when the client is gone."""
    headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True})
    scope["app"].append(time.monotonic())
    with suppress(TimeoutError):
        async with asyncio.timeout(0.5):
            while (await receive())["type"] != "http.disconnect":
                pass
            scope["app"].append(time.monotonic())
            return
    await send({"type": "http.response.body", "body": b"data: 2\n\n", "more_body": False})


@pytest.mark.parametrize("is_gone", [False, True])
def test_a_client_that_sends_no_more_within_a_stream_gets_the_rest_and_one_that_is_gone_is_noticed(is_gone):
    times: list[float] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await tell_events(scope | {"app": times}, receive, send)

    with served(app, ServerSettings(keep_alive_s=60)) as (port, server), connect(port) as client:
        client.sendall(GET)
        said = b""
        while b"data: 1" not in said:
            said += client.recv(65536)
        left = time.monotonic()
        if is_gone:
            client.close()
            wait_for(lambda: len(times) == 2)
            assert times[1] - left < 0.2  # FAULTS 24
        else:
            client.shutdown(socket.SHUT_WR)
            events = [line for line in (said + rest(client)).split(b"\r\n") if line.startswith(b"data")]
            assert events == [b"data: 1\n\n", b"data: 2\n\n"]
        wait_for(lambda: not server.server_state.connections)


@pytest.mark.parametrize(("size", "count", "status"), [(1, 5000, 400), (1, 150, 200), (100, 5000, 200)])
def test_a_body_of_thousands_of_tiny_chunks_is_refused(size, count, status):
    chunk = f"{size:x}\r\n".encode() + b"x" * size + b"\r\n"
    with greeting(ServerSettings()) as (port, _), connect(port) as client:
        head = b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
        with suppress(OSError):  # it may be closed on us, after an answer
            client.sendall(head + chunk * count + b"0\r\n\r\n")
        assert rest(client).startswith(f"HTTP/1.1 {status} ".encode())


def test_connections_that_send_no_http_are_counted_and_fill_no_log(server):
    name = 'dragoman_refused_total{code="bad_request"}'
    before, lines = server.metric(name), len(server.errors)
    for _ in range(20):
        with connect(server.port) as client:
            client.sendall(b"\x16\x03\x01 tls\r\n\r\n")
            assert rest(client).startswith(b"HTTP/1.1 400 ")
    assert server.metric(name) - before == 20
    assert len(server.errors) - lines <= 1


def test_an_upgrade_to_a_websocket_is_answered_as_a_plain_request():
    with greeting(ServerSettings()) as (port, _), connect(port) as client:
        client.sendall(GET[:-2] + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
        assert client.recv(65536).startswith(b"HTTP/1.1 200 ")


def test_500_idle_sockets_on_the_real_server_are_closed_within_10_seconds_and_others_answered_meanwhile(server):
    with ExitStack() as stack:
        idle = [stack.enter_context(connect(server.port)) for _ in range(500)]
        began = time.monotonic()
        for client in idle[::2]:
            client.sendall(b"POST /v1/predict HTTP/1.1\r\nHost: ")
        waiting = selectors.DefaultSelector()
        for client in idle:
            waiting.register(client, selectors.EVENT_READ)
        while waiting.get_map():
            assert time.monotonic() - began < 10
            assert server.predict("abc").status_code == 200
            for key, _ in waiting.select(0.2):
                said = key.fileobj.recv(100)  # type: ignore[union-attr]
                assert said == b"" or said.startswith(b"HTTP/1.1 408 ")
                waiting.unregister(key.fileobj)
