"""LibreTranslate's files: POST /translate_file, GET /download_file/NAME and GET /frontend/settings.

    file, source, target ─multipart─→ segments ─requests of some thousand characters each─→ translations
        → {"translatedFileUrl": "http://host/download_file/NAME"}

The requests of a file follow one another, so that others come in between. A translated file is kept in memory for some
minutes under a name that nobody can guess, so its download needs no key; the oldest go first when there are too many.
"""

from __future__ import annotations

import asyncio
import io
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from dragoman.core.errors import DataError, MissingExtra
from dragoman.core.registry import Options
from dragoman.data.documents import SERVER_FORMATS, Document, parse_document
from dragoman.data.documents.languages import Languages
from dragoman.data.documents.segments import Segment, Translation, needs_alignment
from dragoman.data.documents.translation import (
    SentenceResult,
    join_sentences,
    result_of,
    sentences_to_translate,
    split_segment,
)
from dragoman.serve import background
from dragoman.serve.middleware import APIKeys, request_keys
from dragoman.serve.multipart import parse_multipart
from dragoman.serve.schema import APIError, JSONObject
from dragoman.serve.settings import ServerSettings

TranslateSentences = Callable[[Sequence[str]], Awaitable[list[str]]]
PredictWithAttention = Callable[[Sequence[str]], Awaitable[list[JSONObject]]]

CHUNK_CHARS, CHUNK_SENTENCES = 8000, 200  # of one request of a file
MAX_FILES, MAX_STORED_BYTES, STORED_S = 200, 64 << 20, 600.0  # of the translated files that wait for their download


@dataclass(frozen=True)
class FileRoute:
    """The languages of a model for a file, and how it translates sentences without and with attention."""

    languages: Languages
    translate: TranslateSentences
    predict: PredictWithAttention


OpenRoute = Callable[[str, str, str], Awaitable[FileRoute]]  # (source, target, text)


class TranslateFileResponse(Options):
    """The response of POST /translate_file."""

    translatedFileUrl: str


class FileStore:
    """Translated files by name, until they are too old, too many or too large together."""

    def __init__(
        self, max_files: int = MAX_FILES, max_bytes: int = MAX_STORED_BYTES, seconds: float = STORED_S
    ) -> None:
        self.max_files, self.max_bytes, self.seconds = max_files, max_bytes, seconds
        self._files: OrderedDict[str, tuple[float, bytes]] = OrderedDict()

    def add(self, data: bytes, suffix: str) -> str:
        """Keep a file; return its name."""
        if len(data) > self.max_bytes:
            text = f"the translated file has {len(data):,} bytes, and this server keeps {self.max_bytes:,}; send less"
            raise APIError(413, "too_large", text, "file")
        name = secrets.token_urlsafe(32) + suffix
        self._files[name] = time.monotonic(), data
        self._expire()
        return name

    def get(self, name: str) -> bytes | None:
        """Return a file; None if there is none any more."""
        self._expire()
        return self._files.get(name, (0.0, None))[1]

    def _expire(self) -> None:
        size = sum(len(data) for _, data in self._files.values())
        while self._files:
            name, (kept_since, data) = next(iter(self._files.items()))
            is_old = time.monotonic() - kept_since > self.seconds
            if not is_old and len(self._files) <= self.max_files and size <= self.max_bytes:
                return
            size -= len(data)
            del self._files[name]


async def translate_document(document: Document, route: FileRoute) -> list[Translation]:
    """Translate the segments of a document; those with marks inside take their attention with them."""
    segments = document.segments
    sentences, needs = await background.run(sum(len(one.text) for one in segments), _split_all, segments)
    results: list[SentenceResult] = [SentenceResult("")] * len(sentences)
    for is_aligned in (False, True):
        indices = [i for i, one in enumerate(needs) if one == is_aligned]
        for chunk in _chunks(indices, sentences):
            texts = [sentences[i] for i in chunk]
            if is_aligned:
                own = [result_of(one) for one in await route.predict(texts)]
            else:
                own = [SentenceResult(text) for text in await route.translate(texts)]
            for i, result in zip(chunk, own, strict=True):
                results[i] = result
    remaining = iter(results)
    return [_join(segment, remaining) for segment in segments]


def _split_all(segments: Sequence[Segment]) -> tuple[list[str], list[bool]]:
    """The sentences of all segments, and which of them need attention."""
    sentences: list[str] = []
    needs: list[bool] = []
    for segment in segments:
        own = sentences_to_translate(split_segment(segment))
        sentences += own
        needs += [needs_alignment(segment)] * len(own)
    return sentences, needs


def _join(segment: Segment, remaining: Iterator[SentenceResult]) -> Translation:
    pieces = split_segment(segment)
    return join_sentences(pieces, [next(remaining) for _ in sentences_to_translate(pieces)])


def _chunks(indices: Sequence[int], sentences: Sequence[str]) -> Iterator[list[int]]:
    """Cut the sentences with these indices into lists of bounded size."""
    chunk: list[int] = []
    size = 0
    for i in indices:
        if chunk and (size + len(sentences[i]) > CHUNK_CHARS or len(chunk) == CHUNK_SENTENCES):
            yield chunk
            chunk, size = [], 0
        chunk.append(i)
        size += len(sentences[i])
    if chunk:
        yield chunk


def add_file_routes(
    router: APIRouter,
    open_route: OpenRoute,
    settings: ServerSettings,
    error_responses: dict[int | str, JSONObject],
) -> None:
    """Add /translate_file, /download_file/NAME and /frontend/settings to LibreTranslate's routes."""
    keys, store = APIKeys(settings.keys), FileStore()
    fields = {"source": {"type": "string"}, "target": {"type": "string"}, "api_key": {"type": "string"}}
    file = {"type": "string", "format": "binary"}
    form = {"schema": {"type": "object", "properties": {"file": file} | fields, "required": ["file", "target"]}}

    async def translate_form(request: Request) -> str:
        """Translate the file of a request; return the name under which it can be downloaded."""
        data = await request.body()
        form = await background.run(len(data), parse_multipart, request.headers.get("content-type", ""), data)
        own_keys = [form["api_key"].data] if "api_key" in form else []
        keys.check(request_keys(request.headers) or own_keys)  # middleware.py has checked those in headers
        upload = form.get("file")
        if upload is None or not upload.filename:
            raise APIError(400, "missing", "there is no file in the form; send it as the field file", "file")
        for name in ("source", "target"):
            if name not in form or not form[name].text:
                raise APIError(400, "missing", f"{name} is missing; send the code of a language", name)
        source, target = form["source"].text[:100], form["target"].text[:100]
        name = PurePosixPath(upload.filename.replace("\\", "/")).name[-100:]

        def parse(languages: Languages | None) -> Document:
            try:
                document = parse_document(upload.data, name, languages, SERVER_FORMATS)
            except MissingExtra as error:
                raise APIError(501, "no_format", str(error), "file") from None
            except DataError as error:
                raise APIError(400, "bad_file", str(error), "file") from None
            if sum(len(one.text) for one in document.segments) > settings.queue_tokens:  # hardly fewer than tokens
                text = f"the file has more than {settings.queue_tokens:,} characters of text; send a part of it"
                raise APIError(413, "too_large", text, "file")
            return document

        size = len(upload.data) + background.SMALL  # an archive unpacks to more
        document = await background.run(size, parse, Languages(None if source == "auto" else source, target))
        sample = "\n".join(one.text for one in document.segments[:50])
        route = await open_route(source, target, sample)
        if source == "auto":
            document = await background.run(size, parse, route.languages)
        translations = await translate_document(document, route)

        def write() -> bytes:
            output = io.BytesIO()
            try:
                document.write(translations, output)
            except DataError as error:
                raise APIError(400, "bad_file", str(error), "file") from None
            return output.getvalue()

        return store.add(await background.run(size, write), PurePosixPath(name).suffix.lower())

    @router.post(
        "/translate_file",
        summary="Translate a file",
        responses=error_responses | {200: {"model": TranslateFileResponse}},
        openapi_extra={"requestBody": {"required": True, "content": {"multipart/form-data": form}}},
    )
    async def translate_file(request: Request) -> Response:
        """SRT, PO, XLIFF, TMX, DOCX or plain text; its tags and structure are kept."""
        try:
            async with asyncio.timeout(settings.deadline_s):
                name = await translate_form(request)
            return JSONResponse({"translatedFileUrl": f"{str(request.base_url).rstrip('/')}/download_file/{name}"})
        except TimeoutError:
            text = f"the file was not translated within {settings.deadline_s:g} seconds; send a part of it"
            error = APIError(504, "deadline", text, "file")
        except APIError as raised:
            error = raised
        return JSONResponse({"error": error.message}, error.status, error.headers())

    @router.get("/download_file/{name}", summary="Download a translated file", responses={404: error_responses[400]})
    async def download_file(name: str) -> Response:
        """The name is known to the client that sent the file alone."""
        data = store.get(name)
        if data is None:
            return JSONResponse({"error": "there is no such file, or no longer; translate it again"}, 404)
        disposition = {"Content-Disposition": f'attachment; filename="translated{PurePosixPath(name).suffix}"'}
        return Response(data, media_type="application/octet-stream", headers=disposition)


def frontend_settings(settings: ServerSettings, target: str) -> JSONObject:
    """The response of GET /frontend/settings, which clients ask for the endings of files."""
    return {
        "apiKeys": bool(settings.keys),
        "keyRequired": bool(settings.keys),
        "charLimit": settings.max_text,
        "frontendTimeout": 500,
        "suggestions": False,
        "filesTranslation": True,
        "supportedFilesFormat": list(SERVER_FORMATS),
        "language": {"source": {"code": "auto", "name": "auto"}, "target": {"code": target, "name": target}},
    }
