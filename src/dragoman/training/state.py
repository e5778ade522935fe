"""The training state of a checkpoint, with which a run resumes exactly: safetensors and JSON, nothing pickled.

The states of random generators are not in it: every update seeds them from (seed, step, piece).
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from dragoman.checkpoint import model_folder
from dragoman.core import files
from dragoman.core.errors import ModelError
from dragoman.core.formats import FORMAT, check_format
from dragoman.optim.schedules import Schedule, ScheduleState
from dragoman.training.averaging import MovingAverage, copy_weights


@dataclass
class Progress:
    """How far a run is. The sums of the log window are here so that a resumed window logs the same mean."""

    step: int = 0
    epoch: int = 0
    batch: int = 0  # next batch of the epoch
    tokens: int = 0  # target tokens seen in all
    window_loss: float = 0.0
    window_tokens: int = 0
    best: float | None = None  # best value of the metric that selects checkpoints
    best_loss: float | None = None  # the loss with it
    best_step: int = 0
    last_validation: int = 0  # step
    bad_validations: int = 0  # validations since the best
    nonfinite_updates: int = 0  # in a row
    first_loss: float | None = None  # of a token, in the first update, or since one was below a guess's
    runaway_updates: int = 0  # above the limit of training/divergence.py, less those below
    max_area: int | None = None  # largest batch area that fits into memory; None: all did
    threads: int = 0
    ranks: int = 1
    schedule: ScheduleState = field(default_factory=dict)
    data: list[str] = field(default_factory=list)  # fingerprints of the training and validation data

    @property
    def best_scores(self) -> tuple[float, float] | None:
        """The selecting metric and the loss of the best validation, if there was one."""
        return None if self.best is None or self.best_loss is None else (self.best, self.best_loss)


def serialize_state(
    progress: Progress, model: nn.Module, optimizer: torch.optim.Optimizer, average: MovingAverage | None
) -> dict[str, bytes]:
    """Progress, optimizer state and, with a moving average, the raw weights, as files of a checkpoint."""
    tensors = {
        f"optimizer.{index}.{key}": value
        for index, state in optimizer.state_dict()["state"].items()
        for key, value in state.items()
        if isinstance(value, Tensor)
    }
    if average is not None:  # the file of the weights then holds the average
        tensors |= {f"weights.{name}": x for name, x in model_folder.saved_weights(model).items()}
    return {
        "training.json": (json.dumps({"format": FORMAT} | asdict(progress), indent=1) + "\n").encode(),
        "training.safetensors": model_folder.tensors_to_bytes(tensors),
    }


def restore_state(
    folder: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    schedule: Schedule,
    average: MovingAverage | None,
) -> Progress:
    """Load a checkpoint into model, optimizer, schedule and moving average; returns its progress."""
    progress = read_progress(folder)
    name = model_folder.ADAPTER if model_folder.has_adapter(folder) else model_folder.WEIGHTS
    weights = model_folder.load_tensors(folder, name)
    tensors = model_folder.load_tensors(folder, "training.safetensors")
    if average is not None:
        copy_weights(weights, average.shadow)
        weights = {name.removeprefix("weights."): x for name, x in tensors.items() if name.startswith("weights.")}
    model_folder.load_weights(model, weights, str(folder))
    states: dict[int, dict[str, Tensor]] = {}
    for name, x in tensors.items():
        if name.startswith("optimizer."):
            _, index, key = name.split(".", 2)
            states.setdefault(int(index), {})[key] = x
    optimizer.load_state_dict({"state": states, "param_groups": optimizer.state_dict()["param_groups"]})
    schedule.restore(progress.schedule) if progress.schedule else None
    return progress


def read_progress(folder: Path) -> Progress:
    """Read the progress of a checkpoint."""
    try:
        value = json.loads(files.read_plain(folder / "training.json", model_folder.MAX_SMALL_BYTES))
        check_format(value.pop("format", None), folder)
        return Progress(**value)
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ModelError(f"{folder / 'training.json'}: is not a training state: {error}") from None
