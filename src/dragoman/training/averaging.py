"""An exponential moving average of the weights, w̄ ← δ w̄ + (1 − δ) w, with a smaller δ in the first steps.

Weights are those that training changes: of an adapter, A and B by themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from dragoman.checkpoint.model_folder import saved_weights
from dragoman.training.sharding import local_part, shard_like


class MovingAverage:
    """The moving average of a model's weights."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.shadow = {name: x.clone() for name, x in saved_weights(model).items()}

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        """Move the average toward the weights after a step, with a smaller decay at first; copy buffers as they are."""
        decay = min(self.decay, (1 + step) / (10 + step))
        parameters = {name for name, _ in model.named_parameters()}
        for name, x in saved_weights(model).items():
            self.shadow[name].lerp_(x, 1 - decay if name in parameters else 1.0)  # a buffer is an average already


@contextmanager
def temporary_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> Iterator[None]:
    """Give a model other weights inside the `with` block (to validate an average), then its own again."""
    current = saved_weights(model)
    own = {name: x.clone() for name, x in current.items()}
    with torch.no_grad():
        copy_weights(weights, current)
        try:
            yield
        finally:
            copy_weights(own, current)


def copy_weights(weights: Mapping[str, Tensor], into: Mapping[str, Tensor]) -> None:
    """Overwrite tensors in place with those of the same names."""
    for name, x in into.items():
        local_part(x).copy_(local_part(shard_like(weights[name], x)))
