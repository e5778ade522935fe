"""A registry of views: a view computes plain data about a model, and one file declares all of it.

    views = Registry("view", __name__)                                   # the folder is the registry

    @register_view("steps", inputs="pair", print_view=print_steps, blocker=decoder_blocker)      # in views/steps.py
    def trace_steps(pipeline: Pipeline, source: str, target: str | None = None, *, top: int = 8) -> ViewData: ...

Positional parameters are the pipeline and the view's inputs; keyword-only parameters are options with their bounds.
The data holds only what JSON can hold. From the registry follow the server's route `POST /v1/inspect/NAME` with its
request schema, the command line's `--view NAME`, `dragoman list views`, and the ES modules of a page: static/NAME.js
draws the view NAME.

The server's front process reads the schemas and must not load torch: view files import torch inside functions.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, Generic, Literal, ParamSpec, TypeVar

from pydantic import Field

from dragoman.core.errors import UserError
from dragoman.core.registry import Registry

if TYPE_CHECKING:
    from rich.console import Console

P = ParamSpec("P")
PipelineOrMany = TypeVar("PipelineOrMany")  # a Pipeline, or name → Pipeline in a view that compares models

ViewData = dict[str, Any]
# What a view reads besides the model: one source with an optional target, sources, pairs of both, or nothing.
Inputs = Literal["pair", "sources", "pairs", "none"]

BeamSize = Annotated[int, Field(ge=1, le=64)]

views: Registry[ViewData] = Registry("view", __name__)


class View(Generic[PipelineOrMany, P]):
    """A registered view: the function that computes it, and how its inputs, output and limits are declared."""

    def __init__(
        self,
        name: str,
        compute: Callable[Concatenate[PipelineOrMany, P], ViewData],
        inputs: Inputs,
        print_view: Callable[[Console, ViewData], None],
        blocker: Callable[[PipelineOrMany], str | None] | None,
        fallback: Callable[Concatenate[PipelineOrMany, ...], ViewData] | None,
        has_module: bool,
        compares_models: bool,
    ) -> None:
        """Wrap the function `compute`; its keyword-only parameters are the view's options."""
        functools.update_wrapper(self, compute)
        # The schema is generated from the options alone: the other annotations would need torch.
        signature = inspect.getfullargspec(compute)
        self.__annotations__ = {option: compute.__annotations__[option] for option in signature.kwonlyargs}
        self.inputs_optional = inputs in ("sources", "pairs") and bool(signature.defaults)
        self.name, self.compute, self.inputs, self.print_view = name, compute, inputs, print_view
        self.fallback, self.has_module, self.compares_models = fallback, has_module, compares_models
        self._blocker = blocker

    def blocker(self, model: PipelineOrMany) -> str | None:
        """Return why a pipeline (or mapping of compared ones) cannot show this view, or None; set in register_view."""
        return None if self._blocker is None else self._blocker(model)

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
    print_view: Callable[[Console, ViewData], None],
    blocker: Callable[[PipelineOrMany], str | None] | None = None,
    fallback: Callable[Concatenate[PipelineOrMany, ...], ViewData] | None = None,
    has_module: bool = True,
    compares_models: bool = False,
) -> Callable[[Callable[Concatenate[PipelineOrMany, P], ViewData]], View[PipelineOrMany, P]]:
    """Register the decorated function as a view.

    `print_view` prints the data in a terminal. `blocker` returns why a model cannot show the view. `fallback` computes
    what the command line shows of such a model instead. A view without `has_module` is not drawn in pages. A view that
    `compares_models` gets a mapping from names to pipelines.
    """

    def add(compute: Callable[Concatenate[PipelineOrMany, P], ViewData]) -> View[PipelineOrMany, P]:
        """Wrap a function as a View, register it and return it."""
        view = View(name, compute, inputs, print_view, blocker, fallback, has_module, compares_models)
        views.register(name)(view)
        return view

    return add


def find_view(name: str) -> View[Any, ...]:
    """Return the view of this name."""
    view = views[name]
    assert isinstance(view, View)  # register_view adds nothing else
    return view
