"""Everything a run needs to go on exactly, as safetensors and JSON; nothing is pickled.

The random generators are not among it: every update seeds them from (seed, step, piece).
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dragoman.checkpoint import model_folder
from dragoman.core.errors import ModelError
from dragoman.core.formats import FORMAT, check_format
from dragoman.optim.schedules import Schedule
from dragoman.training.averaging import MovingAverage


@dataclass
class Progress:
    """Where a run stands. Sums over the log window are here too, so that a resumed window logs the same mean."""

    step: int = 0
    epoch: int = 0
    batch: int = 0  # cursor in the epoch
    tokens: int = 0  # target tokens seen in all
    window_loss: float = 0.0
    window_tokens: int = 0
    best: float | None = None  # the best value of the metric that decides
    best_loss: float | None = None  # the loss with it
    best_step: int = 0
    validated: int = 0  # the step of the last validation
    waited: int = 0  # validations since the best
    bad: int = 0  # updates in a row that were not finite
    limit: int | None = None  # the largest batch area known to fit
    threads: int = 0
    ranks: int = 1
    schedule: dict[str, Any] = field(default_factory=dict)
    data: list[str] = field(default_factory=list)

    @property
    def found(self) -> tuple[float, float] | None:
        """What the best validation found, if there was one: the metric that decides, and the loss."""
        return None if self.best is None or self.best_loss is None else (self.best, self.best_loss)


def dump(
    progress: Progress, model: nn.Module, optimizer: torch.optim.Optimizer, average: MovingAverage | None
) -> dict[str, bytes]:
    """The training files of a checkpoint."""
    tensors = {
        f"optimizer.{index}.{key}": value
        for index, state in optimizer.state_dict()["state"].items()
        for key, value in state.items()
        if isinstance(value, Tensor)
    }
    if average is not None:  # model.safetensors then holds the average
        tensors |= {f"weights.{name}": x for name, x in model_folder.unique_weights(model).items()}
    return {
        "training.json": (json.dumps({"format": FORMAT} | asdict(progress), indent=1) + "\n").encode(),
        "training.safetensors": model_folder.tensors_to_bytes(tensors),
    }


def restore(
    folder: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    schedule: Schedule,
    average: MovingAverage | None,
) -> Progress:
    """Put a run back to where a checkpoint left it."""
    progress = read_progress(folder)
    weights = model_folder.tensors(folder, "model.safetensors")
    tensors = model_folder.tensors(folder, "training.safetensors")
    if average is not None:
        average.restore(weights)
        weights = {name.removeprefix("weights."): x for name, x in tensors.items() if name.startswith("weights.")}
    model_folder.fill(model, weights, str(folder))
    states: dict[int, dict[str, Tensor]] = {}
    for name, x in tensors.items():
        if name.startswith("optimizer."):
            _, index, key = name.split(".", 2)
            states.setdefault(int(index), {})[key] = x
    optimizer.load_state_dict({"state": states, "param_groups": optimizer.state_dict()["param_groups"]})
    schedule.restore(progress.schedule) if progress.schedule else None
    return progress


def read_progress(folder: Path) -> Progress:
    try:
        value = json.loads((folder / "training.json").read_bytes())
        check_format(value.pop("format", None), folder)
        return Progress(**value)
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ModelError(f"{folder / 'training.json'}: is not the state of a training: {error}") from None
