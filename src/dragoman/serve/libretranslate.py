"""LibreTranslate's API, so that its clients work here: /translate, /detect, /languages; translate_file.py has files.

    {"q": "One. Two.", "source": "en", "target": "de"} → {"translatedText": "Eins. Zwei."}
    errors                                             → {"error": "one sentence"}

A text is split into sentences, which are predicted together; their translations are joined again. A table of routes
says which model translates between which languages:

    a model with language tags        every pair of its languages
    a model called en-de, or en_de    that pair
    any other model                   from its name to its name, for want of language codes

The source "auto" selects the only route to the target or, of several, the one whose language is detected in the text.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal
from urllib.parse import parse_qs

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import ConfigDict, Field, ValidationError

from dragoman.core.errors import did_you_mean
from dragoman.core.registry import Options
from dragoman.data.documents.languages import Languages
from dragoman.serve import background, schema, translate_file
from dragoman.serve.language_detection import READ_CHARS, DetectedLanguage, choose_language, detect_language
from dragoman.serve.middleware import APIKeys, request_keys
from dragoman.serve.schema import MAX_COUNT, APIError, Body, JSONObject, Language, ModelInfo, Text
from dragoman.serve.settings import ServerSettings
from dragoman.text.sentence_splitter import MAX_PIECE_CHARS, Piece, join_pieces, split_sentences

PredictFunction = Callable[[str, list[JSONObject], JSONObject], Awaitable[list[JSONObject]]]  # Batcher.predict

JSON, FORM = "application/json", "application/x-www-form-urlencoded"
MAX_FORM_FIELDS = 1000
MAX_SENTENCES = 10_000  # of one request; the text "a. a. a. …" has 300,000 in a megabyte

_LANGUAGE_PAIR = re.compile(r"([a-z]{2,3})[-_]([a-z]{2,3})")
_LANGUAGE_NAMES = (
    "ar Arabic, bn Bengali, bg Bulgarian, ca Catalan, cs Czech, da Danish, de German, el Greek, en English, "
    "es Spanish, et Estonian, fa Persian, fi Finnish, fr French, ga Irish, he Hebrew, hi Hindi, hr Croatian, "
    "hu Hungarian, id Indonesian, it Italian, ja Japanese, ko Korean, lt Lithuanian, lv Latvian, ms Malay, nl Dutch, "
    "no Norwegian, pl Polish, pt Portuguese, ro Romanian, ru Russian, sk Slovak, sl Slovenian, sv Swedish, sw Swahili, "
    "ta Tamil, te Telugu, th Thai, tl Tagalog, tr Turkish, uk Ukrainian, ur Urdu, vi Vietnamese, zh Chinese"
)
LANGUAGES = dict(entry.split(" ", 1) for entry in _LANGUAGE_NAMES.split(", "))


class TranslateRequest(Options):
    """The body of POST /translate."""

    model_config = ConfigDict(extra="ignore")  # LibreTranslate has more fields

    q: Text | Annotated[list[Text], Field(max_length=MAX_COUNT, fail_fast=True)]
    source: Language = "auto"
    target: Language
    format: Literal["text", "html"] = "text"
    alternatives: Annotated[int, Field(ge=0, le=MAX_COUNT)] = 0
    api_key: Annotated[str, Field(max_length=1000)] = ""


class DetectRequest(Options):
    """The body of POST /detect."""

    model_config = ConfigDict(extra="ignore")

    q: Text
    api_key: Annotated[str, Field(max_length=1000)] = ""


class TranslateResponse(Options):
    """The response of POST /translate: lists if `q` is a list; the optional fields if they were requested."""

    translatedText: str | list[str]
    alternatives: list[str] | list[list[str]] | None = None
    detectedLanguage: DetectedLanguage | list[DetectedLanguage] | None = None


class LibreTranslateError(Options):
    """The body of every response but 200."""

    error: str


class LanguageInfo(Options):
    """A source language, and the languages it can be translated into."""

    code: str
    name: str
    targets: list[str]


@dataclass(frozen=True)
class LanguageRoute:
    """A model and its language pair; `source_lang` and `target_lang` are set if the model needs language tags."""

    model: str
    source: str
    target: str
    source_lang: str | None = None
    target_lang: str | None = None


def language_routes(models: Mapping[str, ModelInfo]) -> list[LanguageRoute]:
    """List the language pairs that text models translate, in their order; models without languages go by their name."""
    routes: list[LanguageRoute] = []
    for name, model in models.items():
        if model["source"] != "text" or model["second_source"]:  # no text to split
            continue
        targets, sources = model["languages"], model["source_languages"]  # of <to:…> and <from:…> tags
        pair = _LANGUAGE_PAIR.fullmatch(name)
        if targets:
            routes += [
                LanguageRoute(name, source, target, source if sources else None, target)
                for source in sources or targets
                for target in targets
                if source != target or len(targets) == 1
            ]
        elif model["kind"] != "language model":  # which continues a text instead
            routes.append(LanguageRoute(name, pair[1], pair[2]) if pair else LanguageRoute(name, name, name))
    return routes


def select_route(routes: Sequence[LanguageRoute], source: str, target: str) -> LanguageRoute:
    """Return the first route between two languages, or with "auto" to the target. Raise APIError if there is none."""
    to_target = [route for route in routes if route.target == target]
    if not to_target:
        raise unsupported_language("target", target, {route.target for route in routes})
    if source == "auto":
        return to_target[0]
    matches = [route for route in to_target if route.source == source]
    if not matches:
        raise unsupported_language("source", source, {route.source for route in to_target} | {"auto"})
    return matches[0]


async def detect_route(
    routes: Sequence[LanguageRoute], source: str, target: str, text: str
) -> tuple[LanguageRoute, DetectedLanguage]:
    """Select a route, by the language of a text if `source` is "auto" and several languages lead to the target."""
    sources = list(dict.fromkeys(route.source for route in routes if route.target == target))
    if source == "auto" and len(sources) > 1:
        detected = await background.run(background.SMALL + 1, choose_language, text, sources)
        return select_route(routes, detected.language, target), detected
    route = select_route(routes, source, target)
    return route, DetectedLanguage(language=route.source, confidence=0.0)


def unsupported_language(field: str, code: str, supported: set[str]) -> APIError:
    """Build the error for a language that no route has."""
    text = f"{field} '{code}' is not supported here (GET /languages lists what is){did_you_mean(code, supported)}"
    return APIError(400, "no_language", text, field)


def list_languages(routes: Sequence[LanguageRoute]) -> list[JSONObject]:
    """Return the response of GET /languages: each source language with its targets."""
    targets: dict[str, list[str]] = {}
    for route in routes:
        targets.setdefault(route.source, [])
        if route.target not in targets[route.source]:
            targets[route.source].append(route.target)
    return [{"code": code, "name": LANGUAGES.get(code, code), "targets": to} for code, to in targets.items()]


def parse_request(content_type: str, data: bytes, settings: ServerSettings) -> TranslateRequest:
    """Parse and validate the body of POST /translate, as `parse_body` does."""
    return parse_body(content_type, data, settings, TranslateRequest)


def parse_body(content_type: str, data: bytes, settings: ServerSettings, body_class: type[Body]) -> Body:
    """Parse and validate the body of a request, JSON or a form; raise APIError if it is invalid."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind not in (JSON, FORM):
        raise APIError(415, "wrong_type", f"the body is '{kind[:100]}'; send {JSON} or {FORM}")
    values = schema.parse_json(data, settings) if kind == JSON else parse_form(data)
    try:
        return body_class.model_validate(values, strict=kind == JSON)  # the values of a form are all text
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        path = schema.field_path(first["loc"]) or "the body"
        raise APIError(422, "invalid", f"{path}: {first['msg']}; see /docs for the fields", path) from None


def parse_form(data: bytes) -> dict[str, str | list[str]]:
    """Parse a URL-encoded form; a repeated field becomes a list. Raise APIError if it is none."""
    try:
        fields = parse_qs(data.decode(), keep_blank_values=True, max_num_fields=MAX_FORM_FIELDS, errors="strict")
    except ValueError:  # not UTF-8, or too many fields
        raise APIError(422, "invalid_body", f"the body is not a valid {FORM}; send q, source, target") from None
    return {name: values[0] if len(values) == 1 else values for name, values in fields.items()}


def check_limits(body: TranslateRequest, settings: ServerSettings) -> None:
    """Raise APIError if a translate request exceeds this server's limits, or asks for HTML."""
    texts = body.q if isinstance(body.q, list) else [body.q]
    if body.format == "html":
        text = "format is 'html', and tags would be translated as words; send plain text with format 'text'"
        raise APIError(422, "no_html", text, "format")
    if len(texts) > settings.max_inputs:  # of a form; parse_json has counted those of JSON
        text = f"there are {len(texts):,} texts; send at most {settings.max_inputs:,} in one request"
        raise APIError(422, "too_many", text, "q")
    max_chars = max(map(len, texts), default=0)
    if max_chars > settings.max_text:
        text = f"q has a text of {max_chars:,} characters; send at most {settings.max_text:,}"
        raise APIError(422, "too_long", text, "q")
    if body.alternatives >= settings.max_nbest:
        text = f"alternatives is {body.alternatives:,}; it must be less than {settings.max_nbest:,} here"
        raise APIError(422, "too_large", text, "alternatives")


async def translate_texts(
    predict: PredictFunction, route: LanguageRoute, options: JSONObject, texts: Sequence[str], max_chars: int
) -> list[list[str]]:
    """Return the best translations of each text, sentence by sentence; split further what the model truncates."""

    def split_all() -> list[list[Piece]]:
        pieces, count = [], 0
        for text in texts:
            pieces.append(split_sentences(text, max_chars))
            count += len(pieces[-1])
            if count > MAX_SENTENCES:
                message = f"the texts have more than {MAX_SENTENCES:,} sentences; send less at a time"
                raise APIError(413, "too_large", message, "q")
        return pieces

    pieces = await background.run(sum(map(len, texts)), split_all)
    sources = [piece.text for text_pieces in pieces for piece in text_pieces if piece.text]
    items = [{"source": one, "source_lang": route.source_lang, "target_lang": route.target_lang} for one in sources]
    predictions = await predict(route.model, items, options | {"token_log_probs": False}) if items else []
    truncated = [i for i, one in enumerate(predictions) if one["source_truncated"] and max_chars > 1]
    results = [[one["text"], *(other["text"] for other in one["alternatives"])] for one in predictions]
    if truncated:
        shorter = min(max_chars, max(len(sources[i]) for i in truncated)) // 2
        retried = await translate_texts(predict, route, options, [sources[i] for i in truncated], shorter)
        for i, result in zip(truncated, retried, strict=True):
            results[i] = result
    next_result = iter(results)
    return [
        join_results(text_pieces, [next(next_result) if piece.text else [""] for piece in text_pieces])
        for text_pieces in pieces
    ]


def join_results(pieces: Sequence[Piece], results: Sequence[Sequence[str]]) -> list[str]:
    """Join the n-th translations of all pieces per n, deduplicated; a piece with fewer takes its best."""
    count = max(map(len, results), default=1)
    texts = [join_pieces(pieces, [nbest[n] if n < len(nbest) else nbest[0] for nbest in results]) for n in range(count)]
    return list(dict.fromkeys(texts))


def build_response(body: TranslateRequest, source: DetectedLanguage, results: list[list[str]]) -> JSONObject:
    """Build the JSON response of POST /translate from the n-best translations of each text."""
    is_list = isinstance(body.q, list)
    best, others = [nbest[0] for nbest in results], [nbest[1:] for nbest in results]
    response: JSONObject = {"translatedText": best if is_list else best[0]}
    if body.alternatives:
        response["alternatives"] = others if is_list else others[0]
    if body.source == "auto":
        detected = source.model_dump()
        response["detectedLanguage"] = [detected] * len(best) if is_list else detected
    return response


def build_router(predict: PredictFunction, models: Mapping[str, ModelInfo], settings: ServerSettings) -> APIRouter:
    """Build LibreTranslate's routes."""
    routes, keys, router = language_routes(models), APIKeys(settings.keys), APIRouter(tags=["LibreTranslate"])
    error_responses: dict[int | str, JSONObject] = {
        code: {"model": LibreTranslateError} for code in (400, 401, 403, 408, 413, 415, 422, 429, 500, 501, 503, 504)
    }
    body_schema = TranslateRequest.model_json_schema()
    request_body = {"required": True, "content": {JSON: {"schema": body_schema}, FORM: {"schema": body_schema}}}
    detect_schema = DetectRequest.model_json_schema()
    detect_body = {"required": True, "content": {JSON: {"schema": detect_schema}, FORM: {"schema": detect_schema}}}

    def check_key(request: Request, body_key: str) -> None:
        body_keys = [body_key.encode(errors="replace")] if body_key else []
        keys.check(request_keys(request.headers) or body_keys)  # middleware.py has checked those in headers

    @router.post(
        "/translate",
        summary="Translate texts",
        responses=error_responses | {200: {"model": TranslateResponse}},
        openapi_extra={"requestBody": request_body},
    )
    async def translate(request: Request) -> Response:
        """Long texts are split into sentences, and their translations are joined."""
        try:
            data = await request.body()
            body = await background.run(
                len(data), parse_request, request.headers.get("content-type", ""), data, settings
            )
            check_key(request, body.api_key)
            check_limits(body, settings)
            texts = [body.q] if isinstance(body.q, str) else body.q
            sample = "\n".join(texts)[:READ_CHARS]
            route, detected = await detect_route(routes, body.source, body.target, sample)
            nbest, beam = body.alternatives + 1, models[route.model]["search"]["beam"]
            options = {"nbest": nbest, "beam": max(nbest, beam)} if body.alternatives else {}
            results = await translate_texts(predict, route, options, texts, MAX_PIECE_CHARS)
            return JSONResponse(build_response(body, detected, results))
        except APIError as error:
            return JSONResponse({"error": error.message}, error.status, error.headers())

    @router.post(
        "/detect",
        summary="Detect a language",
        responses=error_responses | {200: {"model": list[DetectedLanguage]}},
        openapi_extra={"requestBody": detect_body},
    )
    async def detect(request: Request) -> Response:
        """The source languages, the most likely first, with percentages; a text in another language gets low ones."""
        try:
            data = await request.body()
            content_type = request.headers.get("content-type", "")
            body = await background.run(len(data), parse_body, content_type, data, settings, DetectRequest)
            check_key(request, body.api_key)
            sources = [route.source for route in routes]
            found = await background.run(background.SMALL + 1, detect_language, body.q, sources)
            return JSONResponse([one.model_dump() for one in found])
        except APIError as error:
            return JSONResponse({"error": error.message}, error.status, error.headers())

    @router.get("/frontend/settings", summary="Settings of a page")
    async def frontend() -> Response:
        """What a page for translating needs to know, such as the endings of files."""
        return JSONResponse(translate_file.frontend_settings(settings, routes[0].target if routes else "en"))

    async def open_route(source: str, target: str, text: str) -> translate_file.FileRoute:
        """Find the model for a file, and how it translates sentences without and with attention."""
        route, _ = await detect_route(routes, source, target, text)

        async def translate_all(sentences: Sequence[str]) -> list[str]:
            results = await translate_texts(predict, route, {}, sentences, MAX_PIECE_CHARS)
            return [nbest[0] for nbest in results]

        async def attend(sentences: Sequence[str]) -> list[JSONObject]:
            langs = {"source_lang": route.source_lang, "target_lang": route.target_lang}
            return await predict(route.model, [{"source": one, **langs} for one in sentences], {"attention": True})

        return translate_file.FileRoute(Languages(route.source, target), translate_all, attend)

    translate_file.add_file_routes(router, open_route, settings, error_responses)

    @router.get(
        "/languages",
        summary="Languages",
        responses={200: {"model": list[LanguageInfo]}, 401: {"model": LibreTranslateError}},
    )
    async def languages() -> Response:
        """Which languages can be translated into which."""
        return JSONResponse(list_languages(routes))

    return router
