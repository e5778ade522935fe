"""LibreTranslate's API, so that its clients work here: POST /translate and GET /languages.

    {"q": "One. Two.", "source": "en", "target": "de"} → {"translatedText": "Eins. Zwei."}
    refusals                                           → {"error": "one sentence"}

A text is split into sentences, these are predicted together, and their results take their places again. Which model
translates from where to where is a table of routes:

    a model with language tags        every pair of its languages
    a model called en-de, or en_de    that pair
    any other model                   from its name to its name: there are no better words for what it does

"auto" as the source is whatever leads to the target; nothing here guesses the language of a text.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal
from urllib.parse import parse_qs

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import ConfigDict, Field, ValidationError

from dragoman.core.errors import nearest
from dragoman.core.registry import Options
from dragoman.core.types import Example
from dragoman.serve import schema
from dragoman.serve.middleware import Keys, headers_of, offered_keys
from dragoman.serve.schema import LARGE, Language, Refused, Text
from dragoman.serve.sentence_splitter import LONGEST, Piece, join, split
from dragoman.serve.settings import Serving

Model = Mapping[str, Any]  # what GET /v1/models says of one
Ask = Callable[[str, Sequence[Example], dict[str, Any]], Awaitable[list[dict[str, Any]]]]

JSON, FORM = "application/json", "application/x-www-form-urlencoded"
FIELDS = 1000  # of a form
MANY = 5000  # characters that are split beside the event loop, not in it: 1 ms of prose, 5 ms at worst

_PAIR = re.compile(r"([a-z]{2,3})[-_]([a-z]{2,3})")
_NAMES = (
    "ar Arabic, bn Bengali, bg Bulgarian, ca Catalan, cs Czech, da Danish, de German, el Greek, en English, "
    "es Spanish, et Estonian, fa Persian, fi Finnish, fr French, ga Irish, he Hebrew, hi Hindi, hr Croatian, "
    "hu Hungarian, id Indonesian, it Italian, ja Japanese, ko Korean, lt Lithuanian, lv Latvian, ms Malay, nl Dutch, "
    "no Norwegian, pl Polish, pt Portuguese, ro Romanian, ru Russian, sk Slovak, sl Slovenian, sv Swedish, sw Swahili, "
    "ta Tamil, te Telugu, th Thai, tl Tagalog, tr Turkish, uk Ukrainian, ur Urdu, vi Vietnamese, zh Chinese"
)
LANGUAGES = dict(entry.split(" ", 1) for entry in _NAMES.split(", "))


class Translate(Options):
    """A text or several, and from which language to which."""

    model_config = ConfigDict(extra="ignore")  # LibreTranslate has fields of its own web page

    q: Text | Annotated[list[Text], Field(max_length=LARGE)]
    source: Language = "auto"
    target: Language
    format: Literal["text", "html"] = "text"
    alternatives: Annotated[int, Field(ge=0, le=LARGE)] = 0
    api_key: Annotated[str, Field(max_length=1000)] = ""


class Detected(Options):
    """Instead of a guess: the source language of the model that was taken."""

    language: str
    confidence: float


class Translated(Options):
    """Lists where `q` is a list; `alternatives` and `detectedLanguage` where they were asked for."""

    translatedText: str | list[str]
    alternatives: list[str] | list[list[str]] | None = None
    detectedLanguage: Detected | list[Detected] | None = None


class Failed(Options):
    """Every answer but 200."""

    error: str


class Known(Options):
    """A language, and those it can be translated into."""

    code: str
    name: str
    targets: list[str]


# -- languages ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Route:
    """A model, the codes it goes by, and the languages it must be told, if any."""

    model: str
    source: str
    target: str
    source_lang: str | None = None
    target_lang: str | None = None


def routes(models: Mapping[str, Model]) -> list[Route]:
    """From where to where the models can translate, in their order."""
    found = []
    for name, model in models.items():
        if model.get("source", "text") != "text" or model.get("second_source"):  # no translation, and no text to split
            continue
        targets: list[str] = model["languages"]
        tagged: list[str] = model.get("source_languages", [])  # what <from:…> tags there are
        pair = _PAIR.fullmatch(name)
        if targets:
            pairs = [
                (one, other) for one in tagged or targets for other in targets if one != other or len(targets) == 1
            ]
            found += [Route(name, one, other, one if tagged else None, other) for one, other in pairs]
        elif model["kind"] != "language model":  # which goes on with a text instead
            found.append(Route(name, pair[1], pair[2]) if pair else Route(name, name, name))
    return found


def pick(every: Sequence[Route], source: str, target: str) -> Route:
    """The first route between two languages."""
    leading = [route for route in every if route.target == target]
    if not leading:
        known = {route.target for route in every}
        raise no_language("target", target, known)
    if source == "auto":
        if len({route.source for route in leading if route.source_lang}) > 1:
            text = "source is 'auto', and languages are not detected here; name one that GET /languages lists"
            raise Refused(400, "no_language", text, "source")
        return leading[0]
    fitting = [route for route in leading if route.source == source]
    if not fitting:
        raise no_language("source", source, {route.source for route in leading} | {"auto"})
    return fitting[0]


def no_language(field: str, code: str, known: set[str]) -> Refused:
    text = f"{field} '{code}' is not supported here (GET /languages lists what is){nearest(code, known)}"
    return Refused(400, "no_language", text, field)


def known_languages(every: Sequence[Route]) -> list[dict[str, Any]]:
    """As GET /languages lists them."""
    targets: dict[str, list[str]] = {}
    for route in every:
        targets.setdefault(route.source, [])
        if route.target not in targets[route.source]:
            targets[route.source].append(route.target)
    return [{"code": code, "name": LANGUAGES.get(code, code), "targets": to} for code, to in targets.items()]


# -- requests ----------------------------------------------------------------------------------------------------------


def read(content_type: str, data: bytes) -> Translate:
    """A request from JSON or a form."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind not in (JSON, FORM):
        raise Refused(415, "wrong_type", f"the body is '{kind[:100]}'; send {JSON} or {FORM}")
    try:
        values = json.loads(data) if kind == JSON else form(data)
    except (ValueError, RecursionError):  # no JSON, no UTF-8, a number of 5,000 digits, a nest of 100,000 lists
        raise Refused(
            422, "invalid_body", f"the body is no {kind} that can be read; send {{q, source, target}}"
        ) from None
    try:
        return Translate.model_validate(values, strict=kind == JSON)  # all that a form has is text
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = schema.place(found["loc"]) or "the body"
        raise Refused(422, "invalid", f"{where}: {found['msg']}; see /docs for what may be sent", where) from None


def form(data: bytes) -> dict[str, Any]:
    """The fields of a form; one that is given several times is a list."""
    fields = parse_qs(data.decode(), keep_blank_values=True, max_num_fields=FIELDS, errors="strict")
    return {name: values[0] if len(values) == 1 else values for name, values in fields.items()}


def check(body: Translate, serving: Serving) -> None:
    """Refuse what this server does not allow."""
    texts = body.q if isinstance(body.q, list) else [body.q]
    if body.format == "html":
        text = "format is 'html', and tags would be translated as words here; send plain text with format 'text'"
        raise Refused(422, "no_html", text, "format")
    if len(texts) > serving.max_inputs:
        text = f"q has {len(texts):,} texts; send at most {serving.max_inputs:,} in one request"
        raise Refused(422, "too_many", text, "q")
    longest = max(map(len, texts), default=0)
    if longest > serving.max_text:
        text = f"q has a text of {longest:,} characters; send at most {serving.max_text:,}"
        raise Refused(422, "too_long", text, "q")
    if body.alternatives >= serving.max_nbest:
        text = f"alternatives is {body.alternatives:,}; it must be less than {serving.max_nbest:,} here"
        raise Refused(422, "too_large", text, "alternatives")


# -- texts → texts -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Translator:
    """Who is asked, along which route, for how many results and with which options of a search."""

    ask: Ask
    route: Route
    count: int
    options: dict[str, Any]

    async def __call__(self, texts: Sequence[str], longest: int = LONGEST) -> list[list[str]]:
        """The best results of each text. A sentence of which the model read only the beginning is split further."""
        pieces = await self._split(texts, longest)
        sources = [piece.text for some in pieces for piece in some if piece.text]
        found = await self._predicted(sources)
        cut = [i for i, one in enumerate(found) if one["source_truncated"] and longest > 1]
        results = [[one["text"], *(other["text"] for other in one["alternatives"])] for one in found]
        if cut:
            again = await self([sources[i] for i in cut], min(longest, max(len(sources[i]) for i in cut)) // 2)
            for i, result in zip(cut, again, strict=True):
                results[i] = result
        rest = iter(results)
        return [self._together(some, [next(rest) if piece.text else [""] for piece in some]) for some in pieces]

    async def _split(self, texts: Sequence[str], longest: int) -> list[list[Piece]]:
        def work() -> list[list[Piece]]:
            return [split(text, longest) for text in texts]

        return work() if sum(map(len, texts)) < MANY else await asyncio.to_thread(work)

    async def _predicted(self, sources: Sequence[str]) -> list[dict[str, Any]]:
        if not sources:
            return []
        source_lang, target_lang = self.route.source_lang, self.route.target_lang
        examples = [Example(source, None, source_lang, target_lang) for source in sources]
        return await self.ask(self.route.model, examples, self.options)

    def _together(self, pieces: Sequence[Piece], results: Sequence[Sequence[str]]) -> list[str]:
        """The n-th results of all pieces as the n-th of the text, the best where a piece has fewer."""
        texts = [join(pieces, [some[n] if n < len(some) else some[0] for some in results]) for n in range(self.count)]
        return list(dict.fromkeys(texts))


def search_options(alternatives: int, model: Model) -> dict[str, Any]:
    """The model's own search, or a beam that has room for the alternatives."""
    if not alternatives:
        return {}
    return {"nbest": alternatives + 1, "beam": max(alternatives + 1, model["search"]["beam"])}


def answer(body: Translate, route: Route, results: list[list[str]]) -> dict[str, Any]:
    """Results in LibreTranslate's shape."""
    several = isinstance(body.q, list)
    best, others = [some[0] for some in results], [some[1:] for some in results]
    found: dict[str, Any] = {"translatedText": best if several else best[0]}
    if body.alternatives:
        found["alternatives"] = others if several else others[0]
    if body.source == "auto":
        detected = {"language": route.source, "confidence": 0.0}
        found["detectedLanguage"] = [detected] * len(best) if several else detected
    return found


def router(ask: Ask, models: Mapping[str, Model], serving: Serving) -> APIRouter:
    """The two routes, over a function that predicts."""
    every, keys, found = routes(models), Keys(serving.keys), APIRouter(tags=["LibreTranslate"])
    failures: dict[int | str, dict[str, Any]] = {
        code: {"model": Failed} for code in (400, 401, 403, 408, 413, 415, 422, 429, 500, 503, 504)
    }
    shape = Translate.model_json_schema()
    body_of = {"required": True, "content": {JSON: {"schema": shape}, FORM: {"schema": shape}}}

    async def translated(request: Request) -> dict[str, Any]:
        body = read(request.headers.get("content-type", ""), await request.body())
        keys.check([*offered_keys(request.headers), *([body.api_key.encode(errors="replace")] if body.api_key else [])])
        check(body, serving)
        route = pick(every, body.source, body.target)
        texts = [body.q] if isinstance(body.q, str) else body.q
        options = search_options(body.alternatives, models[route.model])
        results = await Translator(ask, route, body.alternatives + 1, options)(texts)
        return answer(body, route, results)

    @found.post(
        "/translate",
        summary="Translate texts",
        responses=failures | {200: {"model": Translated}},
        openapi_extra={"requestBody": body_of},
    )
    async def translate(request: Request) -> Response:
        """Long texts are split into sentences and put together again."""
        try:
            return JSONResponse(await translated(request))
        except Refused as refused:
            return JSONResponse({"error": refused.message}, refused.status, headers_of(refused))

    @found.get("/languages", summary="Languages", responses={200: {"model": list[Known]}, 401: {"model": Failed}})
    async def languages() -> Response:
        """What can be translated into what."""
        return JSONResponse(known_languages(every))

    return found
