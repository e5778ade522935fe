"""The trainings of a learning curve: from a config, or from pairs for which one is chosen.

PAIRS ─training.autotrain, a third of the time→ all: parts, config, training ─→ the same config on ¼ and ½
CONFIG ─────────────────────────────────────────────────────────────────────→ the same config on ¼, ½ and all
"""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

from dragoman import config as configs
from dragoman.config import Config, autoconfig
from dragoman.core import yaml
from dragoman.core.errors import UserError
from dragoman.core.registry import Part
from dragoman.core.types import Example
from dragoman.data.columns import ColumnsLike
from dragoman.data.readers import read_pairs
from dragoman.reports.learning_curve import SHARES, LearningCurve, measure_curve
from dragoman.training import Report, autotrain
from dragoman.training.speed import measure_speed


def from_pairs(
    pairs: str,
    test: str | None,
    folder: Path | None,
    minutes: float | None,
    columns: ColumnsLike | None,
    overrides: tuple[str, ...] = (),
    metric: Part | None = None,
) -> Generator[Report, None, LearningCurve]:
    """The curve of a file of pairs: of the config that `dragoman train PAIRS` chooses for a third of the time."""
    base = autotrain.default_folder(pairs)
    folder = folder or base.with_name(f"{base.name}-curve")
    each = (minutes or autotrain.MINUTES) / len(SHARES)
    request = autotrain.TrainingRequest(pairs, None, test, columns, each, overrides=overrides)
    whole = folder / "100-percent"
    yield from autotrain.run(request, whole)
    config = configs.load(whole / "train.yaml", None, overrides).config
    test_file = autotrain.read_plan(whole)["test"]
    return (yield from measure_curve(config, _read_test(config, test_file), folder, metric, {1.0: whole}))


def from_config(
    path: str,
    test: str | None,
    folder: Path | None,
    minutes: float | None,
    overrides: tuple[str, ...] = (),
    metric: Part | None = None,
) -> Generator[Report, None, LearningCurve]:
    """The curve of a config, with its own steps or as many as a third of the time allows."""
    config = configs.load(path, None, overrides).config
    folder = folder or Path("runs") / f"{config.name}-curve"
    test = test or config.data.valid
    if test is None:
        raise UserError(f"{path}: there is no data.valid; name test pairs with --test")
    if minutes is not None:
        steps = _steps_for(config, minutes * 60 / len(SHARES), folder)
        warmup = int(config.training.schedule.options.get("warmup", 0))
        settings = autoconfig.interval_settings(steps, warmup)
        if not warmup:
            del settings["training.schedule.warmup"]  # not every schedule has one
        chosen = (f"{key}={value}" for key, value in settings.items())
        config = configs.load(path, None, (*overrides, *chosen)).config
    return (yield from measure_curve(config, _read_test(config, test), folder, metric))


def _steps_for(config: Config, seconds: float, folder: Path) -> int:
    """As many steps as fit into the time, no more than the config has; in tens, at least 100."""
    trained = folder / f"{round(100 * SHARES[0])}-percent" / "config.yaml"
    if trained.exists():  # a curve that was begun goes on with the same steps
        return int(yaml.read(trained)["training"]["steps"])
    speed = measure_speed(config, folder / ".cache")
    affordable = seconds * (1 - autotrain.VALIDATION_SHARE) / speed.seconds_per_step
    return max(int(min(affordable, config.training.steps)) // 10 * 10, 100)


def _read_test(config: Config, test: str) -> list[Example]:
    return list(read_pairs(test, columns=config.columns, extra_targets=True))
