"""Dragoman: sequence-to-sequence models from pairs.

    import dragoman
    model = dragoman.load("runs/g2p")
    model.predict(["dragoman"], beam=5, nbest=3)
    model.score([("dragoman", "D R AE G AH M AH N")])
    for report in dragoman.train("config.yaml"): ...

Everything is imported on first use, so that `import dragoman` costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.version import __version__

if TYPE_CHECKING:
    from dragoman.core.generation import GenerationOptions
    from dragoman.core.registry import Part
    from dragoman.inference.pipeline import Pipeline, Prediction
    from dragoman.training import Report

__all__ = ["GenerationOptions", "Part", "Pipeline", "Prediction", "Report", "__version__", "load", "train"]


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

    loaded = configs.load(config, None, set)
    return training.run(loaded.config, None if run is None else Path(run), allow_change=allow_change)


def _connect_inspection() -> None:
    """Let a Prediction render itself in a notebook; the inference package itself does not import inspection."""
    from dragoman.inference.inputs import ModelInput
    from dragoman.inference.pipeline import Pipeline, Prediction

    def render(self: Prediction) -> str:
        from dragoman.inspection.render.notebook import render_prediction

        return render_prediction(self)

    def preview(pipeline: Pipeline, model_input: ModelInput) -> dict[str, Any] | None:
        from dragoman.inspection.media_preview import build_media_preview

        return build_media_preview(pipeline, model_input)

    Prediction._repr_html_ = render  # type: ignore[attr-defined]
    Pipeline.preview_media = preview


def __getattr__(name: str) -> Any:
    if name in ("Pipeline", "Prediction"):
        from dragoman.inference import pipeline

        _connect_inspection()
        return getattr(pipeline, name)
    if name == "GenerationOptions":
        from dragoman.core import generation

        return generation.GenerationOptions
    if name == "Part":
        from dragoman.core import registry

        return registry.Part
    if name == "Report":
        from dragoman import training

        return training.Report
    raise AttributeError(f"module 'dragoman' has no attribute '{name}'")
