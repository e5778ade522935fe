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
    from dragoman.core.registry import Part
    from dragoman.inference.constraints import Constraints
    from dragoman.inference.pipeline import Pipeline, Prediction
    from dragoman.training import Report

__all__ = ["Constraints", "Part", "Pipeline", "Prediction", "Report", "__version__", "load", "train"]


def load(path: str | Path, device: str = "auto", *, precision: str | None = None, plain: bool = False) -> Pipeline:
    """A trained model from a run folder or a model folder; `precision` (of searching) is as the config has it."""
    from dragoman.inference import pipeline

    _draw_predictions()
    return pipeline.load(path, device, precision=precision, plain=plain)


def train(
    config: str | Path, *, set: Sequence[str] = (), run: str | Path | None = None, allow_change: Sequence[str] = ()
) -> Iterator[Report]:
    """Train as a config file says; yields a Report for everything that happens. `set` takes "key=value" texts."""
    from dragoman import config as configs
    from dragoman import training

    loaded = configs.load(config, None, set)
    return training.run(loaded.config, None if run is None else Path(run), allow_change=allow_change)


def _draw_predictions() -> None:
    """Let a Prediction show itself in a notebook; the pipeline itself knows no pictures."""
    from dragoman.inference.inputs import Given
    from dragoman.inference.pipeline import Pipeline, Prediction

    def drawn(self: Prediction) -> str:
        from dragoman.inspection.render.notebook import html

        return html(self)

    def picture(pipeline: Pipeline, read: Given) -> dict[str, Any] | None:
        from dragoman.inspection.media_preview import medium

        return medium(pipeline, read)

    Prediction._repr_html_ = drawn  # type: ignore[attr-defined]
    Pipeline.draws = picture


def __getattr__(name: str) -> Any:
    if name in ("Pipeline", "Prediction"):
        from dragoman.inference import pipeline

        _draw_predictions()
        return getattr(pipeline, name)
    if name == "Constraints":
        from dragoman.inference import constraints

        return constraints.Constraints
    if name == "Part":
        from dragoman.core import registry

        return registry.Part
    if name == "Report":
        from dragoman import training

        return training.Report
    raise AttributeError(f"module 'dragoman' has no attribute '{name}'")
