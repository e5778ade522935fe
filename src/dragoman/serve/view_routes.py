"""The registered views over HTTP: request schemas from their options, and their data from a worker's models.

    POST /v1/inspect/steps {"source": "dragoman", "top": 5}  →  trace_steps(pipeline, "dragoman", top=5)

A request has the view's inputs, its options and the name of a model; the response is the dict that Python users get.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, create_model

from dragoman.core.registry import Options
from dragoman.inspection.views import RequestSize, ViewData, find_view, views
from dragoman.serve import uploads
from dragoman.serve.schema import (
    MAX_COUNT,
    MAX_SOURCES,
    JSONObject,
    ModelInfo,
    ModelName,
    ScorePair,
    Source,
    Text,
    iter_sources,
)

if TYPE_CHECKING:
    from dragoman.inference.pipeline import Pipeline

SourceList = Annotated[list[Source], Field(min_length=1, max_length=MAX_SOURCES, fail_fast=True)]


INPUT_FIELDS: dict[str, dict[str, Any]] = {
    "none": {},
    "pair": {"source": (Source, ...), "target": (Text | None, None)},  # without a target, of the model's own output
    "sources": {"sources": (SourceList, ...)},
    "pairs": {"inputs": (Annotated[list[ScorePair], Field(min_length=1, max_length=5000, fail_fast=True)], ...)},
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


def measure_request(
    item: JSONObject,
    model: ModelInfo,
    count_source: Callable[[JSONObject], int],
    count_target: Callable[[str], int],
) -> RequestSize:
    """Measure a request for a view of one model; the view's `cost` bounds its work by that."""
    options = {key: value for key, value in item.items() if key not in ("source", "target", "sources", "inputs")}
    rows = [item["source"]] if "source" in item else item.get("sources") or item.get("inputs") or []
    # A source is counted without its languages, which a worker checks; their tags are two tokens.
    sources = [count_source({side: row.get(side) for side in uploads.SIDES}) + 2 for row in rows]
    texts = [item.get("target")] if "source" in item else [row.get("target") for row in rows]
    search = model["search"]
    targets = [
        min(max_output_length(n, search), search["max_length"] or MAX_COUNT) if text is None else count_target(text)
        for n, text in zip(sources, texts, strict=True)
    ]
    return RequestSize(
        sources=sources,
        targets=targets,
        has_targets=None not in texts,
        extra_tokens=sum(count_target(text) for _, text in iter_sources(options) if isinstance(text, str)),
        options=options,
        beam=options.get("beam") or search["beam"],
        heads=model["shape"]["attention_heads"],
        vocabulary=max(model["shape"]["source_vocabulary"], model["shape"]["target_vocabulary"]),
    )


def max_output_length(source_tokens: int, options: JSONObject) -> int:
    """Bound the tokens, </s> included, that a search writes for a source by its options."""
    length: int = options.get("max_new_tokens") or (
        int(options["max_length_ratio"] * source_tokens) + options["max_length_extra"]
    )
    least: int = max(int(options.get("min_length_ratio", 0) * source_tokens), options.get("min_new_tokens", 0))
    return max(length, least) + 1


def compute_view(pipelines: Mapping[str, Pipeline], model: str, name: str, item: JSONObject) -> ViewData:
    """Compute the view `name` of a model, or of the request's `models`, from a request's JSON."""
    view, fields = find_view(name), dict(item)
    models = fields.pop("models", None) or [model]
    inputs: tuple[Any, ...] = ()
    if view.inputs == "pair":
        inputs = uploads.to_example(fields.pop("source")), fields.pop("target")
    elif view.inputs != "none":
        rows = fields.pop("sources" if view.inputs == "sources" else "inputs")
        inputs = (None if rows is None else [uploads.to_example(row) for row in rows],)
    options = dict(views.schema(name).model_validate(fields))  # a part is a mapping in JSON
    if view.compares_models:
        return view({name: pipelines[name] for name in models}, *inputs, **options)
    return view(pipelines[model], *inputs, **options)
