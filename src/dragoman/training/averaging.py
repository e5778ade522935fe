"""A moving average of the weights: w̄ ← δ w̄ + (1 − δ) w, with a smaller δ while there is little to average."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from dragoman.checkpoint.model_folder import unique_weights


class MovingAverage:
    """Shadow weights beside a model's own."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.shadow = {name: x.clone() for name, x in unique_weights(model).items()}

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        decay = min(self.decay, (1 + step) / (10 + step))
        trained = {name for name, _ in model.named_parameters()}
        for name, x in unique_weights(model).items():
            self.shadow[name].lerp_(
                x, 1 - decay if name in trained else 1.0
            )  # what is counted along is an average already

    def restore(self, weights: Mapping[str, Tensor]) -> None:
        for name, x in self.shadow.items():
            x.copy_(weights[name])


@contextmanager
def holding(model: nn.Module, weights: Mapping[str, Tensor]) -> Iterator[None]:
    """The model with other weights for a while (to validate an average), then with its own again."""
    now = unique_weights(model)
    own = {name: x.clone() for name, x in now.items()}
    with torch.no_grad():
        for name, x in now.items():
            x.copy_(weights[name])
        try:
            yield
        finally:
            for name, x in now.items():
                x.copy_(own[name])
