"""A moving average of the weights: w̄ ← δ w̄ + (1 − δ) w, with a smaller δ while there is little to average."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class MovingAverage:
    """Shadow weights beside a model's own."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.shadow = {name: p.detach().clone() for name, p in model.named_parameters()}

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        decay = min(self.decay, (1 + step) / (10 + step))
        for name, p in model.named_parameters():
            self.shadow[name].lerp_(p, 1 - decay)

    def restore(self, weights: Mapping[str, Tensor]) -> None:
        for name, x in self.shadow.items():
            x.copy_(weights[name])


@contextmanager
def holding(model: nn.Module, weights: Mapping[str, Tensor]) -> Iterator[None]:
    """The model with other weights for a while (to validate an average), then with its own again."""
    own = {name: p.detach().clone() for name, p in model.named_parameters()}
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(weights[name])
        try:
            yield
        finally:
            for name, p in model.named_parameters():
                p.copy_(own[name])
