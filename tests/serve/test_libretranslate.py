"""LibreTranslate's clients find their shapes here; long texts come back whole."""

from __future__ import annotations

import json
import shlex
import threading
from typing import Any

import httpx
import pytest

pytest.importorskip("fastapi")

from fastapi import FastAPI
from fastapi.testclient import TestClient

from dragoman.serve import api_docs, libretranslate
from dragoman.serve.schema import APIError
from dragoman.serve.settings import ServerSettings

SEARCH = {"name": "beam", "beam": 4}
PLAIN: dict[str, Any] = {
    "source": "text",
    "second_source": None,
    "kind": "pairs",
    "languages": [],
    "source_languages": [],
    "search": SEARCH,
}
TAGGED = PLAIN | {"languages": ["de", "fr"], "source_languages": ["de", "fr", "en"]}


class UppercaseTranslator:
    """A translator that shouts, and keeps what it was asked; it reads no more than `reach` characters."""

    def __init__(self, reach: int = 10_000) -> None:
        self.reach, self.calls = reach, []  # type: ignore[var-annotated]

    async def __call__(self, model: str, items: list[dict[str, Any]], options: dict[str, Any]) -> list[dict[str, Any]]:
        self.calls.append((model, items, options))
        if any("busy" in one["source"] for one in items):
            raise APIError(429, "busy", "the server is busy; try again later", retry_after=7)
        return [self.one(one["source"], options.get("nbest", 1)) for one in items]

    def one(self, source: str, nbest: int) -> dict[str, Any]:
        texts = [source[: self.reach].upper() + "'" * n for n in range(nbest)]
        others = [{"text": text, "source_truncated": False, "alternatives": []} for text in texts[1:]]
        return {"text": texts[0], "source_truncated": len(source) > self.reach, "alternatives": others}


def client(models: dict[str, Any], predict: Any = None, **settings: Any) -> TestClient:
    app = FastAPI()
    app.include_router(
        libretranslate.build_router(predict or UppercaseTranslator(), models, ServerSettings(**settings))
    )
    return TestClient(app)


def test_a_text_comes_back_translated_from_json_and_from_a_form():
    web = client({"en-de": PLAIN})
    body = {"q": "one. Two.", "source": "en", "target": "de"}
    for answer in (web.post("/translate", json=body), web.post("/translate", data=body)):
        assert answer.status_code == 200
        assert answer.json() == {"translatedText": "ONE. TWO."}


def test_several_texts_come_back_in_order():
    web = client({"en-de": PLAIN})
    texts = ["b\n\nc", "", "  a ", "🙂 x. Y"]
    answer = web.post("/translate", json={"q": texts, "source": "en", "target": "de"})
    assert answer.json() == {"translatedText": ["B\n\nC", "", "  A ", "🙂 X. Y"]}
    form = web.post("/translate", data={"q": ["a", "b"], "source": "en", "target": "de"})
    assert form.json() == {"translatedText": ["A", "B"]}
    assert web.post("/translate", json={"q": [], "target": "de"}).json()["translatedText"] == []


def test_the_sentences_of_all_texts_are_asked_for_at_once():
    predict = UppercaseTranslator()
    text = "First one.  Second one.\nThird, e.g. this."
    client({"en-de": PLAIN}, predict).post("/translate", json={"q": [text, "Fourth."], "source": "en", "target": "de"})
    [(model, items, options)] = predict.calls
    assert model == "en-de"
    assert [one["source"] for one in items] == ["First one.", "Second one.", "Third, e.g. this.", "Fourth."]
    assert options == {"token_log_probs": False}  # which no answer shows


def test_a_sentence_that_the_model_cannot_read_whole_is_split_until_it_can():
    text = ", ".join(f"word{i} and more" for i in range(100)) + ". Short one."
    for reach in (1, 7, 50, 1000):
        answer = client({"en-de": PLAIN}, UppercaseTranslator(reach)).post(
            "/translate", json={"q": text, "target": "de"}
        )
        assert answer.json()["translatedText"] == text.upper()


def test_alternatives_are_put_together_sentence_by_sentence_and_the_beam_has_room_for_them():
    predict = UppercaseTranslator()
    web = client({"en-de": PLAIN}, predict)
    answer = web.post("/translate", json={"q": "one. Two", "source": "en", "target": "de", "alternatives": 2})
    assert answer.json() == {"translatedText": "ONE. TWO", "alternatives": ["ONE.' TWO'", "ONE.'' TWO''"]}
    several = web.post("/translate", data={"q": ["a", "b"], "source": "en", "target": "de", "alternatives": "5"})
    assert [len(some) for some in several.json()["alternatives"]] == [5, 5]
    assert [options for _, _, options in predict.calls] == [
        {"nbest": 3, "beam": 4, "token_log_probs": False},
        {"nbest": 6, "beam": 6, "token_log_probs": False},
    ]


def test_a_model_with_tags_gets_both_languages():
    predict = UppercaseTranslator()
    web = client({"plain": PLAIN, "many": TAGGED}, predict)
    assert web.post("/translate", json={"q": "x", "source": "en", "target": "fr"}).status_code == 200
    [(model, [item], _)] = predict.calls
    assert (model, item["source_lang"], item["target_lang"]) == ("many", "en", "fr")


def test_a_model_with_only_target_tags_gets_the_target():
    predict = UppercaseTranslator()
    web = client({"many": TAGGED | {"source_languages": []}}, predict)
    for source in ("auto", "de"):
        assert web.post("/translate", json={"q": "x", "source": source, "target": "fr"}).status_code == 200
    assert [(one["source_lang"], one["target_lang"]) for _, [one], _ in predict.calls] == [(None, "fr")] * 2


def test_languages_come_from_tags_from_names_that_are_pairs_or_else_from_the_names():
    models = {"many": TAGGED, "en_ms": PLAIN, "g2p": PLAIN, "lm": PLAIN | {"kind": "language model"}}
    assert client(models).get("/languages").json() == [
        {"code": "de", "name": "German", "targets": ["fr"]},
        {"code": "fr", "name": "French", "targets": ["de"]},
        {"code": "en", "name": "English", "targets": ["de", "fr", "ms"]},
        {"code": "g2p", "name": "g2p", "targets": ["g2p"]},
    ]


def test_auto_selects_a_route_to_the_target_with_confidence_0():
    web = client({"en-de": PLAIN, "g2p": PLAIN, "many": TAGGED})
    answer = web.post("/translate", json={"q": "a", "source": "auto", "target": "g2p"}).json()
    assert answer == {"translatedText": "A", "detectedLanguage": {"language": "g2p", "confidence": 0.0}}
    refused = web.post("/translate", json={"q": "1 2 3", "source": "auto", "target": "fr"})
    assert refused.status_code == 400
    assert "not recognized" in refused.json()["error"]


@pytest.mark.parametrize(
    ("body", "status", "word"),
    [
        ({"source": "en", "target": "de"}, 422, "q"),
        ({"q": "a", "source": "en"}, 422, "target"),
        ({"q": 3, "source": "en", "target": "de"}, 422, "q"),
        ({"q": ["a", None], "source": "en", "target": "de"}, 422, "q"),
        ({"q": "a", "source": "en", "target": "xx"}, 400, "'xx' is not supported"),
        ({"q": "a", "source": "eng", "target": "de"}, 400, "did you mean 'en'"),
        ({"q": "a", "source": "\ud800", "target": "de"}, 422, "source"),
        ({"q": "<b>a</b>", "source": "en", "target": "de", "format": "html"}, 422, "format 'text'"),
        ({"q": "a", "source": "en", "target": "de", "alternatives": -1}, 422, "alternatives"),
        ({"q": "a", "source": "en", "target": "de", "alternatives": 32}, 422, "less than 32"),
        ({"q": "a", "source": "en", "target": "de", "alternatives": "1"}, 422, "alternatives"),
        ({"q": "a" * 101, "source": "en", "target": "de"}, 422, "101 characters"),
        ({"q": ["a"] * 5, "source": "en", "target": "de"}, 422, "5 texts"),
        ({"q": "busy", "source": "en", "target": "de"}, 429, "busy"),
        ([1, 2], 422, "the body"),
    ],
)
def test_a_refusal_is_one_sentence_in_libretranslates_shape(body, status, word):
    web = client({"en-de": PLAIN}, max_text=100, max_inputs=4)
    answer = web.post("/translate", content=json.dumps(body), headers={"Content-Type": "application/json"})
    assert answer.status_code == status
    assert list(answer.json()) == ["error"]
    assert word in answer.json()["error"]
    assert (answer.headers.get("retry-after") == "7") == (status == 429)


@pytest.mark.parametrize(
    ("data", "kind", "status"),
    [
        (b"{", "application/json", 422),
        (b"[" * 100_000, "application/json", 422),
        (b'{"q": ' + b"9" * 5000 + b"}", "application/json", 422),
        (b'{"q": "a\\ud800b", "target": "de"}', "application/json", 422),
        (b'{"q": NaN, "target": "de"}', "application/json", 422),
        (b"\xff\xfe\xff", "application/json; charset=utf-8", 422),
        (b"q=%ff&target=de", "application/x-www-form-urlencoded", 422),
        (b"&".join([b"q=a"] * 1001), "application/x-www-form-urlencoded", 422),
        (b"q=a", "text/plain", 415),
        (b"q=a", "multipart/form-data; boundary=x", 415),
    ],
)
def test_a_body_that_cannot_be_read_is_refused(data, kind, status):
    answer = client({"en-de": PLAIN}).post("/translate", content=data, headers={"Content-Type": kind})
    assert answer.status_code == status
    assert isinstance(answer.json()["error"], str)


def test_a_key_may_come_in_the_body_or_in_the_head_and_no_answer_repeats_one():
    web = client({"en-de": PLAIN}, keys=["right-key"])
    body = {"q": "a", "source": "en", "target": "de"}
    assert web.post("/translate", json=body | {"api_key": "right-key"}).status_code == 200
    assert web.post("/translate", data=body | {"api_key": "right-key"}).status_code == 200
    assert web.post("/translate", json=body, headers={"X-API-Key": "right-key"}).status_code == 200
    for wrong in ({}, {"api_key": "wrong-key"}, {"api_key": ""}):
        answer = web.post("/translate", json=body | wrong)
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"].startswith("Bearer")
        assert "-key" not in answer.json()["error"].replace("X-API-Key", "")


def test_the_documents_page_shows_descriptions_literally_and_an_example_that_fits():
    shape = {
        "required": ["q"],
        "properties": {
            "q": {"type": "array", "items": {"$ref": "#/components/schemas/Part"}, "maxItems": 9},
            "n": {"type": "integer", "minimum": 1, "default": 3, "description": "<img src=x onerror=alert(1)>"},
        },
    }
    part = {
        "required": ["kind"],
        "properties": {"kind": {"enum": ["a'b", "c"]}, "inner": {"$ref": "#/components/schemas/Part"}},
    }
    body = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Shape"}}}}
    route = {"post": {"summary": "<script>", "requestBody": body, "responses": {"200": {"description": "&"}}}}
    openapi = {"paths": {"/x/{y}": route}, "components": {"schemas": {"Shape": shape, "Part": part}}}
    page = api_docs.render_page(openapi)
    assert "<script" not in page
    assert "<img" not in page
    assert "&lt;img src=x onerror=alert(1)&gt;" in page
    assert "at most 9 items" in page
    assert "<td>3</td>" in page
    words = shlex.split(api_docs.curl_command(openapi, "post", "/x/{y}", route["post"]))
    assert json.loads(words[-1]) == {"q": [{"kind": "a'b"}]}


# -- the real server -------------------------------------------------------------------------------------------------


def test_the_server_translates_a_text_as_it_predicts_its_sentences(server):
    sentences = ["abc.", "dea!", "Haa b?"]
    predicted = [one["text"] for one in server.predict(*sentences, model="small").json()["results"]]
    text = f"{sentences[0]}\n{sentences[1]}  {sentences[2]}\n"
    answer = server.client.post("/translate", json={"q": text, "source": "small", "target": "small"})
    assert answer.json() == {"translatedText": f"{predicted[0]}\n{predicted[1]}  {predicted[2]}\n"}


def test_the_server_lists_its_languages_and_passes_them_to_the_model(server):
    known = {one["code"]: one["targets"] for one in server.client.get("/languages").json()}
    assert known["de"] == ["fr"]
    assert known["small"] == ["small"]
    [right] = server.predict({"source": "abc", "target_lang": "fr"}, model="tagged").json()["results"]
    answer = server.client.post("/translate", data={"q": "abc", "source": "de", "target": "fr"})
    assert answer.json()["translatedText"] == right["text"]


def test_a_page_of_text_is_translated_whole_while_others_are_served(server):
    page = " ".join(f"{'abcdefgh'[i % 8] * 5} {'gfedcba'[i % 7] * 9}.".capitalize() for i in range(500))
    others: list[int] = []
    asking = threading.Thread(
        target=lambda: others.extend(httpx.get(f"{server.url}/health/live").status_code for _ in range(20))
    )
    asking.start()
    answer = server.client.post("/translate", json={"q": page, "source": "small", "target": "small"})
    asking.join(30)
    assert answer.status_code == 200, answer.text
    assert others == [200] * 20


def test_the_documents_page_shows_every_route_without_a_script_or_an_outside_host(server):
    answer = server.client.get("/docs")
    text = answer.text
    assert answer.headers["content-type"].startswith("text/html")
    for path in server.client.get("/openapi.json").json()["paths"]:
        assert path in text
    text = text.replace("<link rel='icon' href='static/page/icon.svg' type='image/svg+xml'>", "")
    for forbidden in ("<script", "<link", "style=", "<style", "src=", "//cdn", "onclick"):
        assert forbidden not in text
    assert "curl http" in text
