"""The registered views over HTTP: request schemas from their options, and their data from a worker's models.

    POST /v1/inspect/steps {"source": "dragoman", "top": 5}  →  trace_steps(pipeline, "dragoman", top=5)

A request has the view's inputs, its options and the name of a model; the response is the dict that Python users get.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, create_model

from dragoman.core.registry import Options
from dragoman.inspection.views import ViewData, find_view, views
from dragoman.serve import uploads
from dragoman.serve.schema import JSONObject, ModelName, ScorePair, Source, Text

if TYPE_CHECKING:
    from dragoman.inference.pipeline import Pipeline

SourceList = Annotated[list[Source], Field(min_length=1, max_length=2000)]


class ViewRequest(Options):
    """A view of a model; without a name, of the first."""

    model: ModelName | None = None


class PairViewRequest(ViewRequest):
    """A view of one source, with a target or with the model's own output."""

    source: Source
    target: Text | None = None


class SourcesViewRequest(ViewRequest):
    """A view of several sources."""

    sources: SourceList


class OptionalSourcesViewRequest(ViewRequest):
    """A view of several sources, or of sources that the view chooses."""

    sources: SourceList | None = None


class PairsViewRequest(ViewRequest):
    """A view of pairs of source and target."""

    inputs: Annotated[list[ScorePair], Field(min_length=1, max_length=5000)]


class ComparedModels(Options):
    """The models that a view compares; without names, only `model`."""

    models: Annotated[list[ModelName], Field(max_length=8)] = []


INPUT_SCHEMAS: dict[str, type[ViewRequest]] = {
    "none": ViewRequest,
    "pair": PairViewRequest,
    "sources": SourcesViewRequest,
    "pairs": PairsViewRequest,
}


def request_schema(name: str) -> type[Options]:
    """Generate the pydantic class of a view's requests: its inputs, and the options of its function."""
    view = find_view(name)
    inputs = OptionalSourcesViewRequest if view.inputs_optional else INPUT_SCHEMAS[view.inputs]
    compared = [ComparedModels] if view.compares_models else []
    title = "".join(word.title() for word in name.split("_")) + "Request"
    return create_model(title, __base__=(views.schema(name), *compared, inputs), __doc__=views.summary(name))


def requested_models(model: str, item: JSONObject) -> list[str]:
    """Return the names of the models that a view's request is about: its `models`, or else `model`."""
    return item.get("models") or [model]


def collect_sources(item: JSONObject) -> list[Any]:
    """Return every text and file in a view's request, except model names; they determine its cost."""

    def collect(value: Any) -> list[Any]:
        """Return the texts and files in a nested value."""
        if isinstance(value, dict) and "data" in value:
            return [value]
        if isinstance(value, dict):
            return [part for one in value.values() for part in collect(one)]
        if isinstance(value, list | tuple):
            return [part for one in value for part in collect(one)]
        return [value] if isinstance(value, str) else []

    return collect({name: value for name, value in item.items() if name != "models"})


def compute_view(pipelines: Mapping[str, Pipeline], model: str, name: str, item: JSONObject) -> ViewData:
    """Compute the view `name` of a model, or of the request's `models`, from a request's JSON."""
    view, options = find_view(name), dict(item)
    models = options.pop("models", None) or [model]
    inputs: tuple[Any, ...] = ()
    if view.inputs == "pair":
        inputs = uploads.to_example(options.pop("source")), options.pop("target")
    elif view.inputs != "none":
        rows = options.pop("sources" if view.inputs == "sources" else "inputs")
        inputs = (None if rows is None else [uploads.to_example(row) for row in rows],)
    if view.compares_models:
        return view({name: pipelines[name] for name in models}, *inputs, **options)
    return view(pipelines[model], *inputs, **options)
