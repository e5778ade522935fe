"""The views of inspection/ over HTTP: what each may be asked, and its answer from a worker's models.

    POST /v1/inspect/steps {"source": "dragoman", "top": 5}  →  inspection.steps.walk(pipeline, "dragoman", top=5)

A request names the parameters of the view's function and nothing else; the answer is the dict that Python users get.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from dragoman.core.errors import DragomanError, UserError, nearest
from dragoman.core.registry import Options
from dragoman.core.types import Example
from dragoman.data.readers import read_pairs
from dragoman.evaluation.metrics import metrics
from dragoman.inspection import MAX_POSITIONS
from dragoman.serve import uploads
from dragoman.serve.schema import Language, Length, ModelName, Phrase, Refused, Scored, Source, Text

if TYPE_CHECKING:
    from dragoman.inference.pipeline import Pipeline
    from dragoman.text.codec import Codec

Beam = Annotated[int, Field(ge=1, le=64)]
Texts = Annotated[list[Source], Field(min_length=1, max_length=2000)]
Swap = Annotated[list[Text], Field(min_length=2, max_length=2)]


class Alignment(Options):
    """Where each token looked, layer by layer and head by head; some heads may be off."""

    model: ModelName | None = None
    source: Source
    target: Text | None = None
    beam: Beam | None = None
    off: Annotated[list[Phrase], Field(max_length=1000)] = []


class Effects(Options):
    """What each head does to the log-probability, alone."""

    model: ModelName | None = None
    source: Source
    target: Text | None = None


class BeamTree(Options):
    """Everything a beam kept and dropped."""

    model: ModelName | None = None
    source: Source
    reference: Text | None = None
    beam: Beam = 5


class Steps(Options):
    """The next tokens at each step, from a prefix on."""

    model: ModelName | None = None
    source: Source
    target: Text | None = None
    prefix: Annotated[list[Length], Field(max_length=4096)] = []
    top: Annotated[int, Field(ge=1, le=100)] = 8


class Quality(Options):
    """Scores with intervals of one model or several on some pairs."""

    model: ModelName | None = None
    models: Annotated[list[ModelName], Field(max_length=8)] = []
    inputs: Annotated[list[Scored], Field(min_length=1, max_length=5000)]
    metric: Phrase | None = None
    beam: Beam | None = None
    worst: Annotated[int, Field(ge=0, le=100)] = 20


class Space(Options):
    """A map of some sources."""

    model: ModelName | None = None
    texts: Texts
    method: Literal["pca", "tsne", "umap"] = "pca"
    neighbors: Annotated[int, Field(ge=1, le=50)] = 5


class Positions(Options):
    """How alike two positions are to a model."""

    model: ModelName | None = None
    side: Literal["encoder", "decoder"] = "encoder"
    length: Annotated[int, Field(ge=2, le=MAX_POSITIONS)] = 64


class Probes(Options):
    """Counts of known failures."""

    model: ModelName | None = None
    sources: Texts | None = None
    swaps: Annotated[list[Swap], Field(max_length=1000)] = []
    count: Annotated[int, Field(ge=1, le=2000)] = 200
    source_lang: Language | None = None
    target_lang: Language | None = None


class Why(Options):
    """The gradient of each output token with respect to each source position."""

    model: ModelName | None = None
    source: Source
    target: Text | None = None


class ByPosition(Options):
    """Quality by the position in the source."""

    model: ModelName | None = None
    inputs: Annotated[list[Scored], Field(min_length=1, max_length=5000)]


class Examples(Options):
    """Sources to begin with, with their targets where the validation file is here."""

    model: ModelName | None = None
    count: Annotated[int, Field(ge=1, le=200)] = 20


class Whole(Options):
    """A view of the model itself."""

    model: ModelName | None = None


# name → (what may be asked, module, function)
VIEWS: dict[str, tuple[type[Options], str, str]] = {
    "alignment": (Alignment, "views.alignment", "look"),
    "effects": (Effects, "views.alignment", "effects"),
    "beam": (BeamTree, "views.beam_tree", "tree"),
    "steps": (Steps, "views.steps", "walk"),
    "quality": (Quality, "views.quality", "report"),
    "space": (Space, "views.embedding_space", "space"),
    "positions": (Positions, "views.positions", "similarity"),
    "probes": (Probes, "views.probes", "probe"),
    "why": (Why, "views.saliency", "gradients"),
    "by_position": (ByPosition, "views.saliency", "by_position"),
    "sequential": (Whole, "views.saliency", "sequential"),
    "replay": (Whole, "views.replay", "replay"),
    "examples": (Examples, "probe_inputs", "ordinary"),
}


OF_TEXTS = ("probes", "examples")  # which make texts of the vocabulary


def asked_of(model: str, item: Mapping[str, Any]) -> list[str]:
    """The models that a view is asked of."""
    return item.get("models") or [model]


def check_fit(view: str, model: Mapping[str, Any]) -> None:
    """Refuse a view of texts to a model that reads something else."""
    if view in OF_TEXTS and uploads.reads_media(model):
        kinds = [uploads.named(model[side]) for side in uploads.SIDES if model[side]]
        text = f"{view} are of texts, and the model '{model['name']}' reads {' and '.join(kinds)}; take another view"
        raise Refused(422, "refused", text, "model")


def parts(asked: Mapping[str, Any]) -> list[Any]:
    """Every text and medium in what is asked of a view, which its cost is counted by."""

    def inside(value: Any) -> list[Any]:
        if isinstance(value, dict) and "data" in value:
            return [value]
        if isinstance(value, dict):
            return [part for item in value.values() for part in inside(item)]
        if isinstance(value, list):
            return [part for item in value for part in inside(item)]
        return [value] if isinstance(value, str) else []

    return inside({name: value for name, value in asked.items() if name != "models"})


def answer(pipelines: Mapping[str, Pipeline], model: str, view: str, asked: Mapping[str, Any]) -> dict[str, Any]:
    """The view's dict; `asked` are its parameters as plain JSON."""
    from dragoman.inspection.views.replay import run_of

    pipeline, given = pipelines[model], dict(asked)
    function = found(view)
    if view == "quality":
        return quality(function, pipelines, given.pop("models") or [model], given)
    if view == "replay":
        return function(run_of(pipeline))  # type: ignore[no-any-return]
    if view == "examples":
        return examples(pipeline, given["count"], function)
    if "source" in given:
        given["source"] = uploads.example(given["source"])
    if view == "by_position":
        return function(pipeline, list(map(uploads.example, given["inputs"])))  # type: ignore[no-any-return]
    size = len(pipeline.codec.target)
    if any(id >= size for id in given.get("prefix", ())):
        raise UserError(f"the prefix has a token of {max(given['prefix'])}; the model's tokens are below {size}")
    if view == "space":
        return function(pipeline, list(map(uploads.example, given.pop("texts"))), **given)  # type: ignore[no-any-return]
    if given.get("sources") is not None:
        given["sources"] = list(map(uploads.example, given["sources"]))
    if "source" in given:
        return function(pipeline, given.pop("source"), **given)  # type: ignore[no-any-return]
    return function(pipeline, **given)  # type: ignore[no-any-return]


def found(view: str) -> Callable[..., Any]:
    """The function of a view."""
    _, module, name = VIEWS[view]
    return getattr(importlib.import_module(f"dragoman.inspection.{module}"), name)  # type: ignore[no-any-return]


def quality(
    report: Callable[..., Any], pipelines: Mapping[str, Pipeline], models: list[str], given: dict[str, Any]
) -> dict[str, Any]:
    from dragoman.inspection.assessment import assess

    unknown = [name for name in models if name not in pipelines]
    if unknown:
        raise UserError(f"there is no model '{unknown[0]}' here; there is {', '.join(pipelines)}")
    pairs, metric = list(map(uploads.example, given["inputs"])), given["metric"]
    if metric is not None and metric not in metrics.names:
        raise UserError(f"there is no metric '{metric}'{nearest(metric, metrics.names)}")
    every = {name: assess(pipelines[name], pairs, [metric] if metric else (), beam=given["beam"]) for name in models}
    return report(every, metric, worst=given["worst"])  # type: ignore[no-any-return]


def examples(pipeline: Pipeline, count: int, made: Callable[[Codec, int], list[str]]) -> dict[str, Any]:
    """The first pairs of the validation file; without it, sources made of the vocabulary."""
    config, codec = pipeline.config, pipeline.codec
    pairs: list[Example] = []
    try:
        found = read_pairs(config.data.valid or "", columns=config.columns, on_error="skip")
        pairs = list(islice((pair for pair in found if pair.source.strip()), count))
    except (DragomanError, OSError):
        pass
    fields = ("source", "target", "source_lang", "target_lang")
    every = pairs or map(Example, made(codec, count))
    return {"view": "examples", "pairs": [{name: getattr(pair, name) for name in fields} for pair in every]}
