"""Dragoman: sequence-to-sequence models from pairs.

    import dragoman
    model = dragoman.load("runs/g2p")
    model.predict(["dragoman"], beam=5, nbest=3)
    model.score([("dragoman", "D R AE G AH M AH N")])
    print(model.evaluate("test.tsv"), model.alignment("dragoman"), model.beam_tree("dragoman"))
    for report in dragoman.train("config.yaml"): ...
    for report in dragoman.train(data="pairs.tsv", minutes=3): ...

Everything is imported on first use, so that `import dragoman` costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.version import __version__

if TYPE_CHECKING:
    from dragoman.core.errors import UserError
    from dragoman.core.generation import GenerationOptions
    from dragoman.core.registry import Part
    from dragoman.core.types import Example
    from dragoman.inference.pipeline import Pipeline
    from dragoman.inference.prediction import Prediction
    from dragoman.inspection.render.display import Drawing
    from dragoman.reports.evaluation import Evaluation, Pairs
    from dragoman.training import Report

__all__ = [
    "Example",
    "GenerationOptions",
    "Part",
    "Pipeline",
    "Prediction",
    "Report",
    "UserError",
    "__version__",
    "load",
    "train",
]


_MODULES = {
    "Example": "dragoman.core.types",
    "GenerationOptions": "dragoman.core.generation",
    "Part": "dragoman.core.registry",
    "Pipeline": "dragoman.inference.pipeline",
    "Prediction": "dragoman.inference.prediction",
    "Report": "dragoman.training",
    "UserError": "dragoman.core.errors",
}


def load(path: str | Path, device: str = "auto", *, precision: str | None = None, reference: bool = False) -> Pipeline:
    """Load a trained model from a run folder, a model folder or a packed model; `a+b` is an ensemble.

    `precision` of decoding is the config's by default; `reference` turns the engines off.
    """
    from dragoman.inference import pipeline

    _connect_inspection()
    return pipeline.load(path, device, precision=precision, reference=reference)


def train(
    config: str | Path | None = None,
    *,
    data: str | Path | None = None,
    minutes: float | None = None,
    search: bool = False,
    set: Sequence[str] = (),
    run: str | Path | None = None,
    allow_change: Sequence[str] = (),
) -> Iterator[Report]:
    """Train as a config file says, or on the pairs of a file, `data`, as `dragoman train PAIRS` does; yields Reports.

    `set` takes "key=value" texts; `minutes` and `search` go with `data`.
    """
    from dragoman.core.errors import UserError

    if not isinstance(config, str | Path | None) or not isinstance(run, str | Path | None):
        raise UserError(f"train: config and run must be texts or Paths, found {config!r:.60} and {run!r:.60}")
    if isinstance(set, str):
        raise UserError(f"train: set takes a list of texts, found '{set}'; give a list: ['{set}']")
    if (config is None) == (data is None):
        raise UserError("train: give either a config file or data=, a file of pairs")
    folder = None if run is None else Path(run)
    if data is None:
        from dragoman import config as configs
        from dragoman import training

        if minutes is not None or search:
            raise UserError("train: minutes and search go with data=; a config says training.steps")
        return training.run(configs.load(config, None, set).config, folder, allow_change=allow_change)
    from dragoman.training import autotrain

    request = autotrain.TrainingRequest(
        str(data), minutes=autotrain.MINUTES if minutes is None else minutes, search=search, overrides=tuple(set)
    )
    return autotrain.run(request, folder or autotrain.default_folder(request.pairs))


# -- what a Pipeline can show: inference stands below inspection and reports, so its methods are connected here --------


def _evaluate(
    model: Pipeline,
    pairs: Pairs,
    metrics: str | Sequence[str | Part] = (),
    *,
    beam: int | None = None,
    workers: int | None = 1,
) -> Evaluation:
    """Score the model on pairs, a file or a list: the metrics that fit them, or those named, with intervals.

    The result prints as a small table; it has `scores`, `headline`, `predictions` and `as_json()`.
    """
    from dragoman.reports.evaluation import evaluate

    return evaluate(model, pairs, metrics, beam=beam, workers=workers)


def _alignment(
    model: Pipeline, source: str | Example, target: str | None = None, *, beam: int | None = None
) -> Drawing:
    """Show which source tokens each token of the output, or of a target, attends to."""
    return _draw(model, "alignment", source, target, beam=beam)


def _beam_tree(model: Pipeline, source: str | Example, target: str | None = None, *, beam: int = 5) -> Drawing:
    """Show every hypothesis that a beam search kept and dropped; with a target, whether search or model missed it."""
    return _draw(model, "beam", source, target, beam=beam)


def _steps(model: Pipeline, source: str | Example, target: str | None = None, *, top: int = 8) -> Drawing:
    """Show the most probable next tokens at each step of a greedy search, and along a target."""
    return _draw(model, "steps", source, target, top=top)


def _blame(
    model: Pipeline, source: str | Example, target: str | None = None, *, output: str | None = None, top: int = 10
) -> Drawing:
    """Show the training lines behind the output; with a target, behind the tokens in which the output departs from it.

    The training lines are indexed by the first call, which takes a while, beside the run.
    """
    from dragoman.core.errors import UserError
    from dragoman.inspection.training_index import build_index
    from dragoman.inspection.views.blame import training_lines_blocker

    if (reason := training_lines_blocker(model)) is not None:
        raise UserError(reason)
    build_index(model)
    return _draw(model, "blame", source, target, output=output, top=top)


def _draw(model: Pipeline, view: str, source: str | Example, target: str | None, **options: Any) -> Drawing:
    from dragoman.inspection.render.display import draw_view

    return draw_view(model, view, source, target, **options)


_METHODS = {
    "evaluate": _evaluate,
    "alignment": _alignment,
    "beam_tree": _beam_tree,
    "steps": _steps,
    "blame": _blame,
}


def _connect_inspection() -> None:
    """Give a Pipeline its views and its evaluation, and let a Prediction render itself in a notebook."""
    from dragoman.inference.pipeline import Pipeline
    from dragoman.inference.prediction import Prediction

    Prediction._repr_html_ = _import_on_call("render.notebook", "render_prediction")  # type: ignore[attr-defined]
    Pipeline.preview_media = _import_on_call("media_preview", "build_media_preview")
    for name, function in _METHODS.items():
        function.__name__, function.__qualname__ = name, f"Pipeline.{name}"
        setattr(Pipeline, name, function)


def _import_on_call(module: str, function: str) -> Callable[..., Any]:
    return lambda *arguments: getattr(import_module(f"dragoman.inspection.{module}"), function)(*arguments)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'dragoman' has no attribute '{name}'")
    if name in ("Pipeline", "Prediction"):
        _connect_inspection()
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
