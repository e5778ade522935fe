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


INPUT_FIELDS: dict[str, dict[str, Any]] = {
    "none": {},
    "pair": {"source": (Source, ...), "target": (Text | None, None)},  # without a target, of the model's own output
    "sources": {"sources": (SourceList, ...)},
    "pairs": {"inputs": (Annotated[list[ScorePair], Field(min_length=1, max_length=5000)], ...)},
}


def request_schema(name: str) -> type[Options]:
    """Generate the pydantic class of a view's requests: its inputs, and the options of its function."""
    view = find_view(name)
    fields = {"model": (ModelName | None, None), **INPUT_FIELDS[view.inputs]}
    if view.inputs_optional:  # the view chooses some
        fields["sources"] = (SourceList | None, None)
    if view.compares_models:  # without names, only `model`
        fields["models"] = (Annotated[list[ModelName], Field(max_length=8)], [])
    inputs = create_model("Inputs", __base__=Options, **fields)
    title = "".join(word.title() for word in name.split("_")) + "Request"
    return create_model(title, __base__=(views.schema(name), inputs), __doc__=views.summary(name))


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
