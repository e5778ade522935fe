"""A run from its beginning to where it stands: curves, and what the model said at every checkpoint.

    run/metrics.jsonl → curves {name: [[step, value], …]}          run/replay.jsonl → frames

Both files may be growing while they are read: a line that is half written is left out. So is what is not finite (null
in the file). `rate` is the learning rate, `valid` the validation loss; other validation metrics go by their own names.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dragoman.core.errors import RunError, UserError
from dragoman.inference.pipeline import Pipeline

TRAIN = {"loss": "loss", "learning_rate": "rate", "gradient_norm": "gradient_norm"}  # as recorded → the curve's name
PLACES = {"kind", "step", "epoch"}  # what a validation records besides its metrics


def replay(run_folder: str | Path) -> dict[str, Any]:
    """The curves and the frames of a run."""
    folder = Path(run_folder)
    if not any((folder / name).exists() for name in ("metrics.jsonl", ".lock")):
        raise RunError(f"{folder}: no run is recorded here (metrics.jsonl is missing); name the folder of a training")
    records = list(lines(folder / "metrics.jsonl"))
    return {
        "view": "replay",
        "run": folder.resolve().name,
        "curves": curves(records),
        "frames": [frame for frame in lines(folder / "replay.jsonl") if "sources" in frame],
        "finished": finished(folder, max((record["step"] for record in records), default=0)),
    }


def run_of(pipeline: Pipeline) -> Path:
    """The folder of the run that a model is a checkpoint of."""
    path = pipeline.path
    if path is None or path.parent.name != "checkpoints":
        raise UserError("this model was not loaded from a run, so there is no training to replay; name a run folder")
    return path.parent.parent


def curves(records: list[dict[str, Any]]) -> dict[str, list[list[float]]]:
    """Each number over the steps; those of training and validation loss are there even while they are empty."""
    found: dict[str, list[list[float]]] = {"loss": [], "rate": [], "valid": []}
    for record in records:
        for name, value in named(record):
            if value is not None:
                found.setdefault(name, []).append([record["step"], value])
    return found


def named(record: dict[str, Any]) -> Iterator[tuple[str, float | None]]:
    """The curves that a line of metrics.jsonl adds to."""
    if record.get("kind") == "train":
        yield from ((name, record.get(key)) for key, name in TRAIN.items())
    if record.get("kind") == "valid":
        yield from (("valid" if key == "loss" else key, x) for key, x in record.items() if key not in PLACES)


def lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a file of JSON lines that name a step; a file that is not there yet has none."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return
    except OSError as error:
        raise RunError(f"{path}: cannot be read: {error.strerror}; change its permissions") from None
    for line in data.split(b"\n"):
        try:
            record = json.loads(line)
        except ValueError:
            continue  # a line that is being written, or was when its process was killed
        if isinstance(record, dict) and isinstance(record.get("step"), int):
            yield record


def finished(folder: Path, step: int) -> bool:
    """Whether the run ended by itself; one that was made longer afterwards is past the end it noted."""
    try:
        return int((folder / "finished").read_text(encoding="utf-8")) >= step
    except (OSError, ValueError):
        return False
