"""Whatever a request says, the answer is a sentence and the workers live (FAULTS 23).

schemathesis makes requests from the API's own description, fitting and unfitting, and sends them over a real socket to
the real server; what it would not think of follows by hand.
"""

from __future__ import annotations

import base64
import io
import json
import socket
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, Phase, given, settings

schemathesis = pytest.importorskip("schemathesis")
requests = pytest.importorskip("requests")

ROUTES = ("/v1/", "/translate", "/languages", "/health/")
ANSWERS = {200, 400, 401, 404, 408, 413, 415, 422, 429, 504}
KEY = "a-key-that-no-line-may-show"
POSTS = ("/v1/predict", "/v1/inspect/steps", "/translate")


@pytest.fixture(scope="module")
def fuzzed(start: Callable[..., Any], media_models: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A server of its own with models that end soon, and a key; in the end, the same workers must still be there."""
    keys = tmp_path_factory.mktemp("keys") / "keys.txt"
    keys.write_text(f"# for the test\n{KEY}\n")
    server = start("small", "tagged", "captions", "--workers", "1", "--set", "deadline_s=10", "--key-file", str(keys))
    server.client.headers["X-API-Key"] = KEY
    before = server.workers()
    yield server
    assert server.workers() == before
    assert server.metric("dragoman_worker_restarts_total") == 0
    assert server.predict("abc").status_code == 200
    assert server.stop() == 0
    assert "Traceback" not in server.stderr()
    assert KEY not in server.stderr()


LIBRETRANSLATE = ("/translate", "/translate_file", "/detect", "/languages")


def is_a_sentence(status: int, body: Any, path: str) -> bool:
    """Whether a refusal has the shape that the clients of a path know."""
    if status == 200:
        return True
    error = body["error"]
    if path in LIBRETRANSLATE and isinstance(error, str):
        return len(error) > 10
    return set(error) == {"code", "message", "field"} and len(error["message"]) > 10


def picture() -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", (9, 7), "red").save(file, "png")
    return file.getvalue()


def has_medium(value: Any) -> bool:
    """Whether a request brings the bytes of a file; every second one becomes an image, and inputs have one source."""
    if isinstance(value, dict) and isinstance(value.get("data"), str):
        if len(value["data"]) % 2:
            value["data"] = base64.b64encode(picture()).decode()
        return True
    if isinstance(value, dict):
        value.pop("second_source", None)
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    return any(list(map(has_medium, inside)))  # all of them, not until the first


def sensible(case: Any) -> Any:
    """A case for a model and for languages that are there; names that are not would be all that is ever refused."""
    if isinstance(case.body, dict):
        model = "captions" if has_medium(case.body) else "small"
        there = (
            {"source": "auto", "target": "small", "format": "text"} if case.path == "/translate" else {"model": model}
        )
        case.body = case.body | there
    elif "model" in (case.path_parameters or {}):  # a file as the body
        case.path_parameters["model"] = "captions"
        case.body = picture()
    return case


def fuzz(server: Any, cases: int) -> int:
    """Send about as many cases to all routes together; how many were sent."""
    schema = schemathesis.openapi.from_dict(server.client.get("/openapi.json").json())
    operations = [result.ok() for result in schema.get_all_operations()]
    operations = [operation for operation in operations if operation.path.startswith(ROUTES)]
    posts = [operation for operation in operations if operation.method.upper() == "POST"]
    sent = 0
    with requests.Session() as session:
        session.headers["Authorization"] = f"Bearer {KEY}"

        def send(case: Any) -> None:
            nonlocal sent
            sent += 1
            answer = case.call(base_url=server.url, session=session)
            assert answer.status_code in ANSWERS, (answer.status_code, answer.text)
            if answer.status_code != 200:  # else it may be a stream of events
                assert is_a_sentence(answer.status_code, answer.json(), case.operation.path), answer.text

        for operation in operations:
            if operation not in posts:
                send(operation.Case())
                continue
            fitting = operation.as_strategy().map(sensible)
            unfitting = operation.as_strategy(generation_mode=schemathesis.GenerationMode.NEGATIVE)
            for strategy in (fitting, unfitting):
                settings(
                    max_examples=cases // (2 * len(posts)),
                    phases=[Phase.generate],
                    database=None,
                    suppress_health_check=list(HealthCheck),
                )(given(strategy)(send))()
    return sent


def test_no_request_that_the_description_allows_or_forbids_breaks_the_server(fuzzed):
    assert fuzz(fuzzed, 240) >= 200


@pytest.mark.long
def test_ten_thousand_random_requests_do_not_break_the_server(fuzzed):
    assert fuzz(fuzzed, 11_000) >= 10_000


def test_without_the_key_there_is_nothing_but_health_and_the_page(fuzzed):
    with httpx.Client(base_url=fuzzed.url, timeout=30) as stranger:
        for path in ("/v1/models", "/metrics", "/languages", "/docs", "/openapi.json"):
            assert stranger.get(path).status_code == 401
        for path in ("/health/ready", "/"):
            assert stranger.get(path).status_code == 200
        body = {"q": "abc", "target": "small"}
        assert stranger.post("/translate", json=body).status_code == 401
        assert stranger.post("/translate", json=body | {"api_key": KEY + "!"}).status_code == 401
        assert stranger.post("/translate", json=body | {"api_key": KEY}).status_code == 200
        assert stranger.post("/v1/predict", json={"inputs": ["abc"]}, headers={"X-API-Key": "wrong"}).status_code == 401


@pytest.mark.parametrize("path", ["/translate", "/v1/predict"])
def test_a_stranger_is_refused_before_a_large_body_is_parsed(fuzzed, path):
    body = b'{"q":[' + b"0," * 500_000 + b"0]}"
    request = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", fuzzed.port), timeout=10) as client:
        client.sendall(request)  # the answer comes without the body
        assert client.recv(12) in (b"HTTP/1.1 401", b"HTTP/1.1 413")


HOSTILE = [
    pytest.param(b"[" * 100_000, id="a deep list"),
    pytest.param(b'{"inputs":' * 50_000, id="a deep object"),
    pytest.param(b'{"inputs": [' + b"[" * 900 + b"]" * 900 + b"]}", id="a nest that is whole"),
    pytest.param(b'{"inputs": ["a"], "beam": ' + b"9" * 5000 + b"}", id="a number of 5,000 digits"),
    pytest.param(b'{"inputs": ["a"], "beam": 1e400}', id="infinity"),
    pytest.param(b'{"inputs": ["a"], "beam": NaN, "q": NaN}', id="no number"),
    pytest.param(b'{"inputs": "a", "q": {}, "source": [], "target": 1}', id="wrong types"),
    pytest.param(b'{"inputs": [null, 1, true, [], {}]}', id="wrong types inside"),
    pytest.param(b'{"inputs": ["\\ud800"], "q": "\\udfff", "source": "\\ud800"}', id="half a character"),
    pytest.param(b'\xff\xfe{"inputs": ["a"]}', id="no UTF-8"),
    pytest.param(b'{"inputs": ["\xc3\x28"]}', id="broken UTF-8"),
    pytest.param(b"", id="nothing"),
    pytest.param(b"null", id="null"),
    pytest.param(b'"inputs"', id="a text"),
    pytest.param(b"{'inputs': ['a']}", id="Python"),
    pytest.param(b'{"inputs": ["a"]' + b" " * 500_000, id="half a megabyte of nothing"),
    pytest.param(b'{"inputs": [' + b'"a",' * 20_000 + b'"a"]}', id="20,000 inputs"),
    pytest.param(b'{"inputs": ["' + b"a" * 900_000 + b'"], "q": "' + b"b" * 90_000 + b'"}', id="a long text"),
    pytest.param(json.dumps({str(i): i for i in range(5000)}).encode(), id="5,000 keys"),
]


@pytest.mark.parametrize("body", HOSTILE)
def test_a_hostile_body_is_refused_by_every_route(fuzzed, body):
    for path in POSTS:
        answer = fuzzed.client.post(path, content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code in (400, 413, 422), (path, answer.text)
        assert is_a_sentence(answer.status_code, answer.json(), path)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"beam": 10**6}, "beam"),
        ({"beam": 10**30}, "beam"),
        ({"beam": 0}, "beam"),
        ({"beam": -1}, "beam"),
        ({"beam": 2.5}, "beam"),
        ({"beam": "2"}, "beam"),
        ({"beam": True}, "beam"),
        ({"nbest": 10**6}, "nbest"),
        ({"max_new_tokens": -1}, "max_new_tokens"),
        ({"max_new_tokens": 10**9}, "max_new_tokens"),
        ({"min_new_tokens": -1}, "min_new_tokens"),
        ({"no_repeat_ngram_size": -1}, "no_repeat_ngram_size"),
        ({"force_phrases": "phrase"}, "force_phrases"),
        ({"prefix": 3}, "prefix"),
        ({"stream": "yes"}, "stream"),
        ({"beams": 2}, "beams"),
        ({"model": "nowhere"}, "model"),
        ({"inputs": []}, "inputs"),
        ({"inputs": ["a", {"source": 1}]}, "inputs[1]"),
        ({"inputs": ["a", {"source": "b", "target_lang": "tlh"}]}, "inputs[1]"),
        ({"inputs": ["a"] * 1000}, "inputs"),
    ],
)
def test_a_wrong_option_is_refused_with_its_name(fuzzed, options, field):
    answer = fuzzed.client.post("/v1/predict", json={"inputs": ["abc"]} | options)
    assert answer.status_code == (404 if field == "model" else 422)
    assert answer.json()["error"]["field"].startswith(field)


@pytest.mark.parametrize(
    "kind", ["", "text/plain", "application/xml", "multipart/form-data", "application/json; x=\xfc"]
)
def test_a_wrong_content_type_is_a_client_error(fuzzed, kind):
    for path in POSTS:
        headers = {"Content-Type": kind.encode("latin-1")} if kind else {}
        answer = fuzzed.client.post(path, content=b'{"q": "a", "inputs": ["a"]', headers=headers)
        assert answer.status_code in (400, 415, 422)
        assert is_a_sentence(answer.status_code, answer.json(), path)


@pytest.mark.parametrize(
    "text", ["\x00", "\x7f\x1b[2J", "\u202e\u2066", "a\u0301" * 500, "\N{PILE OF POO}" * 100, " " * 20_000, "𝔘\ufeff"]
)
def test_unusual_texts_are_predicted_like_any_other(fuzzed, text):
    found = fuzzed.predict(text, "abc", max_new_tokens=5)
    assert found.status_code == 200, found.text
    assert len(found.json()["results"]) == 2
    answer = fuzzed.client.post("/translate", json={"q": text, "target": "small"})
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/predict", 405),
        ("DELETE", "/translate", 405),
        ("PATCH", "/", 405),
        ("OPTIONS", "/v1/predict", 405),
        ("GET", "/v1/nothing", 404),
        ("POST", "/v1/inspect/nothing", 404),
        ("GET", "/static/views/../__init__.py", 404),
        ("GET", "/static/views/%2e%2e/__init__.py", 404),
        ("GET", "/static/views/..%2f..%2fserve%2fsettings.py", 404),
        ("GET", "/%00", 404),
        ("GET", "/static/views/%00", 404),
        ("GET", "/" + "a" * 5000, 404),
        ("GET", "/static/views/" + "a" * 5000, 404),
    ],
)
def test_an_unknown_path_or_method_is_a_client_error(fuzzed, method, path, status):
    answer = fuzzed.client.request(method, httpx.URL(fuzzed.url).copy_with(raw_path=path.encode()))
    assert answer.status_code == status
    assert is_a_sentence(status, answer.json(), path)
