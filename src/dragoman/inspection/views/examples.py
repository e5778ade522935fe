"""Sources to start with: the first pairs of the validation file, or texts sampled from the vocabulary."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Annotated

from pydantic import Field
from rich.console import Console

from dragoman.core.errors import DragomanError
from dragoman.core.types import Example
from dragoman.data.readers import read_pairs
from dragoman.inspection.probe_inputs import sample_sources
from dragoman.inspection.views import RequestSize, ViewData, register_view

if TYPE_CHECKING:
    from dragoman.inference.pipeline import Pipeline

FIELDS = ("source", "target", "source_lang", "target_lang")


def _text_source_blocker(pipeline: Pipeline) -> str | None:
    codec = pipeline.codec
    if codec.modality is not None or codec.second_source not in (None, "text"):
        return "this model reads files; examples are sampled for models of texts"
    return None


def _print_examples(out: Console, data: ViewData) -> None:
    for pair in data["pairs"]:
        target = "" if pair["target"] is None else f"\t{pair['target']}"
        out.print(f"{pair['source']}{target}", markup=False, soft_wrap=True)


def _examples_cost(size: RequestSize) -> int:
    return int(size.options["count"]) + size.vocabulary // 100  # every token of the vocabulary is tried


@register_view(
    "examples",
    inputs="none",
    cost=_examples_cost,
    print_view=_print_examples,
    blocker=_text_source_blocker,
    has_module=False,
)
def collect_examples(pipeline: Pipeline, *, count: Annotated[int, Field(ge=1, le=200)] = 20) -> ViewData:
    """Sources to start with, and their targets where the validation file is available."""
    config = pipeline.config
    pairs: list[Example] = []
    try:
        valid = read_pairs(config.data.valid or "", columns=config.columns, on_error="skip")
        pairs = list(islice((pair for pair in valid if pair.source.strip()), count))
    except (DragomanError, OSError):
        pass
    examples = pairs or map(Example, sample_sources(pipeline.codec, count))
    return {"pairs": [{field: getattr(example, field) for field in FIELDS} for example in examples]}
