"""The HTTP API: all routes of the FastAPI app.

    GET  /                        the playground          POST /v1/predict           results, also as events
    GET  /static/views|page/…     its files               POST /v1/score             log-probabilities of pairs
    GET  /health/live|ready       health checks           POST /v1/inspect/VIEW      the data of a view
    GET  /metrics                 for Prometheus          GET  /v1/models            the models
    GET  /docs, /openapi.json     the API's description   POST /v1/models/NAME/predict    results for a file as the body
                                                          POST /translate, GET /languages    LibreTranslate's API

    socket → connections.py → RequestLimitMiddleware → MetricsMiddleware → CancelOnDisconnect → route
           → batcher.py → worker_pool.py

All errors have one format, see schema.py.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, Response, StreamingResponse
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.staticfiles import StaticFiles

from dragoman import inspection
from dragoman.checkpoint import model_folder, model_paths
from dragoman.core.errors import did_you_mean
from dragoman.core.registry import Options
from dragoman.core.types import Example
from dragoman.inspection.render.page import import_modules
from dragoman.inspection.views import views
from dragoman.serve import api_docs, libretranslate, schema, uploads, view_routes
from dragoman.serve.batcher import Batcher, PendingRequest, SourceTokenizer, SourceTokens
from dragoman.serve.metrics import Metrics, MetricsMiddleware
from dragoman.serve.middleware import CancelOnDisconnect
from dragoman.serve.schema import APIError, JSONObject, ModelInfo
from dragoman.serve.settings import ServerSettings
from dragoman.serve.worker_pool import WorkerPool
from dragoman.text.codec import Codec
from dragoman.version import __version__

PAGE_FOLDER = Path(__file__).parent / "static"
VIEWS_FOLDER = Path(inspection.__file__).parent / "static"

ERROR_CODES = {
    400: "bad_request",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "not_allowed",
    408: "too_slow",
    413: "too_large",
    415: "wrong_type",
}
ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    code: {"model": schema.ErrorResponse} for code in (400, 401, 404, 408, 413, 415, 422, 429, 500, 503, 504)
}


def build_app(settings: ServerSettings, pool: WorkerPool) -> FastAPI:
    """Build the FastAPI app on a started pool; the caller must start `app.state.batcher` in the event loop."""
    first_paths = {name: model_paths.parse_model_paths(path)[0] for name, path in pool.paths.items()}
    codecs = {name: model_folder.load_codec(path)[1] for name, path in first_paths.items()}
    tokenizers = {name: source_tokenizer(codec, pool.models[name]) for name, codec in codecs.items()}
    batcher = Batcher(settings, pool, tokenizers)
    app = FastAPI(
        title="Dragoman",
        version=__version__,
        description="Sequence-to-sequence models: predictions, their probabilities, and views of the models.",
        docs_url=None,
        redoc_url=None,
        separate_input_output_schemas=False,
    )
    app.state.batcher, app.state.metrics = batcher, Metrics(batcher, pool)
    add_exception_handlers(app)
    handle_predict = predict_handler(settings, batcher, codecs)
    add_predict_routes(app, settings, batcher, handle_predict)
    add_upload_route(app, batcher, handle_predict)
    add_view_routes(app, settings, batcher)
    add_health_routes(app, pool)
    add_pages(app)
    app.include_router(libretranslate.build_router(batcher.predict, pool.models, settings))
    app.add_middleware(CancelOnDisconnect)
    app.add_middleware(MetricsMiddleware, metrics=app.state.metrics)
    return app


def source_tokenizer(codec: Codec, model: ModelInfo) -> SourceTokenizer:
    """Build the tokenizer of a model's inputs; with files or second sources, it only estimates their positions."""
    if codec.modality is not None or codec.second_source is not None:
        count_positions = uploads.position_counter(codec, model["max_source_positions"])
        return SourceTokenizer(lambda item: SourceTokens(count_positions(item)))

    def tokenize(item: JSONObject) -> SourceTokens:
        """Return the number of source tokens of an item, and their ids; a language model's source is target text."""
        if model["kind"] == "language model":
            ids = codec.encode_target(item["source"])
        else:
            example = Example(item["source"], None, item.get("source_lang"), item.get("target_lang"))
            ids = list(codec.encode_source(example))
        return SourceTokens(len(ids), ids)

    return SourceTokenizer(tokenize, codec.fingerprint)


# -- errors ------------------------------------------------------------------------------------------------------------


def add_exception_handlers(app: FastAPI) -> None:
    """Add handlers that give all error responses one JSON format."""

    def api_error(request: Request, error: Exception) -> Response:
        """Return the JSON response of an APIError."""
        assert isinstance(error, APIError)
        body = json.dumps(error.body())  # in ASCII: a field's name may be half a surrogate pair
        return Response(body, error.status, error.headers(), media_type="application/json")

    def invalid_request(request: Request, error: Exception) -> Response:
        """Return a 422 for a request that pydantic rejects, or a 415 if its body was not sent as JSON."""
        assert isinstance(error, RequestValidationError)
        content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        is_body_error = error.errors()[0]["loc"][0] == "body"
        if is_body_error and request.method == "POST" and not content_type.endswith("json"):  # curl's default
            text = "the body must be JSON; send the header Content-Type: application/json"
            return api_error(request, APIError(415, "wrong_type", text))
        return api_error(request, validation_error(error))

    def http_error(request: Request, error: Exception) -> Response:
        """Return an HTTP error of the framework (404, 405 …) in our JSON format."""
        assert isinstance(error, HTTPException)
        text = {404: f"there is no {request.url.path} here", 405: f"{request.method} is not allowed here"}
        message = text.get(error.status_code, str(error.detail))
        body = APIError(error.status_code, ERROR_CODES.get(error.status_code, "refused"), message).body()
        return JSONResponse(body, error.status_code, error.headers)

    app.add_exception_handler(APIError, api_error)
    app.add_exception_handler(RequestValidationError, invalid_request)
    app.add_exception_handler(HTTPException, http_error)


def validation_error(error: RequestValidationError) -> APIError:
    """Convert the first of pydantic's errors to an APIError whose message does not repeat the value."""
    first = error.errors()[0]
    kind, location = first["type"], first["loc"][1:]
    if kind == "json_invalid":
        return APIError(422, "invalid_json", "the body is not JSON; send an object, as /docs shows")
    path = (schema.field_path(location) or "")[:200] or None
    code = {"string_too_long": "too_long", "too_long": "too_many", "missing": "missing", "extra_forbidden": "unknown"}
    if kind == "missing":
        text = f"{path or 'the body'} is missing"
    elif kind == "extra_forbidden":
        text = f"{path} is not a field of this request; leave it out"
    else:
        message = str(first["msg"]).replace("Input should", "must").replace("Value error, ", "")
        text = f"{path or 'the body'}: {message[0].lower() + message[1:]}"
    return APIError(422, code.get(kind, "invalid"), text, path)


# -- routes ------------------------------------------------------------------------------------------------------------


def resolve_model(name: str | None, models: Mapping[str, ModelInfo]) -> str:
    """Return the name of a request's model, by default the first; raise a 404 for an unknown name."""
    if name is None:
        return next(iter(models))
    if name not in models:
        text = f"there is no model '{name[:100]}' here (GET /v1/models lists them){did_you_mean(name, models)}"
        raise APIError(404, "no_model", text, "model")
    return name


PredictHandler = Callable[[schema.PredictRequest], Awaitable[Response]]


def predict_handler(settings: ServerSettings, batcher: Batcher, codecs: Mapping[str, Codec]) -> PredictHandler:
    """Build the coroutine that handles all predict requests, from JSON or uploads."""

    async def handle_predict(body: schema.PredictRequest) -> Response:
        """Check, queue and answer one predict request, as JSON or as server-sent events."""
        schema.check_limits(body, settings)
        name = resolve_model(body.model, batcher.pool.models)
        items = prepare_inputs(body.inputs, batcher.pool.models[name], settings)
        request = await batcher.admit("predict", name, items, body.options(), stream=body.stream)
        if body.stream:
            return StreamingResponse(server_sent_events(batcher, request, codecs[name]), media_type="text/event-stream")
        return results_response(name, await batcher.collect_results(request))

    return handle_predict


def prepare_inputs(inputs: Sequence[Options], model: ModelInfo, settings: ServerSettings) -> list[JSONObject]:
    """Convert inputs to what workers take; raise APIError if the model cannot read them or files are too large."""
    items = [item.model_dump() for item in inputs]
    uploads.check_media_size([item[side] for item in items for side in uploads.SIDES], settings)
    for i, item in enumerate(items):
        uploads.prepare_input(item, model, f"inputs[{i}].", settings)
    return items


def add_predict_routes(
    app: FastAPI, settings: ServerSettings, batcher: Batcher, handle_predict: PredictHandler
) -> None:
    """Add /v1/predict, /v1/score and /v1/models."""
    models = batcher.pool.models

    @app.post("/v1/predict", responses=ERROR_RESPONSES | {200: {"model": schema.PredictResponse}}, summary="Predict")
    async def predict(body: schema.PredictRequest) -> Response:
        """One result for each input, in order; with `stream` as server-sent events.

        The events are `token` (only with greedy search: beam 1), `result` for each input, then `done`, or `error`.
        """
        return await handle_predict(body)

    @app.post(
        "/v1/score",
        responses=ERROR_RESPONSES | {200: {"model": schema.ScoreResponse}},
        summary="Log-probabilities of pairs",
    )
    async def score(body: schema.ScoreRequest) -> Response:
        """log p(target | source) of each input, in order; for a language model, log p of each text."""
        schema.check_limits(body, settings)
        name = resolve_model(body.model, models)
        for i, pair in enumerate(body.inputs):
            if pair.target is None and models[name]["kind"] != "language model":
                text = f"inputs[{i}] has no target to score; send source and target"
                raise APIError(422, "missing", text, f"inputs[{i}].target")
        request = await batcher.admit("score", name, prepare_inputs(body.inputs, models[name], settings), {})
        return results_response(name, await batcher.collect_results(request))

    @app.get("/v1/models", responses={200: {"model": schema.ModelsResponse}}, summary="The models")
    async def list_models() -> Response:
        """`source` and `second_source` are what a model reads: text, image, audio, video, features, or null."""
        return JSONResponse({"models": list(models.values())})


def add_upload_route(app: FastAPI, batcher: Batcher, handle_predict: PredictHandler) -> None:
    """Add POST /v1/models/{model}/predict, whose body is a file."""
    file = {"schema": {"type": "string", "format": "binary"}}
    types = dict.fromkeys(
        [*uploads.CONTENT_TYPES["image"], *uploads.CONTENT_TYPES["audio"], uploads.OCTET_STREAM], file
    )

    @app.post(
        "/v1/models/{model}/predict",
        responses=ERROR_RESPONSES | {200: {"model": schema.PredictResponse}},
        summary="Predict for a file",
        openapi_extra={"requestBody": {"required": True, "content": types}},
    )
    async def predict_file(
        request: Request, model: schema.ModelName, query: Annotated[schema.UploadQuery, Query()]
    ) -> Response:
        """The body is an image or a sound, as `curl --data-binary @photo.jpg` sends it; options are in the query."""
        name = resolve_model(model, batcher.pool.models)
        content_type = request.headers.get("content-type", "")
        item = uploads.input_from_upload(batcher.pool.models[name], content_type, await request.body(), query.text)
        try:
            body = schema.upload_to_request(query, name, item)
        except ValidationError as error:
            problems = [{**problem, "loc": ("query", *problem["loc"])} for problem in error.errors()]
            raise RequestValidationError(problems) from None
        return await handle_predict(body)


def results_response(model: str, results: Sequence[bytes]) -> Response:
    """Join the JSON results of the workers, unparsed, to one JSON response."""
    body = b'{"model": %s, "results": [%s]}' % (json.dumps(model).encode(), b", ".join(results))
    return Response(body, media_type="application/json")


async def server_sent_events(batcher: Batcher, request: PendingRequest, codec: Codec) -> AsyncIterator[str]:
    """Yield the tokens and results of a request as server-sent events, at the end `done` or `error`."""

    def format_event(kind: str, data: str) -> str:
        return f"event: {kind}\ndata: {data}\n\n"

    try:
        async for event in batcher.stream_events(request):
            if event.kind == "token":
                piece = codec.target_pieces([event.token])[0]
                yield format_event("token", json.dumps({"index": event.item, "id": event.token, "token": piece}))
            else:
                yield format_event("result", f'{{"index": {event.item}, {event.result.decode()[1:]}')
        yield format_event("done", "{}")
    except APIError as error:
        yield format_event("error", json.dumps(error.body()["error"]))


def add_view_routes(app: FastAPI, settings: ServerSettings, batcher: Batcher) -> None:
    """Add POST /v1/inspect/VIEW for each view, with the fields of that view."""

    def add_route(view: str, schema_class: type[Options]) -> None:
        """Add the route of one view."""

        # No docstring: FastAPI would show it as the description of every view, in place of the view's own summary.
        async def inspect(body: Any) -> Response:
            schema.check_limits(body, settings)
            models = batcher.pool.models
            name = resolve_model(body.model, models)
            item = body.model_dump(exclude={"model"})
            sources = view_routes.collect_sources(item)
            uploads.check_media_size(sources, settings)
            for one in view_routes.requested_models(name, item):
                uploads.prepare_view_inputs(item, models[resolve_model(one, models)], settings)
            request = await batcher.admit("inspect", name, [item], {}, view=view, view_sources=sources)
            return Response((await batcher.collect_results(request))[0], media_type="application/json")

        inspect.__annotations__["body"] = schema_class
        path, summary = f"/v1/inspect/{view}", schema_class.__doc__
        app.post(path, responses=ERROR_RESPONSES, summary=summary, name=f"inspect_{view}")(inspect)

    for view in views.names:
        add_route(view, view_routes.request_schema(view))


def add_health_routes(app: FastAPI, pool: WorkerPool) -> None:
    """Add /health/live, /health/ready and /metrics."""

    @app.get("/health/live", summary="Whether the server answers")
    async def live() -> Response:
        return JSONResponse({"live": True})

    @app.get("/health/ready", summary="Whether a worker answers", responses={503: {"description": "None does."}})
    async def ready() -> Response:
        responsive = await pool.count_responsive()
        body = {"ready": responsive > 0, "workers": len(pool.workers), "answering": responsive}
        return JSONResponse(body, 200 if responsive else 503, None if responsive else {"Retry-After": "1"})

    @app.get("/metrics", summary="Metrics for Prometheus")
    async def metrics() -> Response:
        return Response(app.state.metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")


def add_pages(app: FastAPI) -> None:
    """Add the playground page at /, /docs and the static files of pages and views."""

    @app.get("/", include_in_schema=False)
    async def playground() -> Response:
        """Return the playground page; 404 if it is not installed."""
        index = PAGE_FOLDER / "index.html"
        if not index.is_file():
            raise APIError(404, "not_found", "this installation has no playground; see /docs for the API")
        return FileResponse(index, media_type="text/html; charset=utf-8")

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return HTMLResponse(api_docs.render_page(app.openapi()))

    @app.get("/static/views/modules.js", include_in_schema=False)
    async def view_modules() -> Response:
        return Response(import_modules(), media_type="text/javascript")

    for name, folder in {"views": VIEWS_FOLDER, "page": PAGE_FOLDER}.items():
        if folder.is_dir():
            app.mount(f"/static/{name}", StaticFiles(directory=folder), name=name)
