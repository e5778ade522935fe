"""The HTTP API: all routes of the FastAPI app (docs/serving.md lists them).

    socket → connections.py → RequestLimitMiddleware → MetricsMiddleware → CancelOnDisconnect → route
           → batcher.py → worker_pool.py

All errors have one format, see schema.py.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, Response, StreamingResponse
from fastapi.routing import APIRoute
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.staticfiles import StaticFiles

from dragoman import inspection
from dragoman.checkpoint import model_folder, model_paths
from dragoman.core.errors import did_you_mean
from dragoman.core.registry import Options
from dragoman.core.types import EOS, Example
from dragoman.inspection.render.page import import_modules
from dragoman.inspection.views import views
from dragoman.serve import api_docs, background, libretranslate, schema, uploads, view_routes
from dragoman.serve.batcher import Batcher, SourceTokenizer
from dragoman.serve.job_queue import PendingRequest
from dragoman.serve.metrics import Metrics, MetricsMiddleware
from dragoman.serve.middleware import CancelOnDisconnect
from dragoman.serve.schema import APIError, JSONObject, ModelInfo
from dragoman.serve.settings import ServerSettings
from dragoman.serve.worker_pool import WorkerPool
from dragoman.text.codec import Codec
from dragoman.version import __version__

PAGE_FOLDER = Path(__file__).parent / "static"
VIEWS_FOLDER = Path(inspection.__file__).parent / "static"

ERROR_CODES = {400: "bad_request", 401: "unauthorized", 404: "not_found", 405: "not_allowed"}  # of the framework
ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    code: {"model": schema.ErrorResponse} for code in (400, 401, 403, 404, 408, 413, 415, 422, 429, 500, 503, 504)
}
CHARACTERS_PER_INPUT = 100  # checking an input's fields takes as long as tokenizing so many, see background.py


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
        openapi_url=None,  # add_pages has it
        separate_input_output_schemas=False,
    )
    app.state.batcher, app.state.metrics = batcher, Metrics(batcher, pool)
    app.router.route_class = body_route(settings)
    add_exception_handlers(app)
    add_predict_routes(app, settings, batcher, codecs)
    add_view_routes(app, settings, batcher)
    add_health_routes(app, pool)
    add_pages(app)
    app.include_router(libretranslate.build_router(batcher.predict, pool.models, settings))
    app.add_middleware(CancelOnDisconnect)
    app.add_middleware(MetricsMiddleware, metrics=app.state.metrics)
    return app


def source_tokenizer(codec: Codec, model: ModelInfo) -> SourceTokenizer:
    """Build the tokenizer of a model's inputs; with files or second sources, it only estimates their positions."""

    def count_target(text: str) -> int:
        return len(codec.target_template.prefix) + len(codec.encode_phrase(text)) + 1

    if codec.modality is not None or codec.second_source is not None:
        count_positions = uploads.position_counter(codec, model["max_source_positions"])
        return SourceTokenizer(lambda item: (count_positions(item), None), count_target=count_target)

    def tokenize(item: JSONObject) -> tuple[int, list[int]]:
        if model["kind"] == "language model":  # its source is target text
            ids = [*codec.encode_phrase(item["source"]), EOS]
        else:
            example = Example(item["source"], None, item.get("source_lang"), item.get("target_lang"))
            ids = list(codec.encode_source(example))
        return len(ids), ids

    return SourceTokenizer(tokenize, codec.fingerprint, count_target)


def body_route(settings: ServerSettings) -> type[APIRoute]:
    """Build the class of routes whose JSON body is parsed and validated by us; FastAPI gets the validated object.

    FastAPI would do both in the event loop, for any number of values.
    """

    class BodyRoute(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            handle = super().get_route_handler()
            body_class: Any = self.body_field.field_info.annotation if self.body_field else None

            async def handle_parsed(request: Request) -> Response:
                if body_class is not None:
                    if not is_json(request.headers.get("content-type", "")):  # curl's default, a form of another site
                        text = "the body must be JSON; send the header Content-Type: application/json"
                        raise APIError(415, "wrong_type", text)
                    data = await request.body()
                    if not data:
                        raise APIError(422, "missing", "the body is missing")
                    request._json = await background.run(len(data), schema.parse_body, data, body_class, settings)
                return await handle(request)

            return handle_parsed

    return BodyRoute


def is_json(content_type: str) -> bool:
    """Return whether a Content-Type is JSON: application/json, or a type that ends with +json."""
    kind, _, subtype = content_type.partition(";")[0].strip().lower().partition("/")
    return kind == "application" and (subtype == "json" or subtype.endswith("+json"))


def add_exception_handlers(app: FastAPI) -> None:
    """Add handlers that give all error responses one JSON format."""

    def api_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, APIError)
        body = json.dumps(error.body())  # in ASCII: a field's name may be half a surrogate pair
        return Response(body, error.status, error.headers(), media_type="application/json")

    def invalid_query(request: Request, error: Exception) -> Response:
        """Return a 422 for a path or query that pydantic rejects; bodies are validated in `body_route`."""
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        return api_error(request, schema.validation_error({**first, "loc": first["loc"][1:]}))

    def http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        text = {404: f"there is no {request.url.path} here", 405: f"{request.method} is not allowed here"}
        message = text.get(error.status_code, str(error.detail))
        body = APIError(error.status_code, ERROR_CODES.get(error.status_code, "refused"), message).body()
        return JSONResponse(body, error.status_code, error.headers)

    app.add_exception_handler(APIError, api_error)
    app.add_exception_handler(RequestValidationError, invalid_query)
    app.add_exception_handler(HTTPException, http_error)


def resolve_model(name: str | None, models: Mapping[str, ModelInfo]) -> str:
    """Return the name of a request's model, by default the first; raise a 404 for an unknown name."""
    if name is None:
        return next(iter(models))
    if name not in models:
        text = f"there is no model '{name[:100]}' here (GET /v1/models lists them){did_you_mean(name, models)}"
        raise APIError(404, "no_model", text, "model")
    return name


def add_predict_routes(app: FastAPI, settings: ServerSettings, batcher: Batcher, codecs: Mapping[str, Codec]) -> None:
    """Add /v1/predict, /v1/score, /v1/models and /v1/models/{model}/predict, whose body is a file."""
    models = batcher.pool.models
    file = {"schema": {"type": "string", "format": "binary"}}
    file_types = [*uploads.CONTENT_TYPES["image"], *uploads.CONTENT_TYPES["audio"], uploads.OCTET_STREAM]

    async def prepare_inputs(body: schema.PredictRequest | schema.ScoreRequest, model: str) -> list[JSONObject]:
        def prepare() -> list[JSONObject]:
            content: dict[str, list[JSONObject]] = body.model_dump(include={"inputs"})
            uploads.prepare_inputs(content, models[model], settings)
            return content["inputs"]

        return await background.run(CHARACTERS_PER_INPUT * len(body.inputs), prepare)

    @app.post("/v1/predict", responses=ERROR_RESPONSES | {200: {"model": schema.PredictResponse}}, summary="Predict")
    async def predict(body: schema.PredictRequest) -> Response:
        """One result for each input, in order; with `stream` as server-sent events.

        The events are `token` (only with greedy search: beam 1), `result` for each input, then `done`, or `error`.
        """
        name = resolve_model(body.model, models)
        request = await batcher.admit("predict", name, await prepare_inputs(body, name), body.options())
        if body.stream:
            return StreamingResponse(server_sent_events(batcher, request, codecs[name]), media_type="text/event-stream")
        return results_response(name, await batcher.collect_results(request))

    @app.post(
        "/v1/score",
        responses=ERROR_RESPONSES | {200: {"model": schema.ScoreResponse}},
        summary="Log-probabilities of pairs",
    )
    async def score(body: schema.ScoreRequest) -> Response:
        """log p(target | source) of each input, in order; for a language model, log p of each text."""
        name = resolve_model(body.model, models)
        for i, pair in enumerate(body.inputs):
            if pair.target is None and models[name]["kind"] != "language model":
                text = f"inputs[{i}] has no target to score; send source and target"
                raise APIError(422, "missing", text, f"inputs[{i}].target")
        request = await batcher.admit("score", name, await prepare_inputs(body, name), {})
        return results_response(name, await batcher.collect_results(request))

    @app.get("/v1/models", responses={200: {"model": schema.ModelsResponse}}, summary="The models")
    async def list_models() -> Response:
        """`source` and `second_source` are what a model reads: text, image, audio, video, features, or null."""
        return JSONResponse({"models": list(models.values())})

    @app.post(
        "/v1/models/{model}/predict",
        responses=ERROR_RESPONSES | {200: {"model": schema.PredictResponse}},
        summary="Predict for a file",
        openapi_extra={"requestBody": {"required": True, "content": dict.fromkeys(file_types, file)}},
    )
    async def predict_file(
        request: Request, model: schema.ModelName, query: Annotated[schema.UploadQuery, Query()]
    ) -> Response:
        """The body is an image or a sound, as `curl --data-binary @photo.jpg` sends it; options are in the query."""
        name, content_type = resolve_model(model, models), request.headers.get("content-type", "")
        data = await request.body()
        item = await background.run(len(data), uploads.input_from_upload, models[name], content_type, data, query.text)
        try:
            body = schema.upload_to_request(query, name, item)
        except ValidationError as error:
            raise schema.validation_error(error.errors(include_input=False)[0]) from None
        schema.check_limits(body, settings)
        return await predict(body)


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
            index = event["item"]
            if event["kind"] == "token":
                piece = codec.target.pieces([event["token"]])[0]
                yield format_event("token", json.dumps({"index": index, "id": event["token"], "token": piece}))
            else:
                yield format_event("result", f'{{"index": {index}, {event["json"].decode()[1:]}')
        yield format_event("done", "{}")
    except APIError as error:
        yield format_event("error", json.dumps(error.body()["error"]))


def add_view_routes(app: FastAPI, settings: ServerSettings, batcher: Batcher) -> None:
    """Add POST /v1/inspect/VIEW for each view, with the fields of that view."""

    def add_route(view: str, schema_class: type[Options]) -> None:
        # No docstring: FastAPI would show it as the description of every view, in place of the view's own summary.
        async def inspect(body: Any) -> Response:
            models = batcher.pool.models
            name = resolve_model(body.model, models)

            def prepare() -> JSONObject:
                item: JSONObject = body.model_dump(exclude={"model"})
                for one in item.get("models") or [name]:
                    uploads.prepare_inputs(item, models[resolve_model(one, models)], settings)
                return item

            inputs = getattr(body, "inputs", None) or getattr(body, "sources", None) or ()
            item = await background.run(CHARACTERS_PER_INPUT * len(inputs), prepare)
            request = await batcher.admit("inspect", name, [item], {"view": view})
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
        responsive = pool.ready_count
        body = {"ready": responsive > 0, "workers": len(pool.workers), "answering": responsive}
        return JSONResponse(body, 200 if responsive else 503, None if responsive else {"Retry-After": "1"})

    @app.get("/metrics", summary="Metrics for Prometheus")
    async def metrics() -> Response:
        return Response(app.state.metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")


def add_pages(app: FastAPI) -> None:
    """Add the pages at /, /simple and /docs, /openapi.json, and the static files of pages and views."""

    @cache
    def description() -> bytes:
        return json.dumps(app.openapi()).encode()

    @cache
    def description_page() -> str:
        return api_docs.render_page(app.openapi())

    @app.get("/", include_in_schema=False)
    async def playground() -> Response:
        return FileResponse(PAGE_FOLDER / "index.html", media_type="text/html; charset=utf-8")

    @app.get("/simple", include_in_schema=False)
    async def simple() -> Response:
        return FileResponse(PAGE_FOLDER / "simple.html", media_type="text/html; charset=utf-8")

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return HTMLResponse(await background.run(background.SMALL + 1, description_page))

    @app.get("/openapi.json", include_in_schema=False)
    async def openapi() -> Response:
        return Response(await background.run(background.SMALL + 1, description), media_type="application/json")

    @app.get("/static/views/modules.js", include_in_schema=False)
    async def view_modules() -> Response:
        return Response(import_modules(), media_type="text/javascript")

    for name, folder in {"views": VIEWS_FOLDER, "page": PAGE_FOLDER}.items():
        app.mount(f"/static/{name}", StaticFiles(directory=folder), name=name)
