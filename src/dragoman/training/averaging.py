"""An exponential moving average of the weights, w̄ ← δ w̄ + (1 − δ) w, with a smaller δ in the first steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from dragoman.checkpoint.model_folder import unique_weights


class MovingAverage:
    """The moving average of a model's weights."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.shadow = {name: x.clone() for name, x in unique_weights(model).items()}

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        """Move the average toward the weights after a step, with a smaller decay at first; copy buffers as they are."""
        decay = min(self.decay, (1 + step) / (10 + step))
        parameters = {name for name, _ in model.named_parameters()}
        for name, x in unique_weights(model).items():
            self.shadow[name].lerp_(
                x, 1 - decay if name in parameters else 1.0
            )  # a buffer is a running average already

    def restore(self, weights: Mapping[str, Tensor]) -> None:
        """Overwrite the average with a saved one."""
        for name, x in self.shadow.items():
            x.copy_(weights[name])


@contextmanager
def temporary_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> Iterator[None]:
    """Give a model other weights inside the `with` block (to validate an average), then its own again."""
    current = unique_weights(model)
    own = {name: x.clone() for name, x in current.items()}
    with torch.no_grad():
        for name, x in current.items():
            x.copy_(weights[name])
        try:
            yield
        finally:
            for name, x in current.items():
                x.copy_(own[name])
