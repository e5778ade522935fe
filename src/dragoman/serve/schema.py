"""The JSON of requests and responses as pydantic models, and the one format of all errors.

    {"error": {"code": "too_long", "message": "one sentence", "field": "inputs[3]"}}

Unknown keys, wrong types and numbers out of bounds are refused with the field's name (422). The bounds here hold for
every server; `check_limits` checks the limits of one server (settings.py). `parse_json` counts before it parses, and
lists fail at their first wrong item: 520,000 zeros in a body of 1 MB took 4 s and 800 MB when each had its own error.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict, TypeVar

from pydantic import BeforeValidator, ConfigDict, Discriminator, Field, Tag, ValidationError, create_model

from dragoman.core.generation import GenerationOptions, parse_simple, simple_type
from dragoman.core.registry import Options
from dragoman.serve.settings import ServerSettings

JSONObject = dict[str, Any]  # parsed JSON
Body = TypeVar("Body", bound=Options)

MAX_COUNT = 1_000_000  # no server accepts more of anything …
MAX_BASE64_CHARS = 1 << 30  # … except bytes

Text = Annotated[str, Field(max_length=MAX_COUNT)]
Language = Annotated[str, Field(min_length=1, max_length=100)]
ModelName = Annotated[str, Field(min_length=1, max_length=200)]

MAX_SOURCES = 2000  # of a view
MAX_FIELDS = 64  # of one object of a request
VALUES_PER_INPUT = 8  # an object, its fields, and some to spare
MAX_LENGTH_RATIO = 10.0  # output tokens for each source token that a request may ask for


class APIError(Exception):
    """An error response: HTTP status, a code for programs, a sentence for people, the field it is about."""

    def __init__(
        self, status: int, code: str, message: str, field: str | None = None, retry_after: int | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.field = status, code, message, field
        self.retry_after = retry_after  # seconds

    def body(self) -> JSONObject:
        """Return the JSON object of the response."""
        return {"error": {"code": self.code, "message": self.message, "field": self.field}}

    def headers(self) -> dict[str, str]:
        """Return the headers of the response besides its type: Retry-After, WWW-Authenticate."""
        retry = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        return retry | ({"WWW-Authenticate": 'Bearer realm="dragoman"'} if self.status == 401 else {})


class ErrorDetail(Options):
    """A code for programs, a sentence for people, and the field the error is about."""

    code: str
    message: str
    field: str | None


class ErrorResponse(Options):
    """The body of every response but 200."""

    error: ErrorDetail


def field_path(location: Sequence[str | int]) -> str | None:
    """Format pydantic's location of a value as a path: inputs[3].source; None for the whole body."""
    keys = [key for key in location if key not in (TEXT_TAG, FILE_TAG)]
    path = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys)
    return path.removeprefix(".") or None


TEXT_TAG, FILE_TAG = "<text>", "<file>"  # in the locations of pydantic's errors


class FileContent(Options):
    """The bytes of a file in base64: an image, a sound, a video, an array of features (.npy)."""

    data: Annotated[str, Field(min_length=1, max_length=MAX_BASE64_CHARS)]


def _source_tag(value: object) -> str:
    return FILE_TAG if isinstance(value, dict | FileContent) else TEXT_TAG


# A text, or the bytes of a file if the model reads files. The name of a file is never opened: it is just a text.
TextOrFile = Annotated[
    Annotated[Text, Tag(TEXT_TAG)] | Annotated[FileContent, Tag(FILE_TAG)], Discriminator(_source_tag)
]


def _source_as_object(value: object) -> object:
    """Turn a bare text or file into an input with that source; leave other values as they are."""
    return {"source": value} if isinstance(value, str) or (isinstance(value, dict) and "data" in value) else value


class PredictInput(Options):
    """A source, a second source if the model reads two, and languages if the model knows several."""

    source: TextOrFile
    second_source: TextOrFile | None = None
    source_lang: Language | None = None
    target_lang: Language | None = None


class ScoreInput(PredictInput):
    """A source and the target to score; for a language model, `source` alone is the text."""

    target: Text | None = None


Source = Annotated[
    PredictInput, BeforeValidator(_source_as_object, json_schema_input_type=Text | FileContent | PredictInput)
]
ScorePair = Annotated[
    ScoreInput, BeforeValidator(_source_as_object, json_schema_input_type=Text | FileContent | ScoreInput)
]


class PredictRequest(GenerationOptions):
    """Sources, and generation options that override the model's own."""

    model: ModelName | None = None  # None: the first
    inputs: Annotated[list[Source], Field(min_length=1, max_length=MAX_COUNT, fail_fast=True)]
    attention: bool = False
    stream: bool = False  # server-sent events: token (greedy search), result, done
    token_log_probs: bool = True  # false saves their time on a CPU

    def options(self) -> JSONObject:
        """The generation options that the request sets, as JSON, and the others that are not as by default."""
        names = set(GenerationOptions.model_fields)
        values: JSONObject = self.model_dump(mode="json", include=names, exclude_unset=True)
        values |= {name: True for name in ("attention", "stream") if getattr(self, name)}
        return values if self.token_log_probs else values | {"token_log_probs": False}


class UploadFields(Options):
    """The fields of an upload besides its generation options."""

    model_config = ConfigDict(strict=False)  # all that a query has is text

    text: Text | None = None  # the other source of a model that reads a text and a file
    attention: bool = False
    stream: bool = False


if TYPE_CHECKING:
    UploadQuery = UploadFields
else:  # the same options as a request has, in the query of an upload, whose body is the file
    UploadQuery = create_model(
        "UploadQuery",
        __base__=UploadFields,
        **{
            name: (kind, []) if (kind := simple_type(name)) == list[str] else (kind | None, None)
            for name in GenerationOptions.model_fields
        },
    )


def upload_to_request(upload: UploadFields, model: str, item: JSONObject) -> PredictRequest:
    """Build the predict request of an uploaded file; raises pydantic's ValidationError for a wrong query."""
    values = parse_simple(upload.model_dump(exclude={"text"}))
    return PredictRequest.model_validate({"model": model, "inputs": [item], **values})


class ScoreRequest(Options):
    """Pairs to score."""

    model: ModelName | None = None
    inputs: Annotated[list[ScorePair], Field(min_length=1, max_length=MAX_COUNT, fail_fast=True)]


def parse_body(data: bytes, body_class: type[Body], settings: ServerSettings) -> Body:
    """Parse and validate a JSON body within the limits of this server; raise APIError if something is wrong."""
    value = parse_json(data, settings)
    try:
        body = body_class.model_validate(value)
    except ValidationError as error:
        raise validation_error(error.errors(include_url=False, include_input=False, include_context=False)[0]) from None
    check_limits(body, settings)
    return body


def parse_json(data: bytes, settings: ServerSettings) -> Any:
    """Parse a body whose number of values, fields and inputs is within bounds; raise APIError if it is not, or no JSON.

    The work of this function and of the validation after it is then bounded, whatever the body contains.
    """
    most = VALUES_PER_INPUT * max(settings.max_inputs, MAX_SOURCES)
    if count_values(data, most) > most:
        raise APIError(422, "too_many", f"the body has more than {most:,} values; send fewer in one request")
    try:
        value = json.loads(data.decode("utf-8-sig"))  # nothing else: the bytes of UTF-16 would be counted wrongly
    except (ValueError, RecursionError):  # not JSON, not UTF-8, a number of 5,000 digits, 10,000 nested lists
        raise APIError(422, "invalid_json", "the body is not JSON; send an object, as /docs shows") from None
    if isinstance(value, dict):
        for name, noun in (("inputs", "inputs"), ("q", "texts")):
            if isinstance(inputs := value.get(name), list) and len(inputs) > settings.max_inputs:
                text = f"there are {len(inputs):,} {noun}; send at most {settings.max_inputs:,} in one request"
                raise APIError(422, "too_many", text, name)
    unchecked = [value]
    while unchecked:
        part = unchecked.pop()
        if isinstance(part, dict) and len(part) > MAX_FIELDS:
            raise APIError(422, "too_many", f"an object has {len(part):,} fields; send at most {MAX_FIELDS}")
        if isinstance(part, dict | list):
            unchecked.extend(part.values() if isinstance(part, dict) else part)
    return value


def count_values(data: bytes, most: int) -> int:
    """Count the values of a JSON text by its separators outside of strings, without parsing it; stop after `most`."""
    parts = data.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"', 2 * most)  # every second one is a string
    if len(parts) > 2 * most:
        return most + 1
    outside = b"".join(parts[::2])
    return outside.count(b",") + outside.count(b"[") + outside.count(b"{") + 1


def validation_error(error: Mapping[str, Any]) -> APIError:
    """Convert one of pydantic's errors to an APIError whose message does not repeat the value."""
    kind, path = error["type"], (field_path(error["loc"]) or "")[:200] or None
    code = {"string_too_long": "too_long", "too_long": "too_many", "missing": "missing", "extra_forbidden": "unknown"}
    if kind == "missing":
        text = f"{path or 'the body'} is missing"
    elif kind == "extra_forbidden":
        text = f"{path} is not a field of this request; leave it out"
    else:
        message = str(error["msg"]).replace("Input should", "must").replace("Value error, ", "")
        text = f"{path or 'the body'}: {message[0].lower() + message[1:]}"
    return APIError(422, code.get(kind, "invalid"), text, path)


def check_limits(body: Options, settings: ServerSettings) -> None:
    """Raise APIError if a request exceeds this server's limits: characters of a text, generation options."""
    for location, text in iter_sources(body.model_dump()):
        if isinstance(text, str) and len(text) > settings.max_text:
            *parents, last = location
            side = last if isinstance(last, str) else "text"
            message = f"the {side} has {len(text):,} characters; send at most {settings.max_text:,}"
            raise APIError(422, "too_long", message, field_path(parents if parents and side == last else location))
    if isinstance(body, GenerationOptions):
        check_generation_limits(body, settings)


def check_generation_limits(options: GenerationOptions, settings: ServerSettings) -> None:
    """Raise APIError for options that cost more than this server allows, and for exhaustive search."""
    limits = {
        "beam": settings.max_beam,
        "num_samples": settings.max_beam,
        "nbest": settings.max_nbest,
        "max_new_tokens": settings.max_length,
        "min_new_tokens": settings.max_length,
        "max_length_extra": settings.max_length,
        "max_length_ratio": MAX_LENGTH_RATIO,
        "min_length_ratio": MAX_LENGTH_RATIO,
    }
    for name, most in limits.items():
        value = getattr(options, name)
        if name in options.model_fields_set and value is not None and value > most:
            raise APIError(422, "too_large", f"{name} is {value:,}; it must not exceed {most:,} here", name)
    for name, most in {"force_phrases": 20, "forbid_phrases": 100, "choices": 100}.items():
        if len(getattr(options, name)) > most:
            raise APIError(422, "too_many", f"{name} has more than {most:,} texts", name)
    if options.search.name == "exhaustive":
        raise APIError(
            422, "not_allowed", "exhaustive search is not served; use beam, greedy, sample or diverse", "search"
        )


def iter_sources(value: Any, location: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Yield every text and file of a request as JSON, with its location; skip model names."""
    if isinstance(value, str) or (isinstance(value, dict) and "data" in value):
        yield location, value
    elif isinstance(value, list | tuple | dict):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            if key not in ("model", "models"):
                yield from iter_sources(item, (*location, key))


class ModelInfo(TypedDict):
    """The description of one model in GET /v1/models."""

    name: str
    source: str  # "text" or the kind of file it reads
    second_source: str | None
    accepts: list[str]  # media types
    languages: list[str]  # of targets, if the model has language tags
    source_languages: list[str]
    kind: Literal["pairs", "language model", "labels"]
    shape: JSONObject
    search: JSONObject  # of its config: name, beam, is_sampling, max_length_ratio, max_length_extra, max_length
    max_source_positions: int
    precision: str
    device: str
    example: JSONObject  # an input that can be sent
    metrics: list[JSONObject]  # that fit its task, the most important first; none if no examples are kept with it
    views: list[str]  # that can be computed of it


class Result(Options):
    """One prediction; scores are log-probabilities, null if the constraints allowed nothing."""

    text: str
    score: float | None
    log_prob: float | None
    tokens: list[str]
    log_probs: list[float]  # of each token, and of </s> if the result ended with it; [] without token_log_probs
    finish_reason: Literal["eos", "length", "no_valid_token", "empty_source"]
    source_tokens: list[str]
    source_truncated: bool  # the source was too long, and only its beginning was read
    alternatives: list[Result]
    attention: list[list[float]] | None  # (tokens with </s>, source tokens)


class PredictResponse(Options):
    """A result for each input, in order."""

    model: str
    results: list[Result]


class ScoreResult(Options):
    """log p of a target, and of each of its tokens with </s>."""

    log_prob: float | None
    log_probs: list[float | None]


class ScoreResponse(Options):
    """A score for each input, in order."""

    model: str
    results: list[ScoreResult]


class ModelsResponse(Options):
    """The models that are served; the first is the default."""

    models: list[JSONObject]
