"""Dragoman: sequence-to-sequence models from pairs.

    import dragoman
    model = dragoman.load("runs/g2p")
    model.predict(["dragoman"], beam=5, nbest=3)
    model.score([("dragoman", "D R AE G AH M AH N")])
    for report in dragoman.train("config.yaml"): ...

Everything is imported on first use, so that `import dragoman` costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.version import __version__

if TYPE_CHECKING:
    from dragoman.core.generation import GenerationOptions
    from dragoman.core.registry import Part
    from dragoman.inference.pipeline import Pipeline, Prediction
    from dragoman.training import Report

__all__ = ["GenerationOptions", "Part", "Pipeline", "Prediction", "Report", "__version__", "load", "train"]


_MODULES = {
    "GenerationOptions": "dragoman.core.generation",
    "Part": "dragoman.core.registry",
    "Pipeline": "dragoman.inference.pipeline",
    "Prediction": "dragoman.inference.pipeline",
    "Report": "dragoman.training",
}


def load(path: str | Path, device: str = "auto", *, precision: str | None = None, reference: bool = False) -> Pipeline:
    """Load a trained model from a run folder or model folder; `a+b` is an ensemble.

    `precision` of decoding is the config's by default; `reference` turns the engines off.
    """
    from dragoman.inference import pipeline

    _connect_inspection()
    return pipeline.load(path, device, precision=precision, reference=reference)


def train(
    config: str | Path, *, set: Sequence[str] = (), run: str | Path | None = None, allow_change: Sequence[str] = ()
) -> Iterator[Report]:
    """Train as a config file says; yields a Report for everything that happens. `set` takes "key=value" texts."""
    from dragoman import config as configs
    from dragoman import training
    from dragoman.core.errors import UserError

    if not isinstance(config, str | Path) or not isinstance(run, str | Path | None):
        raise UserError(f"train: config and run must be texts or Paths, found {config!r:.60} and {run!r:.60}")
    if isinstance(set, str):
        raise UserError(f"train: set takes a list of texts, found '{set}'; give a list: ['{set}']")
    loaded = configs.load(config, None, set)
    return training.run(loaded.config, None if run is None else Path(run), allow_change=allow_change)


def _connect_inspection() -> None:
    """Let a Prediction render itself in a notebook; the inference package itself does not import inspection."""
    from dragoman.inference.pipeline import Pipeline, Prediction

    Prediction._repr_html_ = _import_on_call("render.notebook", "render_prediction")  # type: ignore[attr-defined]
    Pipeline.preview_media = _import_on_call("media_preview", "build_media_preview")


def _import_on_call(module: str, function: str) -> Callable[..., Any]:
    return lambda *arguments: getattr(import_module(f"dragoman.inspection.{module}"), function)(*arguments)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'dragoman' has no attribute '{name}'")
    if name in ("Pipeline", "Prediction"):
        _connect_inspection()
    return getattr(import_module(_MODULES[name]), name)
