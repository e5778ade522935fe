"""What requests may say and what answers look like, as JSON; and the one shape of everything that is refused.

    {"error": {"code": "too_long", "message": "one sentence", "field": "inputs[3]"}}

Unknown keys, other types and numbers out of bounds are refused with the field's name (422). The bounds here are those
of any server; what one server allows (serve/settings.py) is checked by `check`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Discriminator, Field, Tag

from dragoman.core.registry import Options
from dragoman.serve.settings import Serving

LARGE = 1_000_000  # no server takes more of anything …
HUGE = 1 << 30  # … but bytes

Text = Annotated[str, Field(max_length=LARGE)]
Phrase = Annotated[str, Field(min_length=1, max_length=1000)]
Language = Annotated[str, Field(min_length=1, max_length=100)]
ModelName = Annotated[str, Field(min_length=1, max_length=200)]
Size = Annotated[int, Field(ge=1, le=LARGE)]
Length = Annotated[int, Field(ge=0, le=LARGE)]


class Refused(Exception):
    """A request that is not served, and why."""

    def __init__(
        self, status: int, code: str, message: str, field: str | None = None, retry_after: int | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.field, self.retry_after = status, code, message, field, retry_after

    def body(self) -> dict[str, Any]:
        return {"error": {"code": self.code, "message": self.message, "field": self.field}}

    def headers(self) -> dict[str, str]:
        return {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}


class Problem(Options):
    """What was refused: a word for programs, a sentence for people, the field it is about."""

    code: str
    message: str
    field: str | None


class Failure(Options):
    """Every answer but 200."""

    error: Problem


def place(location: Sequence[str | int]) -> str | None:
    """A place in a body as people write it: inputs[3].source."""
    named = [part for part in location if part not in (TEXT, MEDIUM)]
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in named)
    return text.removeprefix(".") or None


# -- requests ----------------------------------------------------------------------------------------------------------


TEXT, MEDIUM = "<text>", "<medium>"  # what pydantic calls the two in the place of a problem


class Modality(Options):
    """The bytes of a file in base64: an image, a sound, an array of frames (.npy)."""

    data: Annotated[str, Field(min_length=1, max_length=HUGE)]


def _either(value: Any) -> str:
    return MEDIUM if isinstance(value, dict | Modality) else TEXT


# A text, or the bytes of a file where the model reads one; a file's name is a text like any other.
Given = Annotated[Annotated[Text, Tag(TEXT)] | Annotated[Modality, Tag(MEDIUM)], Discriminator(_either)]


def _source(value: Any) -> Any:
    return {"source": value} if isinstance(value, str) or (isinstance(value, dict) and "data" in value) else value


class Input(Options):
    """A source, `second_source` where the model reads two, and the languages where it knows several."""

    source: Given
    second_source: Given | None = None
    source_lang: Language | None = None
    target_lang: Language | None = None


class Pair(Options):
    """A source and the target to score; to a language model `source` alone is the text."""

    source: Given
    second_source: Given | None = None
    target: Text | None = None
    source_lang: Language | None = None
    target_lang: Language | None = None


Source = Annotated[Input, BeforeValidator(_source, json_schema_input_type=Text | Modality | Input)]
Scored = Annotated[Pair, BeforeValidator(_source, json_schema_input_type=Text | Modality | Pair)]


class Predict(Options):
    """Sources, and how to search for their results; what is left out is as the model has it."""

    model: ModelName | None = None  # none: the first
    inputs: Annotated[list[Source], Field(min_length=1, max_length=LARGE)]
    beam: Size | None = None  # hypotheses kept at each step; 1 is greedy
    nbest: Size = 1
    attention: bool = False
    prefix: Annotated[str, Field(max_length=1000)] = ""  # results begin with this
    require: Annotated[list[Phrase], Field(max_length=20)] = []  # and hold these; needs a beam
    forbid: Annotated[list[Phrase], Field(max_length=100)] = []  # and hold none of these
    min_length: Length | None = None  # tokens
    max_length: Size | None = None  # tokens
    no_repeat: Length | None = None  # no run of so many tokens twice in a result
    stream: bool = False  # server-sent events: token (greedy), result, done

    def options(self) -> dict[str, Any]:
        """What is asked of the search, without what is not."""
        named = self.model_dump(exclude={"model", "inputs", "stream"})
        return {key: value for key, value in named.items() if value != type(self).model_fields[key].default}


class Upload(Options):
    """The same for a file that is a request's whole body, in the query."""

    model_config = ConfigDict(strict=False)  # all that a query has is text

    text: Text | None = None  # the other source of a model that reads a text and a file
    beam: Size | None = None
    nbest: Size = 1
    attention: bool = False
    prefix: Annotated[str, Field(max_length=1000)] = ""
    require: Annotated[list[Phrase], Field(max_length=20)] = []
    forbid: Annotated[list[Phrase], Field(max_length=100)] = []
    min_length: Length | None = None
    max_length: Size | None = None
    no_repeat: Length | None = None
    stream: bool = False

    def predict(self, model: str, item: dict[str, Any]) -> Predict:
        return Predict.model_validate({"model": model, "inputs": [item], **self.model_dump(exclude={"text"})})


class Score(Options):
    """Pairs whose log-probabilities are asked for."""

    model: ModelName | None = None
    inputs: Annotated[list[Scored], Field(min_length=1, max_length=LARGE)]


def check(body: Any, serving: Serving) -> None:
    """Refuse what this server does not allow."""
    inputs = getattr(body, "inputs", None) or []
    if len(inputs) > serving.max_inputs:
        text = f"there are {len(inputs):,} inputs; send at most {serving.max_inputs:,} in one request"
        raise Refused(422, "too_many", text, "inputs")
    for location, text in texts(body):
        if len(text) > serving.max_text:
            *outside, last = location
            side = last if isinstance(last, str) else "text"
            found = f"the {side} has {len(text):,} characters; send at most {serving.max_text:,}"
            raise Refused(422, "too_long", found, place(outside if outside and side == last else location))
    for name in ("beam", "nbest", "min_length", "max_length"):
        value, most = (
            getattr(body, name, None),
            getattr(serving, f"max_{name.removeprefix('min_').removeprefix('max_')}"),
        )
        if value is not None and value > most:
            raise Refused(422, "too_large", f"{name} is {value:,}; it must not exceed {most:,} here", name)


def texts(value: Any, location: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Every text of a request and its place; names of models are none, nor are the bytes of a medium."""
    if isinstance(value, str):
        yield location, value
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from texts(item, (*location, i))
    elif isinstance(value, Options) and not isinstance(value, Modality):
        for name in type(value).model_fields:
            if name not in ("model", "models"):
                yield from texts(getattr(value, name), (*location, name))


# -- answers -----------------------------------------------------------------------------------------------------------


class Result(Options):
    """One result; scores are log-probabilities, null where nothing was allowed."""

    text: str
    score: float | None
    log_prob: float | None
    tokens: list[str]
    log_probs: list[float]  # of each token, and of </s> where the result ended by itself
    finish_reason: Literal["eos", "length", "no_valid_token", "empty_source"]
    source_tokens: list[str]
    source_truncated: bool  # the source was too long and only its beginning was read
    alternatives: list[Result]
    attention: list[list[float]] | None  # (tokens with </s>, source tokens)


class Predicted(Options):
    """A result for each input, in order."""

    model: str
    results: list[Result]


class LogProbability(Options):
    """log p of a target, and of each of its tokens with </s>."""

    log_prob: float | None
    log_probs: list[float | None]


class Scores(Options):
    """A score for each input, in order."""

    model: str
    results: list[LogProbability]


class Models(Options):
    """What is served; the first is the default."""

    models: list[dict[str, Any]]
