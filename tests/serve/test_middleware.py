"""What a request must pass, over real sockets: sizes, times, keys, hosts (FAULTS 21, 22, 28); strict answers (30)."""

from __future__ import annotations

import gzip
import json
import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

pytest.importorskip("uvicorn")
pytest.importorskip("fastapi")

from dragoman.serve import middleware
from dragoman.serve.middleware import APIKeys, RequestLimitMiddleware
from dragoman.serve.settings import ServerSettings

from .sockets import connect, served, wait_for

KEY = "correct-horse-battery"


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Answers with how many bytes the body has; what it sets itself must not weaken what the guard sets."""
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    text = json.dumps({"bytes": len(body), "id": scope["state"]["request_id"]}).encode()
    headers = [(b"content-length", str(len(text)).encode()), (b"content-security-policy", b"default-src *")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": text})


class MetricsMiddleware:
    """The echo behind a guard, counting the bytes of bodies that come in."""

    def __init__(self, settings: ServerSettings) -> None:
        self.guard, self.read, self.largest = RequestLimitMiddleware(echo, settings), 0, 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def counted() -> Any:
            message = await receive()
            size = len(message.get("body", b""))
            self.read, self.largest = self.read + size, max(self.largest, size)
            return message

        await self.guard(scope, counted, send)


@contextmanager
def counting(settings: ServerSettings) -> Iterator[tuple[int, MetricsMiddleware]]:
    app = MetricsMiddleware(settings)
    with served(app, settings) as (port, _):
        yield port, app


def send(port: int, data: bytes) -> tuple[int, dict[str, str], Any]:
    """Send bytes, read one answer: status, headers, JSON."""
    with connect(port) as client:
        with suppress(OSError):  # it may be closed on us, after an answer
            client.sendall(data)
        return answer(client)


def answer(client: socket.socket) -> tuple[int, dict[str, str], Any]:
    with client.makefile("rb") as stream:
        status = int(stream.readline().split()[1])
        headers = {}
        while line := stream.readline().decode().strip():
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        body = stream.read(int(headers["content-length"]))
    return status, headers, json.loads(body)


def head(path: str = "/v1/predict", *lines: str, method: str = "POST", host: str = "127.0.0.1") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", f"Host: {host}", *lines, "", ""]).encode()


def chunks(size: int, count: int) -> bytes:
    return (f"{size:x}\r\n".encode() + b"x" * size + b"\r\n") * count + b"0\r\n\r\n"


@pytest.fixture(scope="module")
def opened() -> Iterator[tuple[int, MetricsMiddleware]]:
    with counting(ServerSettings(max_body=100_000, body_s=0.5)) as found:
        yield found


@pytest.fixture(scope="module")
def locked() -> Iterator[int]:
    with counting(ServerSettings(keys=["another", KEY])) as (port, _):
        yield port


@pytest.mark.parametrize("size", [0, 1, 99_999, 100_000])
def test_a_body_up_to_the_limit_reaches_the_app_whole(opened, size):
    port, _ = opened
    assert send(port, head("/v1/predict", f"Content-Length: {size}") + b"x" * size)[2]["bytes"] == size
    whole = head("/v1/predict", "Transfer-Encoding: chunked") + chunks(max(size, 1), 1)
    assert send(port, whole)[2]["bytes"] == max(size, 1)


@pytest.mark.parametrize(
    "request_bytes",
    [
        pytest.param(head("/v1/predict", "Content-Length: 100001") + b"x" * 100_001, id="one byte too many"),
        pytest.param(head("/v1/predict", "Content-Length: 50000000") + b"x" * 50_000_000, id="huge"),
        pytest.param(head("/v1/predict", "Content-Length: 99999999999999999999"), id="announced only"),
        pytest.param(head("/v1/predict", "Transfer-Encoding: chunked") + chunks(1000, 20_000), id="chunked"),
        pytest.param(head("/translate", "Transfer-Encoding: chunked") + chunks(10_000_000, 2), id="huge chunks"),
    ],
)
def test_a_larger_body_is_refused_after_at_most_64_kib_more_than_the_limit(opened, request_bytes):
    port, app = opened
    before = app.read
    status, headers, body = send(port, request_bytes)
    assert (status, headers["connection"]) == (413, "close")
    assert "100,000 bytes" in json.dumps(body)
    assert app.read - before <= 100_000 + 64 * 1024
    assert send(port, head(method="GET"))[0] == 200


def test_a_large_body_is_taken_64_kib_at_a_time_at_most():
    with counting(ServerSettings(max_body=10_000_000)) as (port, app):
        sent = head("/v1/predict", "Content-Length: 10000000") + b"x" * 10_000_000
        assert send(port, sent)[2]["bytes"] == 10_000_000
        assert app.largest <= 64 * 1024


def test_a_body_that_lies_about_its_length_reads_only_what_was_announced(opened):
    port, _ = opened
    with connect(port) as client:
        client.sendall(head("/v1/predict", "Content-Length: 3") + b"abc" + b"y" * 1000 + b"\r\n\r\n")
        with client.makefile("rb") as stream:
            first, second = stream.read().split(b"HTTP/1.1 ")[1:]
    assert first.startswith(b"200")
    assert b'"bytes": 3' in first
    assert second.startswith(b"400")  # the rest is no request


def test_a_compressed_body_is_refused_unread(opened):
    port, app = opened
    bomb = gzip.compress(b"0" * 10_000_000)
    before = app.read
    lines = ("Content-Encoding: gzip", f"Content-Length: {len(bomb)}")
    status, _, body = send(port, head("/v1/predict", *lines) + bomb)
    assert (status, body["error"]["code"]) == (415, "encoded")
    assert app.read - before <= len(bomb)
    plain = head("/v1/predict", "Content-Encoding: Identity", "Content-Length: 2") + b"{}"
    assert send(port, plain)[2]["bytes"] == 2


def test_a_slow_body_is_given_up_while_others_are_answered(opened):
    port, _ = opened
    with connect(port) as slow:
        slow.sendall(head("/v1/predict", "Content-Length: 1000") + b"x")
        assert send(port, head(method="GET"))[0] == 200
        status, headers, body = answer(slow)
        assert (status, body["error"]["code"], headers["connection"]) == (408, "slow_body", "close")
        assert slow.recv(1) == b""


def test_a_client_that_disconnects_within_its_body_does_no_harm(opened, caplog):
    port, app = opened
    with caplog.at_level(logging.INFO), connect(port) as client:
        before = app.read
        client.sendall(head("/v1/predict", "Content-Length: 1000") + b"x")
        wait_for(lambda: app.read > before)
    assert send(port, head(method="GET"))[0] == 200
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("line", [f"Authorization: Bearer {KEY}", f"authorization: bearer {KEY}", f"X-API-Key: {KEY}"])
def test_a_right_key_opens_the_server(locked, line):
    assert send(locked, head("/v1/predict", line, method="GET"))[0] == 200


@pytest.mark.parametrize(
    "lines",
    [
        [],
        [f"Authorization: Bearer {KEY}x"],
        [f"Authorization: Bearer {KEY[:-1]}"],
        [f"Authorization: Basic {KEY}"],
        ["Authorization: Bearer"],
        ["X-API-Key: "],
        ["X-API-Key: \xfc"],
    ],
)
@pytest.mark.parametrize(
    "path", ["/v1/predict", "/metrics", "/docs", "/openapi.json", "/docs/more", "/languages", "/v1/../health/live"]
)
def test_without_a_right_key_there_is_a_401_that_says_how_to_send_one(locked, path, lines, caplog):
    with caplog.at_level(logging.DEBUG):
        status, headers, body = send(locked, head(path, *lines, method="GET"))
    assert status == 401
    assert headers["www-authenticate"].startswith("Bearer")
    assert "Authorization: Bearer KEY" in json.dumps(body)
    assert KEY[:-1] not in caplog.text + json.dumps(body) + json.dumps(headers)


@pytest.mark.parametrize("path", ["/", "/static/page/page.js", "/health/live", "/health/ready"])
def test_health_and_the_page_need_no_key(locked, path):
    assert send(locked, head(path, method="GET"))[0] == 200


@pytest.mark.parametrize(
    ("lines", "size", "status"),
    [
        ([], 65_536, 200),  # the route reads the key
        ([], 65_537, 413),
        ([f"X-API-Key: {KEY}"], 65_537, 200),
        ([f"X-API-Key: {KEY}x"], 10, 401),
    ],
)
def test_translate_reads_a_small_body_for_its_key_only_if_no_header_has_one(locked, lines, size, status):
    found, _, body = send(locked, head("/translate", *lines, f"Content-Length: {size}") + b"x" * size)
    assert found == status
    assert status != 413 or "header" in body["error"]


FRAMINGS = {
    "both lengths": ("1.1", ["Content-Length: 5", "Transfer-Encoding: chunked"], 400),
    "both lengths, the other way round": ("1.1", ["Transfer-Encoding: chunked", "Content-Length: 5"], 400),
    "chunks over HTTP/1.0": ("1.0", ["Transfer-Encoding: chunked"], 400),
    "another encoding": ("1.1", ["Transfer-Encoding: gzip, chunked"], 400),
    "two lengths": ("1.1", ["Content-Length: 5", "Content-Length: 6"], 400),
    "chunks": ("1.1", ["Transfer-Encoding: chunked"], 200),
    "a length over HTTP/1.0": ("1.0", ["Content-Length: 5"], 200),
}


@pytest.mark.parametrize("name", FRAMINGS)
def test_a_body_whose_end_is_ambiguous_is_refused_and_the_connection_closed(opened, name):
    version, lines, status = FRAMINGS[name]
    port, _ = opened
    first = head("/v1/predict", *lines).replace(b"HTTP/1.1", f"HTTP/{version}".encode())
    body = b"abcde" if lines[0].startswith("Content-Length") and len(lines) == 1 else b"5\r\nabcde\r\n0\r\n\r\n"
    with connect(port) as client:
        client.sendall(first + body + head("/smuggled", "Connection: close", method="GET"))
        with client.makefile("rb") as stream:
            answers = stream.read().split(b"HTTP/1.1 ")[1:]
    assert answers[0].startswith(str(status).encode())
    assert len(answers) == (1 if status == 400 or version == "1.0" else 2)


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        ([], 200),  # curl
        (["Sec-Fetch-Site: same-origin", "Origin: http://127.0.0.1"], 200),
        (["Sec-Fetch-Site: none"], 200),
        (["Sec-Fetch-Site: cross-site", "Origin: https://evil.example"], 403),
        (["Sec-Fetch-Site: same-site", "Origin: http://127.0.0.1:3000"], 403),
        (["Origin: http://127.0.0.1"], 200),
        (["Origin: https://127.0.0.1"], 200),  # a proxy before us speaks TLS
        (["Origin: http://127.0.0.1:3000"], 403),
        (["Origin: https://evil.example"], 403),
        (["Origin: null"], 403),
        (["Origin: "], 403),
    ],
)
@pytest.mark.parametrize("path", ["/translate", "/v1/predict", "/v1/models/small/predict"])
def test_a_page_of_another_site_cannot_post(opened, path, lines, status):
    port, _ = opened
    form = ("Content-Type: application/x-www-form-urlencoded", "Content-Length: 3")
    assert send(port, head(path, *form, *lines) + b"q=a")[0] == status
    assert send(port, head(path, *lines, method="GET"))[0] == 200  # a link to us is no harm


def test_a_query_of_thousands_of_fields_is_refused(opened):
    port, _ = opened
    assert send(port, head("/v1/models/small/predict?" + "a=&" * 4000))[0] == 400
    assert send(port, head("/v1/models/small/predict?" + "force_phrases=a&" * 100))[0] == 200


def test_what_is_refused_is_counted_by_its_code():
    codes: list[str] = []
    app = RequestLimitMiddleware(echo, ServerSettings(keys=[KEY], max_body=10), on_refused=codes.append)
    with served(app, ServerSettings()) as (port, _):
        send(port, head("/v1/predict"))
        send(port, head("/v1/predict", f"X-API-Key: {KEY}", "Content-Length: 11"))
        send(port, head("/v1/predict", "Origin: null"))
        send(port, head("/v1/predict", f"X-API-Key: {KEY}", method="GET"))
    assert codes == ["unauthorized", "too_large", "cross_site"]


def test_while_draining_every_answer_says_that_the_connection_closes():
    app = RequestLimitMiddleware(echo, ServerSettings())
    with served(app, ServerSettings()) as (port, _), connect(port) as client:
        client.sendall(head(method="GET"))
        assert "connection" not in answer(client)[1]
        app.is_draining = True
        client.sendall(head(method="GET"))
        assert answer(client)[1]["connection"] == "close"
        assert client.recv(1) == b""


def test_every_key_is_compared_and_without_keys_everyone_is_admitted():
    keys = APIKeys(["a", "b", "ü"])
    assert [keys.accepts([one]) for one in (b"a", b"b", "ü".encode(), b"", b"ab", b"c")] == [
        True,
        True,
        True,
        *[False] * 3,
    ]
    assert keys.accepts([b"wrong", b"b"])
    assert not keys.accepts([])
    assert APIKeys([]).accepts([])


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LocalHost:1234", 200),
        ("127.0.0.1:80", 200),
        ("[::1]:8000", 200),
        ("my.name:8000", 200),
        ("evil.example", 403),
        ("localhost.evil.example:8000", 403),
        ("127.0.0.1.evil.example", 403),
        ("evil.example:127.0.0.1", 403),
    ],
)
def test_a_server_on_this_machine_answers_only_to_this_machines_names(host, status):
    with counting(ServerSettings(hosts=["my.name"])) as (port, _):
        assert send(port, head(method="GET", host=host))[0] == status


def test_a_server_bound_to_the_outside_answers_to_any_name():
    assert middleware.allowed_hosts(ServerSettings(host="0.0.0.0")) == ()
    assert middleware.allowed_hosts(ServerSettings(host="192.168.1.5")) == ()
    assert "127.0.0.2" in middleware.allowed_hosts(ServerSettings(host="127.0.0.2"))


@pytest.mark.parametrize(
    ("path", "lines", "status"),
    [("/v1/models", [], 200), ("/translate", ["Content-Encoding: br"], 415), ("/static/page/a.css", [], 200)],
)
def test_every_answer_carries_the_strict_headers_once(opened, path, lines, status):
    port, _ = opened
    found, headers, _ = send(port, head(path, *lines, method="GET"))
    assert found == status
    policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers.get("cache-control") == (None if path.startswith("/static") else "no-store")
    assert not any(name.startswith("access-control") for name in headers)


def test_a_request_keeps_its_own_id_if_that_is_plain(opened):
    port, _ = opened
    _, headers, body = send(port, head("/", "X-Request-Id: abc-1.2", method="GET"))
    assert headers["x-request-id"] == body["id"] == "abc-1.2"
    ids = {send(port, head("/", "X-Request-Id: a b\tc", method="GET"))[1]["x-request-id"] for _ in range(3)}
    assert len(ids) == 3
    assert all(id.isalnum() for id in ids)


def test_errors_have_the_shape_that_the_clients_of_a_path_know(opened):
    port, _ = opened
    error = send(port, head("/v1/score", "Content-Encoding: br"))[2]["error"]
    assert error == {"code": "encoded", "message": error["message"], "field": None}
    assert isinstance(send(port, head("/translate", "Content-Encoding: br"))[2]["error"], str)


# -- the real server -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/docs", "/v1/models", "/v1/nothing", "/static/views/views.css", "/health/live"])
def test_the_real_server_sends_security_headers_on_every_path(server, path):
    headers = server.client.get(path).headers
    assert headers["content-security-policy"] == middleware.CONTENT_SECURITY_POLICY
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-request-id"]
    assert "server" not in headers
    assert not any(name.startswith("access-control") for name in headers)


def test_the_real_server_refuses_what_is_too_large_compressed_or_meant_for_another(server):
    huge = head("/v1/predict", "Content-Type: application/json", "Transfer-Encoding: chunked") + chunks(100_000, 100)
    assert send(server.port, huge)[0] == 413
    assert send(server.port, head("/v1/predict", "Content-Encoding: gzip"))[0] == 415
    assert send(server.port, head("/v1/models", method="GET", host="evil.example"))[0] == 403
    assert server.predict("abc").status_code == 200
