"""A registry of views: a view computes plain data about a model, and one file declares all of it.

    views = Registry("view", __name__)                                   # the folder is the registry

    @register_view("steps", inputs="pair", cost=_steps_cost, print_view=_print_steps, blocker=…)    # in views/steps.py
    def trace_steps(pipeline: Pipeline, source: str, target: str | None = None, *, top: int = 8) -> ViewData: ...

Positional parameters are the pipeline and the view's inputs; keyword-only parameters are options with their bounds.
The data holds only what JSON can hold. From the registry follow the server's route `POST /v1/inspect/NAME` with its
request schema, `--view NAME`, `dragoman list views`, and a page's ES modules: static/NAME.js draws the view NAME.
Every view declares its cost: what a server counts, and refuses if it is too much, before the view is computed.
The server's front process reads the schemas and must not load torch: view files import torch inside functions.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Concatenate, Generic, Literal, ParamSpec, TypeVar

from pydantic import Field
from rich.console import Console

from dragoman.core.errors import UserError
from dragoman.core.registry import Registry

P = ParamSpec("P")
PipelineOrMany = TypeVar("PipelineOrMany")  # a Pipeline, or name → Pipeline in a view that compares models

ViewData = dict[str, Any]
# What a view reads besides the model: one source with an optional target, sources, pairs of both, or nothing.
Inputs = Literal["pair", "sources", "pairs", "none"]

BeamSize = Annotated[int, Field(ge=1, le=64)]

views: Registry[ViewData] = Registry("view", __name__)


@dataclass(frozen=True)
class RequestSize:
    """The size of a request for a view of one model, known before anything is computed.

    A cost is an upper bound of the work, in source tokens that the model reads and answers by greedy search.
    """

    sources: Sequence[int]  # tokens of each source
    targets: Sequence[int]  # tokens of each target; where the request has none, the most that the model may write
    has_targets: bool
    extra_tokens: int  # of all other texts among the options
    options: Mapping[str, Any]  # of the view
    beam: int  # hypotheses of the request's search, or of the model's own
    heads: int  # attention heads of the model, in all layers
    vocabulary: int  # the larger one

    @property
    def positions(self) -> int:
        """The positions of one teacher-forced pass over all sources and targets."""
        return sum(self.sources) + sum(self.targets)

    @property
    def prediction_cost(self) -> int:
        """The cost of predicting the targets that the request lacks."""
        return 0 if self.has_targets else self.beam * sum(self.sources)


def pass_cost(positions: int) -> int:
    """The cost of one forward pass over so many positions at once: on a CPU an eighth of those of a greedy search."""
    return 6 + positions // 8


@dataclass(eq=False)
class View(Generic[PipelineOrMany, P]):
    """A registered view: the function that computes it, and how its inputs, output and limits are declared."""

    name: str
    compute: Callable[Concatenate[PipelineOrMany, P], ViewData]  # its keyword-only parameters are the view's options
    inputs: Inputs
    cost: Callable[[RequestSize], int]  # bounds the work of a request before it starts
    print_view: Callable[[Console, ViewData], None]  # in a terminal
    blocker: Callable[[PipelineOrMany], str | None]  # why a model cannot show the view, or None
    fallback: Callable[Concatenate[PipelineOrMany, ...], ViewData] | None  # what the command line shows then
    has_module: bool  # a page draws it
    compares_models: bool  # it gets a mapping from names to pipelines
    needs_preparation: bool  # of something beside the model: where that is missing the view is not offered at all

    def __post_init__(self) -> None:
        functools.update_wrapper(self, self.compute)
        # The schema is generated from the options alone: the other annotations would need torch.
        signature = inspect.getfullargspec(self.compute)
        self.__annotations__ = {option: self.compute.__annotations__[option] for option in signature.kwonlyargs}
        self.inputs_optional = self.inputs in ("sources", "pairs") and bool(signature.defaults)

    def is_prepared_for(self, model: PipelineOrMany) -> bool:
        """Whether the view needs something prepared beside a model, and has it."""
        return self.needs_preparation and self.blocker(model) is None

    def __call__(self, model: PipelineOrMany, *args: P.args, **kwargs: P.kwargs) -> ViewData:
        """Compute the view; a model that cannot show it raises UserError with the reason."""
        reason = self.blocker(model)
        if reason is not None:
            raise UserError(reason)
        return {"view": self.name, **self.compute(model, *args, **kwargs)}


def register_view(
    name: str,
    *,
    inputs: Inputs,
    cost: Callable[[RequestSize], int],
    print_view: Callable[[Console, ViewData], None],
    blocker: Callable[[PipelineOrMany], str | None] = lambda _: None,
    fallback: Callable[Concatenate[PipelineOrMany, ...], ViewData] | None = None,
    has_module: bool = True,
    compares_models: bool = False,
    needs_preparation: bool = False,
) -> Callable[[Callable[Concatenate[PipelineOrMany, P], ViewData]], View[PipelineOrMany, P]]:
    """Register the decorated function as a view, declared as the fields of View say."""

    def add(compute: Callable[Concatenate[PipelineOrMany, P], ViewData]) -> View[PipelineOrMany, P]:
        declared = (inputs, cost, print_view, blocker, fallback, has_module, compares_models, needs_preparation)
        view = View(name, compute, *declared)
        views.register(name)(view)
        return view

    return add


def find_view(name: str) -> View[Any, ...]:
    """Return the view of this name."""
    view = views[name]
    assert isinstance(view, View)  # register_view adds nothing else
    return view
