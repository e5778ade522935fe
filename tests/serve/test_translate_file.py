"""Files go through LibreTranslate's routes, and languages are detected, within the server's limits."""

from __future__ import annotations

import io
from typing import Any

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("lxml")

from fastapi import FastAPI
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st
from tests.data.documents.samples import DOCX_TEXT, PO, SRT, make_docx, read_docx

from dragoman.serve import libretranslate
from dragoman.serve.multipart import FormPart, parse_multipart
from dragoman.serve.schema import APIError
from dragoman.serve.settings import ServerSettings
from dragoman.serve.translate_file import FileStore

from .test_libretranslate import PLAIN, TAGGED

ENGLISH = "The weather in the mountains was cold and the children stayed at home all day."
GERMAN = "Das Wetter in den Bergen war kalt und die Kinder blieben den ganzen Tag zu Hause."
CHINESE = "山里的天气很冷，孩子们整天都待在家里。"


async def shout(model: str, items: list[dict[str, Any]], options: dict[str, Any]) -> list[dict[str, Any]]:
    """A translator whose words each attend to themselves."""

    def one(source: str) -> dict[str, Any]:
        words = source.split()
        eye = [[float(i == j) for j in range(len(words) + 1)] for i in range(len(words) + 1)]
        return {
            "text": source.upper(),
            "tokens": [word.upper() for word in words],
            "source_tokens": [*words, "</s>"],
            "attention": eye if options.get("attention") else None,
            "source_truncated": False,
            "alternatives": [],
        }

    return [one(item["source"]) for item in items]


def client(models: dict[str, Any] | None = None, **settings: Any) -> TestClient:
    app = FastAPI()
    app.include_router(libretranslate.build_router(shout, models or {"en-de": PLAIN}, ServerSettings(**settings)))
    return TestClient(app)


def translated(web: TestClient, name: str, data: bytes, **fields: str) -> bytes:
    form = {"source": "en", "target": "de"} | fields
    answer = web.post("/translate_file", files={"file": (name, io.BytesIO(data))}, data=form)
    assert answer.status_code == 200, answer.json()
    url = answer.json()["translatedFileUrl"]
    assert url.startswith(f"{web.base_url}/download_file/")
    return web.get(url).content


def test_files_come_back_translated_with_their_structure() -> None:
    web = client()
    assert translated(web, "a.txt", b"One. Two!\r\n\r\n7\n") == b"ONE. TWO!\r\n\r\n7\n"
    assert b"<i>THE FIRST LINE" in translated(web, "a.srt", SRT)
    assert b'msgstr "OPEN %s NOW"' in translated(web, "C:\\x\\a.po", PO)
    assert read_docx(translated(web, "a.docx", make_docx())) == DOCX_TEXT.upper()


def test_a_file_that_is_damaged_unknown_or_too_long_is_refused_in_a_sentence() -> None:
    web = client(queue_tokens=50, item_tokens=50)
    for name, data, fields, status in [
        ("a.docx", b"PK", {}, 400),
        ("a.pdf", b"x", {}, 400),
        ("a.txt", b"\xff", {}, 400),
        ("a.txt", b"word " * 20, {}, 413),
        ("a.txt", b"word", {"target": "xx"}, 400),
        ("a.txt", b"word", {"target": ""}, 400),
    ]:
        form = {"source": "en", "target": "de"} | fields
        answer = web.post("/translate_file", files={"file": (name, data)}, data=form)
        assert answer.status_code == status, (name, answer.json())
        assert list(answer.json()) == ["error"]
    assert web.post("/translate_file", data={"source": "en", "target": "de"}).status_code == 415
    assert web.get("/download_file/nothing.srt").status_code == 404


def test_a_file_needs_a_key_and_its_download_only_its_name() -> None:
    web = client(keys=["right"])
    form = {"source": "en", "target": "de"}
    for key, status in {"": 401, "wrong": 401, "right": 200}.items():
        answer = web.post("/translate_file", files={"file": ("a.txt", b"one")}, data=form | {"api_key": key})
        assert answer.status_code == status
    assert web.get(answer.json()["translatedFileUrl"]).content == b"ONE"


def test_stored_files_are_bounded_in_number_bytes_and_time() -> None:
    store = FileStore(max_files=2, max_bytes=10)
    names = [store.add(b"1234", ".txt") for _ in range(3)]
    assert [store.get(name) for name in names] == [None, b"1234", b"1234"]
    assert store.add(b"1234567", ".txt")
    assert store.get(names[1]) is None
    with pytest.raises(APIError, match="11 bytes"):
        store.add(b"x" * 11, ".txt")
    expired = FileStore(seconds=-1.0)
    assert expired.get(expired.add(b"x", ".txt")) is None


def test_the_language_of_a_text_is_detected_among_those_served() -> None:
    pytest.importorskip("py3langid")
    web = client({"many": TAGGED})
    for body in ({"json": {"q": GERMAN}}, {"data": {"q": GERMAN}}):
        first, *others = web.post("/detect", **body).json()
        assert first["language"] == "de"
        assert first["confidence"] > 50
        assert {one["language"] for one in others} == {"fr", "en"}
    for unknown in web.post("/detect", json={"q": CHINESE}).json():
        assert unknown["confidence"] < 1
    assert web.post("/detect", json={"q": "123"}).json() == []
    assert web.post("/detect", json={}).status_code == 422


def test_auto_goes_to_the_model_of_the_detected_language() -> None:
    pytest.importorskip("py3langid")
    web = client({"many": TAGGED})
    answer = web.post("/translate", json={"q": ENGLISH, "source": "auto", "target": "fr"}).json()
    assert answer["detectedLanguage"]["language"] == "en"
    assert answer["detectedLanguage"]["confidence"] > 50
    refused = web.post("/translate", json={"q": CHINESE, "source": "auto", "target": "fr"})
    assert refused.status_code == 400
    assert translated(web, "a.txt", ENGLISH.encode(), source="auto", target="fr") == ENGLISH.upper().encode()


def test_settings_list_the_endings_of_files() -> None:
    assert ".docx" in client().get("/frontend/settings").json()["supportedFilesFormat"]


def test_a_file_goes_through_a_server_and_its_worker(server: Any) -> None:
    data, form = SRT.replace(b"The first line of it", b"abc"), {"source": "small", "target": "small"}
    answer = server.client.post("/translate_file", files={"file": ("a.srt", data)}, data=form)
    assert answer.status_code == 200, answer.json()
    output = server.client.get(answer.json()["translatedFileUrl"]).content
    assert [output.count(tag) for tag in (b"-->", b"<i>", b"</i>", b"<b>", b"</b>", b"42")] == [3, 1, 1, 1, 1, 1]
    body = {"json": {"q": ["abc"], "source": "small", "target": "small"}}
    refused = server.client.post("/translate_file", **body)
    assert refused.status_code == 415
    assert list(refused.json()) == ["error"]
    large = server.client.post("/translate_file", files={"file": ("a.srt", b"x" * 9_000_000)}, data=form)
    assert large.status_code == 413


FIELDS = st.dictionaries(st.text("abc", min_size=1, max_size=3), st.binary(max_size=20), min_size=1, max_size=4)


@given(FIELDS)
def test_a_form_is_read_as_it_was_written(fields: dict[str, bytes]) -> None:
    body = b"".join(
        b'--XyZ\r\nContent-Disposition: form-data; name="%s"; filename="f"\r\n\r\n%s\r\n' % (name.encode(), data)
        for name, data in fields.items()
    )
    parsed = parse_multipart("multipart/form-data; boundary=XyZ", body + b"--XyZ--\r\n")
    assert parsed == {name: FormPart(data, "f") for name, data in fields.items()}


@given(st.binary(max_size=100), st.text(max_size=60))
def test_a_body_that_is_no_form_is_refused(body: bytes, boundary: str) -> None:
    with pytest.raises(APIError):
        parse_multipart(f"multipart/form-data; boundary={boundary}", b"--x" + body)
