"""A training run replayed: its curves, and the outputs of the model at every checkpoint.

    run/metrics.jsonl → curves {name: [[step, value], …]}          run/replay.jsonl → frames

Both files may grow while they are read: a line that is half written is skipped, and so are values that are not finite
(null in the file). `rate` is the learning rate, `valid` the validation loss; other metrics keep their names.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from dragoman.core import files
from dragoman.core.errors import RunError
from dragoman.core.formats import MAX_POINTER_BYTES
from dragoman.inspection.views import ViewData, register_view

if TYPE_CHECKING:
    from dragoman.inference.pipeline import Pipeline

# Recorded key → name of the curve.
TRAINING_CURVES = {"loss": "loss", "learning_rate": "rate", "gradient_norm": "gradient_norm"}
MAX_BYTES = 2**26  # of a file that is shown
NOT_METRICS = {"kind", "step", "epoch"}  # keys of a validation record


def _run_blocker(pipeline: Pipeline) -> str | None:
    if pipeline.path is None or pipeline.path.parent.name != "checkpoints":
        return "this model was not loaded from a run, so there is no training to replay; name a run folder"
    return None


def _print_replay(out: Console, data: ViewData) -> None:
    for frame in data["frames"][-1:]:
        for one in frame["sources"]:
            out.print(f"step {frame['step']}: {one['source']} → {one['output']}", markup=False)


READ_COST = 1000  # of files of some megabytes


@register_view("replay", inputs="none", cost=lambda _: READ_COST, print_view=_print_replay, blocker=_run_blocker)
def replay_training(pipeline: Pipeline) -> ViewData:
    """A few sources at every checkpoint of the run that a model was loaded from, with the training curves."""
    assert pipeline.path is not None  # see _run_blocker
    return read_run(pipeline.path.parent.parent)


def read_run(run_folder: str | Path) -> ViewData:
    """Read name, training curves, recorded outputs and whether it is finished from a run folder."""
    folder = Path(run_folder)
    if not any((folder / name).exists() for name in ("metrics.jsonl", ".lock")):
        raise RunError(f"{folder}: there is no run here (metrics.jsonl is missing); name a run folder")
    records = list(read_records(folder / "metrics.jsonl"))
    return {
        "run": folder.resolve().name,
        "curves": collect_curves(records),
        "frames": [frame for frame in read_records(folder / "replay.jsonl") if "sources" in frame],
        "finished": is_finished(folder, max((record["step"] for record in records), default=0)),
    }


def collect_curves(records: list[ViewData]) -> dict[str, list[list[float]]]:
    """Collect each value as [step, value] by name; loss, rate and valid are there even if empty."""
    curves: dict[str, list[list[float]]] = {"loss": [], "rate": [], "valid": []}
    for record in records:
        values: ViewData = {}
        if record.get("kind") == "train":
            values = {name: record.get(key) for key, name in TRAINING_CURVES.items()}
        elif record.get("kind") == "valid":
            values = {"valid" if key == "loss" else key: x for key, x in record.items() if key not in NOT_METRICS}
        for name, value in values.items():
            if value is not None:
                curves.setdefault(name, []).append([record["step"], value])
    return curves


def read_records(path: Path) -> Iterator[ViewData]:
    """Yield the objects of a JSON lines file that have a step; a missing file has none."""
    try:
        data = files.read_plain(path, MAX_BYTES)
    except FileNotFoundError:
        return
    except OSError as error:
        raise RunError(f"{path}: cannot be read: {error.strerror}") from None
    for line in data.split(b"\n"):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue  # the line is being written, or was when its process was killed
        if isinstance(record, dict) and isinstance(record.get("step"), int):
            yield record


def is_finished(folder: Path, step: int) -> bool:
    """Whether the run's file `finished` records a step of at least `step`."""
    try:
        return int(files.read_plain(folder / "finished", MAX_POINTER_BYTES)) >= step
    except (OSError, ValueError):
        return False
