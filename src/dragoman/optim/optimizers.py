"""torch's optimizers by name; `rate` is the peak learning rate, which a schedule then shapes.

Weight decay pulls on matrices only: a bias or the gain of a norm has nothing to gain from being small.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from dragoman.core.registry import Rate, Registry, Share

optimizers: Registry[torch.optim.Optimizer] = Registry("optimizer")


def groups(parameters: Iterable[nn.Parameter], weight_decay: float) -> list[dict[str, Any]]:
    every = list(parameters)
    matrices, vectors = [p for p in every if p.dim() > 1], [p for p in every if p.dim() <= 1]
    both = [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return [group for group in both if group["params"]]


@optimizers.register("adam")
def adam(
    parameters: Iterable[nn.Parameter],
    *,
    rate: Rate = 1e-3,
    beta1: Share = 0.9,
    beta2: Share = 0.98,
    eps: Rate = 1e-9,
) -> torch.optim.Optimizer:
    """Adam (Kingma and Ba 2015); β₂ = 0.98 and ε = 1e-9 as in the Transformer paper."""
    return torch.optim.Adam(list(parameters), lr=rate, betas=(beta1, beta2), eps=eps, fused=True)


@optimizers.register("adamw")
def adamw(
    parameters: Iterable[nn.Parameter],
    *,
    rate: Rate = 1e-3,
    beta1: Share = 0.9,
    beta2: Share = 0.98,
    eps: Rate = 1e-8,
    weight_decay: float = 0.01,
) -> torch.optim.Optimizer:
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019)."""
    return torch.optim.AdamW(groups(parameters, weight_decay), lr=rate, betas=(beta1, beta2), eps=eps, fused=True)


@optimizers.register("sgd")
def sgd(
    parameters: Iterable[nn.Parameter], *, rate: Rate = 1.0, momentum: Share = 0.0, weight_decay: float = 0.0
) -> torch.optim.Optimizer:
    """Stochastic gradient descent, with momentum if asked."""
    return torch.optim.SGD(groups(parameters, weight_decay), lr=rate, momentum=momentum)
