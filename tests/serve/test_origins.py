"""Pages of other origins, over real sockets: those that are listed may read everything, all others nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("uvicorn")
pytest.importorskip("fastapi")

from hypothesis import given
from hypothesis import strategies as st

from dragoman.cli.serve import validate_settings
from dragoman.core.errors import ConfigError
from dragoman.serve.middleware import RequestLimitMiddleware
from dragoman.serve.origins import origin_problem
from dragoman.serve.settings import ServerSettings

from .sockets import connect, served

KEY = "correct-horse-battery"
LISTED = ("https://shop.example", "http://localhost:3000")
UNLISTED = (
    "https://shop.example:444",
    "http://shop.example",
    "https://www.shop.example",
    "https://shop.example.evil.example",
    "https://SHOP.example",  # no browser sends that
    "http://localhost:3001",
    "http://localhost",
    "null",
    "",
)


async def events(scope: Any, receive: Any, send: Any) -> None:
    """A stream of two events; or what a route refuses, by the path."""
    status = 429 if scope["path"] == "/v1/busy" else 200
    headers = [(b"content-type", b"text/event-stream"), (b"vary", b"Accept")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True})
    await send({"type": "http.response.body", "body": b"data: 2\n\n", "more_body": False})


def run(**settings: Any) -> Iterator[int]:
    checked = validate_settings(settings)
    with served(RequestLimitMiddleware(events, checked), checked) as (port, _):
        yield port


@pytest.fixture(scope="module")
def open_to_two() -> Iterator[int]:
    yield from run(allow_origins=[*LISTED], keys=[KEY], max_body=10)


@pytest.fixture(scope="module")
def closed() -> Iterator[int]:
    yield from run()


def ask(
    port: int, *lines: str, method: str = "POST", path: str = "/v1/predict", body: str = ""
) -> tuple[int, dict[str, str], str]:
    """Status, headers and body of one request."""
    request = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", "Connection: close", *lines, "", ""]
    with connect(port) as client:
        client.sendall("\r\n".join([*request[:-1], body]).encode())
        text = b"".join(iter(lambda: client.recv(65536), b"")).decode()
    head, _, answer = text.partition("\r\n\r\n")
    status, *fields = head.split("\r\n")
    pairs = (field.split(": ", 1) for field in fields)
    return int(status.split(" ")[1]), {name.lower(): value for name, value in pairs}, answer


def readable(headers: dict[str, str]) -> str | None:
    return headers.get("access-control-allow-origin")


# status, what the request has besides its origin, its path, its body
RESPONSES: dict[str, tuple[int, list[str], str, str]] = {
    "a stream": (200, [f"Authorization: Bearer {KEY}"], "/v1/predict", ""),
    "a route's refusal": (429, [f"Authorization: Bearer {KEY}"], "/v1/busy", ""),
    "no key": (401, [], "/v1/predict", ""),
    "a large body": (413, [f"X-API-Key: {KEY}", "Content-Length: 11"], "/v1/predict", "x" * 11),
    "a compressed body": (415, [f"X-API-Key: {KEY}", "Content-Encoding: br"], "/v1/predict", ""),
    "two framings": (400, ["Content-Length: 5", "Transfer-Encoding: chunked"], "/v1/predict", "0\r\n\r\n"),
}


@pytest.mark.parametrize("origin", LISTED)
@pytest.mark.parametrize("name", RESPONSES)
def test_the_page_of_a_listed_origin_may_read_answers_streams_and_refusals(open_to_two, origin, name):
    status, lines, path, body = RESPONSES[name]
    lines = [f"Origin: {origin}", "Sec-Fetch-Site: cross-site", *lines]
    found, headers, _ = ask(open_to_two, *lines, path=path, body=body)
    assert (found, readable(headers)) == (status, origin)
    assert "Origin" in headers["vary"].split(", ")
    assert "Retry-After" in headers["access-control-expose-headers"]
    assert "access-control-allow-credentials" not in headers


def test_what_a_route_varies_by_is_kept(open_to_two):
    _, headers, _ = ask(open_to_two, f"Origin: {LISTED[0]}", f"X-API-Key: {KEY}")
    assert headers["vary"] == "Accept, Origin"


@pytest.mark.parametrize("origin", UNLISTED)
def test_the_page_of_any_other_origin_is_refused_and_may_read_nothing(open_to_two, origin):
    lines = (f"Origin: {origin}", "Sec-Fetch-Site: cross-site", f"X-API-Key: {KEY}")
    status, headers, body = ask(open_to_two, *lines)
    assert (status, readable(headers), json.loads(body)["error"]["code"]) == (403, None, "cross_site")
    assert headers["vary"] == "Origin"  # a cache must not give it to others
    for method in ("GET", "OPTIONS"):
        _, headers, _ = ask(open_to_two, *lines, "Access-Control-Request-Method: POST", method=method)
        assert not any(name.startswith("access-control") for name in headers)


def test_two_origins_in_one_request_are_none(open_to_two):
    lines = (f"Origin: {LISTED[0]}", "Origin: https://evil.example", "Sec-Fetch-Site: cross-site")
    status, headers, _ = ask(open_to_two, *lines, f"X-API-Key: {KEY}")
    assert (status, readable(headers)) == (403, None)


def test_a_preflight_of_a_listed_origin_needs_no_key_and_admits_keys_and_json(open_to_two):
    lines = (f"Origin: {LISTED[1]}", "Access-Control-Request-Method: POST")
    status, headers, body = ask(open_to_two, *lines, method="OPTIONS")
    assert (status, body, readable(headers)) == (204, "", LISTED[1])
    assert {"GET", "POST"} == set(headers["access-control-allow-methods"].split(", "))
    admitted = {name.lower() for name in headers["access-control-allow-headers"].split(", ")}
    assert {"authorization", "content-type", "x-api-key"} <= admitted


def test_other_names_of_this_machine_stay_refused_to_listed_origins(open_to_two):
    """A listed page has no rights that DNS rebinding would need."""
    with connect(open_to_two) as client:
        request = f"OPTIONS / HTTP/1.1\r\nHost: evil.example\r\nOrigin: {LISTED[0]}\r\n"
        client.sendall(f"{request}Access-Control-Request-Method: POST\r\n\r\n".encode())
        assert b" 403 " in client.recv(65536).split(b"\r\n")[0]


@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
def test_without_the_option_no_answer_speaks_of_origins(closed, method):
    lines = ("Origin: https://shop.example", "Access-Control-Request-Method: POST")
    status, headers, _ = ask(closed, *lines, method=method)
    assert status == (403 if method == "POST" else 200)
    assert not any(name.startswith("access-control") for name in headers)
    assert headers["vary"] == "Accept" if status == 200 else "vary" not in headers


# -- what may be listed ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("*", "list each origin"),
        ("https://*.shop.example", "list each origin"),
        ("shop.example", "write scheme, host and port"),
        ("null", "write scheme, host and port"),
        ("", "write scheme, host and port"),
        ("ftp://shop.example", "write scheme, host and port"),
        ("https://", "write scheme, host and port"),
        ("https://shop.example:99999", "write scheme, host and port"),
        ("https://user:pw@shop.example", "write scheme, host and port"),
        ("https://bücher.example", "write scheme, host and port"),
        ("https://shop.example/", "write https://shop.example"),
        ("https://shop.example/page?a#b", "write https://shop.example"),
        ("https://Shop.Example", "write https://shop.example"),
        ("https://shop.example:443", "write https://shop.example"),
        ("http://localhost:80", "write http://localhost"),
    ],
)
def test_an_origin_that_no_browser_sends_is_refused_with_the_one_to_write(text, remedy):
    with pytest.raises(ConfigError) as refused:
        validate_settings({"allow_origins": [text]})
    assert remedy in str(refused.value)
    assert repr(text)[1:-1] in str(refused.value)


@given(
    st.sampled_from(["http", "https"]),
    st.one_of(st.from_regex(r"[a-z0-9-]{1,20}(\.[a-z0-9-]{1,20}){0,3}", fullmatch=True), st.just("[::1]")),
    st.none() | st.integers(1, 65535),
)
def test_scheme_host_and_port_make_an_origin(scheme, host, port):
    is_default = port == {"http": 80, "https": 443}[scheme]
    text = f"{scheme}://{host}" + (f":{port}" if port else "")
    assert (origin_problem(text) is None) != is_default
    assert origin_problem(f"{text}/") is not None


def test_none_is_listed_by_default():
    assert ServerSettings().allow_origins == []
