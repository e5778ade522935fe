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
from dragoman.training.sharding import shard_like

PROGRESS, STATE = "training.json", "training.safetensors"


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


def state_tensors(
    model: nn.Module, optimizer: torch.optim.Optimizer, average: MovingAverage | None
) -> dict[str, Tensor]:
    """Optimizer state and, with a moving average, the raw weights, by the names they are saved under."""
    tensors = {
        f"optimizer.{index}.{key}": value
        for index, state in optimizer.state_dict()["state"].items()
        for key, value in state.items()
        if isinstance(value, Tensor)
    }
    if average is not None:  # the file of the weights then holds the average
        tensors |= {f"weights.{name}": x for name, x in model_folder.saved_weights(model).items()}
    return tensors


def serialize_state(
    progress: Progress, model: nn.Module, optimizer: torch.optim.Optimizer, average: MovingAverage | None
) -> dict[str, bytes]:
    """Progress, optimizer state and, with a moving average, the raw weights, as files of a checkpoint."""
    tensors = state_tensors(model, optimizer, average)
    return {PROGRESS: serialize_progress(progress), STATE: model_folder.tensors_to_bytes(tensors)}


def serialize_progress(progress: Progress) -> bytes:
    """Progress as the content of training.json."""
    return (json.dumps({"format": FORMAT} | asdict(progress), indent=1) + "\n").encode()


def restore_weights(folder: Path, model: nn.Module, has_average: bool) -> None:
    """Load the weights that training goes on with: beside a moving average they are in the training state."""
    if has_average:
        tensors = model_folder.load_tensors(folder, STATE)
        weights = {name.removeprefix("weights."): x for name, x in tensors.items() if name.startswith("weights.")}
    else:
        weights = _saved_weights(folder)
    model_folder.load_weights(model, weights, str(folder))


def restore_state(
    folder: Path,
    model: nn.Module | None,
    optimizer: torch.optim.Optimizer,
    schedule: Schedule,
    average: MovingAverage | None,
) -> Progress:
    """Load a checkpoint into model, optimizer, schedule and moving average; returns its progress.

    `model` is None where its weights are loaded already: they have to be whole for that.
    """
    progress = read_progress(folder)
    if model is not None:
        restore_weights(folder, model, average is not None)
    tensors = model_folder.load_tensors(folder, STATE)
    if average is not None:
        copy_weights(_saved_weights(folder), average.shadow)
    groups = optimizer.state_dict()["param_groups"]
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    states: dict[int, dict[str, Tensor]] = {}
    for name, x in tensors.items():
        if name.startswith("optimizer."):
            _, index, key = name.split(".", 2)
            states.setdefault(int(index), {})[key] = shard_like(x, parameters[int(index)])
    optimizer.load_state_dict({"state": states, "param_groups": groups})
    schedule.restore(progress.schedule) if progress.schedule else None
    return progress


def _saved_weights(folder: Path) -> dict[str, Tensor]:
    name = model_folder.ADAPTER if model_folder.has_adapter(folder) else model_folder.WEIGHTS
    return model_folder.load_tensors(folder, name)


def read_progress(folder: Path) -> Progress:
    """Read the progress of a checkpoint."""
    try:
        value = json.loads(files.read_plain(folder / PROGRESS, model_folder.MAX_SMALL_BYTES))
        check_format(value.pop("format", None), folder)
        return Progress(**value)
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ModelError(f"{folder / 'training.json'}: is not a training state: {error}") from None
