"""Sources to start with: the validation pairs that are kept with a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field
from rich.console import Console

from dragoman.inspection.views import RequestSize, ViewData, register_view

if TYPE_CHECKING:
    from dragoman.core.types import Example
    from dragoman.inference.pipeline import Pipeline

FIELDS = ("source", "second_source", "target", "source_lang", "target_lang")


def kept_examples(pipeline: Pipeline) -> list[Example]:
    """The pairs that are kept with a model, or with the first of an ensemble."""
    from dragoman.checkpoint.kept_examples import read_examples

    return [] if pipeline.path is None else read_examples(pipeline.path)


def _kept_blocker(pipeline: Pipeline) -> str | None:
    if kept_examples(pipeline):
        return None
    return "no validation pairs are kept with this model; a training with data.valid keeps some"


def _print_examples(out: Console, data: ViewData) -> None:
    for pair in data["pairs"]:
        target = "" if pair["target"] is None else f"\t{pair['target']}"
        out.print(f"{pair['source']}{target}", markup=False, soft_wrap=True)


def _examples_cost(size: RequestSize) -> int:
    return int(size.options["count"])


@register_view(
    "examples",
    inputs="none",
    cost=_examples_cost,
    print_view=_print_examples,
    blocker=_kept_blocker,
    has_module=False,
)
def collect_examples(pipeline: Pipeline, *, count: Annotated[int, Field(ge=1, le=200)] = 20) -> ViewData:
    """Sources to start with, and their targets: validation pairs that are kept with the model."""
    return {"pairs": [{field: getattr(one, field) for field in FIELDS} for one in kept_examples(pipeline)[:count]]}
