"""The HTTP API, route by route, and the server around it.

    GET  /                        the playground          POST /v1/predict           results, at once or as events
    GET  /static/views|page/…     its files               POST /v1/score             log-probabilities of pairs
    GET  /health/live|ready       for whoever watches     POST /v1/inspect/VIEW      what a view shows
    GET  /metrics                 for Prometheus          GET  /v1/models            what is served
    GET  /docs, /openapi.json     this API, described     POST /v1/models/NAME/predict    results for a file as the body
                                                          POST /translate, GET /languages    as LibreTranslate has them

    socket → connections.py → limits.Guard → Counted → Leaving → route → batcher.py → workers.py

What a route refuses, and what was refused on the way to it, has one shape: see schema.py.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException
from starlette.staticfiles import StaticFiles

from dragoman import inspection
from dragoman.checkpoint import model_folder, model_paths
from dragoman.core.errors import nearest
from dragoman.core.registry import Options
from dragoman.core.types import Example
from dragoman.data.objectives import objectives
from dragoman.serve import api_docs, libretranslate, schema, uploads, view_routes
from dragoman.serve.batcher import Batcher, NonNegativeInt
from dragoman.serve.batcher import Request as Asked
from dragoman.serve.metrics import Counted, Metrics
from dragoman.serve.schema import Refused
from dragoman.serve.settings import Serving
from dragoman.serve.worker_pool import Workers
from dragoman.serve.worker_process import Message as Item
from dragoman.text.codec import Codec
from dragoman.version import __version__

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

PAGE = Path(__file__).parent / "static"
VIEWS = Path(inspection.__file__).parent / "static"

CODES = {
    400: "bad_request",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "not_allowed",
    408: "too_slow",
    413: "too_large",
    415: "wrong_type",
}
FAILURES: dict[int | str, dict[str, Any]] = {
    code: {"model": schema.Failure} for code in (400, 401, 404, 408, 413, 415, 422, 429, 500, 503, 504)
}


def build(serving: Serving, workers: Workers) -> FastAPI:
    """The app over workers that have started; its batcher is `app.state.batcher`, to be started in the event loop."""
    codecs = {name: opened(path, workers.models[name]["longest_source"]) for name, path in workers.paths.items()}
    batcher = Batcher(serving, workers, {name: count for name, (_, count) in codecs.items()})
    app = FastAPI(
        title="Dragoman",
        version=__version__,
        description="Sequence-to-sequence models: results, their probabilities, and a look inside.",
        docs_url=None,
        redoc_url=None,
        separate_input_output_schemas=False,
    )
    app.state.batcher, app.state.metrics = batcher, Metrics(batcher, workers)
    add_handlers(app)
    predicted = predicting(serving, batcher, {name: codec for name, (codec, _) in codecs.items()})
    add_predict(app, serving, batcher, predicted)
    add_upload(app, batcher, predicted)
    add_views(app, serving, batcher)
    add_health(app, workers)
    add_pages(app)
    app.include_router(libretranslate.router(batcher.ask, workers.models, serving))
    app.add_middleware(Leaving)
    app.add_middleware(Counted, metrics=app.state.metrics)
    return app


def opened(path: str, longest: int) -> tuple[Codec, NonNegativeInt]:
    """The tokenizers of a model, or of the first of an ensemble, and how they count the sources of an input."""
    config, codec = model_folder.open_codec(model_paths.paths(path)[0])
    if codec.modality is not None or codec.second_source is not None:
        return codec, uploads.counter(codec, longest)
    if objectives[config.training.objective.name].continues_text:  # type: ignore[attr-defined]
        return codec, lambda item: len(codec.encode_target(item["source"]))
    return codec, lambda item: len(
        codec.encode_source(Example(item["source"], None, item.get("source_lang"), item.get("target_lang")))
    )


# -- refusals ----------------------------------------------------------------------------------------------------------


def add_handlers(app: FastAPI) -> None:
    """Everything that is not an answer has one shape."""

    def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, Refused)
        body = json.dumps(error.body())  # in ASCII: a field's name may be half a character
        return Response(body, error.status, error.headers(), media_type="application/json")

    def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        sent = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        about_body = error.errors()[0]["loc"][0] == "body"
        if about_body and request.method == "POST" and not sent.endswith("json"):  # as curl does unless it is told
            text = "the body must be JSON; send the header Content-Type: application/json"
            return refused(request, Refused(415, "wrong_type", text))
        return refused(request, first_problem(error))

    def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        text = {404: f"there is no {request.url.path} here", 405: f"{request.method} is not possible here"}
        message = text.get(error.status_code, str(error.detail))
        body = Refused(error.status_code, CODES.get(error.status_code, "refused"), message).body()
        return JSONResponse(body, error.status_code, error.headers)

    app.add_exception_handler(Refused, refused)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)


def first_problem(error: RequestValidationError) -> Refused:
    """The first of pydantic's errors as a sentence; what was sent is not repeated."""
    found = error.errors()[0]
    kind, location = found["type"], found["loc"][1:]
    if kind == "json_invalid":
        return Refused(422, "invalid_json", "the body is not JSON; send an object, as /docs shows")
    where = (schema.place(location) or "")[:200] or None
    code = {"string_too_long": "too_long", "too_long": "too_many", "missing": "missing", "extra_forbidden": "unknown"}
    if kind == "missing":
        text = f"{where or 'the body'} is missing"
    elif kind == "extra_forbidden":
        text = f"{where} is not a field of this request; leave it out"
    else:
        said = str(found["msg"]).replace("Input should", "must").replace("Value error, ", "")
        text = f"{where or 'the body'}: {said[0].lower() + said[1:]}"
    return Refused(422, code.get(kind, "invalid"), text, where)


# -- routes ------------------------------------------------------------------------------------------------------------


def model_named(name: str | None, models: Mapping[str, Any]) -> str:
    """The model that a request names, or the first."""
    if name is None:
        return next(iter(models))
    if name not in models:
        text = f"there is no model '{name[:100]}' here (GET /v1/models lists them){nearest(name, models)}"
        raise Refused(404, "no_model", text, "model")
    return name


Predicting = Callable[[schema.Predict], Awaitable[Response]]


def predicting(serving: Serving, batcher: Batcher, codecs: Mapping[str, Codec]) -> Predicting:
    """What answers a request for results, however it came."""

    async def predicted(body: schema.Predict) -> Response:
        schema.check(body, serving)
        name = model_named(body.model, batcher.workers.models)
        items = fitting(body.inputs, batcher.workers.models[name], serving)
        asked = await batcher.admit("predict", name, items, body.options(), stream=body.stream)
        if body.stream:
            return StreamingResponse(events(batcher, asked, codecs[name]), media_type="text/event-stream")
        return answer(name, await batcher.results(asked))

    return predicted


def fitting(inputs: Sequence[Options], model: Mapping[str, Any], serving: Serving) -> list[Item]:
    """Inputs as the workers take them, if they are what the model reads."""
    items = [item.model_dump() for item in inputs]
    uploads.check_size([item[side] for item in items for side in uploads.SIDES], serving)
    for i, item in enumerate(items):
        uploads.fit(item, model, f"inputs[{i}].", serving)
    return items


def add_predict(app: FastAPI, serving: Serving, batcher: Batcher, predicted: Predicting) -> None:
    models = batcher.workers.models

    @app.post("/v1/predict", responses=FAILURES | {200: {"model": schema.Predicted}}, summary="Results for sources")
    async def predict(body: schema.Predict) -> Response:
        """One result for each input, in order; with `stream` as server-sent events.

        The events are `token` (greedy search alone: beam 1), `result` for each input, then `done`, or `error`.
        """
        return await predicted(body)

    @app.post("/v1/score", responses=FAILURES | {200: {"model": schema.Scores}}, summary="Log-probabilities of pairs")
    async def score(body: schema.Score) -> Response:
        """log p(target | source) of each input, in order; to a language model, of each text."""
        schema.check(body, serving)
        name = model_named(body.model, models)
        for i, pair in enumerate(body.inputs):
            if pair.target is None and models[name]["kind"] != "language model":
                text = f"inputs[{i}] has no target, which the probability would be of; send source and target"
                raise Refused(422, "missing", text, f"inputs[{i}].target")
        asked = await batcher.admit("score", name, fitting(body.inputs, models[name], serving), {})
        return answer(name, await batcher.results(asked))

    @app.get("/v1/models", responses={200: {"model": schema.Models}}, summary="What is served")
    async def list_models() -> Response:
        """`source` and `second_source` are what a model reads: text, image, sound, frames, clip, or null."""
        return JSONResponse({"models": list(models.values())})


def add_upload(app: FastAPI, batcher: Batcher, predicted: Predicting) -> None:
    file = {"schema": {"type": "string", "format": "binary"}}
    types = dict.fromkeys([*uploads.ACCEPTS["image"], *uploads.ACCEPTS["sound"], uploads.ANY], file)

    @app.post(
        "/v1/models/{model}/predict",
        responses=FAILURES | {200: {"model": schema.Predicted}},
        summary="Results for a file",
        openapi_extra={"requestBody": {"required": True, "content": types}},
    )
    async def predict_file(
        request: Request, model: schema.ModelName, asked: Annotated[schema.Upload, Query()]
    ) -> Response:
        """An image or a sound as the whole body, as `curl --data-binary @photo.jpg` sends it; options in the query."""
        name = model_named(model, batcher.workers.models)
        sent = request.headers.get("content-type", "")
        item = uploads.upload(batcher.workers.models[name], sent, await request.body(), asked.text)
        return await predicted(asked.predict(name, item))


def answer(model: str, results: Sequence[bytes]) -> Response:
    """The results as the workers wrote them: taking them apart again would hold up everyone else."""
    body = b'{"model": %s, "results": [%s]}' % (json.dumps(model).encode(), b", ".join(results))
    return Response(body, media_type="application/json")


async def events(batcher: Batcher, asked: Asked, codec: Codec) -> AsyncIterator[str]:
    """What becomes of a request, as server-sent events."""

    def event(kind: str, data: str) -> str:
        return f"event: {kind}\ndata: {data}\n\n"

    try:
        async for found in batcher.events(asked):
            if found.kind == "token":
                piece = codec.target_pieces([found.token])[0]
                yield event("token", json.dumps({"index": found.item, "id": found.token, "token": piece}))
            else:
                yield event("result", f'{{"index": {found.item}, {found.result.decode()[1:]}')
        yield event("done", "{}")
    except Refused as refused:
        yield event("error", json.dumps(refused.body()["error"]))


def add_views(app: FastAPI, serving: Serving, batcher: Batcher) -> None:
    """A route for each view, so that the API's description knows what each may be asked."""

    def add(view: str, kind: type[Options]) -> None:
        async def inspect(body: Any) -> Response:
            schema.check(body, serving)
            models = batcher.workers.models
            name = model_named(body.model, models)
            item = body.model_dump(exclude={"model"})
            parts = view_routes.parts(item)
            uploads.check_size(parts, serving)
            for one in view_routes.asked_of(name, item):
                view_routes.check_fit(view, models[model_named(one, models)])
                uploads.fit_all(item, models[one], serving)
            asked = await batcher.admit("inspect", name, [item], {}, view=view, parts=parts)
            return Response((await batcher.results(asked))[0], media_type="application/json")

        inspect.__annotations__["body"] = kind
        app.post(f"/v1/inspect/{view}", responses=FAILURES, summary=kind.__doc__, name=f"inspect_{view}")(inspect)

    for view, (kind, _, _) in view_routes.VIEWS.items():
        add(view, kind)


def add_health(app: FastAPI, workers: Workers) -> None:
    @app.get("/health/live", summary="Whether the server answers")
    async def live() -> Response:
        return JSONResponse({"live": True})

    @app.get("/health/ready", summary="Whether a worker answers", responses={503: {"description": "None does."}})
    async def ready() -> Response:
        answering = await workers.probe()
        body = {"ready": answering > 0, "workers": len(workers.every), "answering": answering}
        return JSONResponse(body, 200 if answering else 503, None if answering else {"Retry-After": "1"})

    @app.get("/metrics", summary="Counters for Prometheus")
    async def metrics() -> Response:
        return Response(app.state.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


def add_pages(app: FastAPI) -> None:
    @app.get("/", include_in_schema=False)
    async def playground() -> Response:
        index = PAGE / "index.html"
        if not index.is_file():
            raise Refused(404, "not_found", "this installation has no playground; see /docs for the API")
        return FileResponse(index, media_type="text/html; charset=utf-8")

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return HTMLResponse(api_docs.page(app.openapi()))

    for name, folder in {"views": VIEWS, "page": PAGE}.items():
        if folder.is_dir():
            app.mount(f"/static/{name}", StaticFiles(directory=folder), name=name)


# -- clients that leave ------------------------------------------------------------------------------------------------


class Leaving:
    """ASGI middleware: a route is cancelled when its client has left."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        complete, gone = asyncio.Event(), asyncio.Event()

        async def passed() -> Message:
            if complete.is_set():
                await gone.wait()
                return {"type": "http.disconnect"}
            message = await receive()
            if message["type"] == "http.disconnect" or not message.get("more_body", False):
                complete.set()
            return message

        async def watch(route: asyncio.Task[None]) -> None:
            await complete.wait()
            while (await receive())["type"] != "http.disconnect":
                pass
            gone.set()
            route.cancel()

        route = asyncio.ensure_future(self.app(scope, passed, send))
        record_attention = asyncio.create_task(watch(route))
        try:
            await asyncio.wait([route])
            if not gone.is_set() or not route.cancelled():
                route.result()
        finally:
            record_attention.cancel()
            route.cancel()
            with suppress(asyncio.CancelledError):
                await record_attention
