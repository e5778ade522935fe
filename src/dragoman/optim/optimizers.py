"""torch's optimizers by name; `rate` is the peak learning rate, which a schedule then shapes.

Weight decay pulls on matrices only: a bias or the gain of a norm has nothing to gain from being small.

adafactor, with rate γ and everything squared, divided or rooted by element (R, C: means over rows and columns of G²):

    β = 1 − t^−0.8     R ← β R + (1 − β) mean_rows G²     C ← β C + (1 − β) mean_columns G²     V = R C / mean R
    U = G / √V         U ← U / max(1, RMS(U))             θ ← θ − min(γ, 1/√t) · max(ε, RMS(θ)) · U

With rate 0.01 and the schedule inverse_sqrt, flat for 10,000 steps, γ is the 1/√max(t, 10⁴) that T5 was trained with.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from dragoman.core.errors import PartError
from dragoman.core.registry import PositiveFloat, Registry, UnitInterval

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
    rate: PositiveFloat = 1e-3,
    beta1: UnitInterval = 0.9,
    beta2: UnitInterval = 0.98,
    eps: PositiveFloat = 1e-9,
) -> torch.optim.Optimizer:
    """Adam (Kingma and Ba 2015); β₂ = 0.98 and ε = 1e-9 as in the Transformer paper."""
    return torch.optim.Adam(list(parameters), lr=rate, betas=(beta1, beta2), eps=eps, fused=True)


@optimizers.register("adamw")
def adamw(
    parameters: Iterable[nn.Parameter],
    *,
    rate: PositiveFloat = 1e-3,
    beta1: UnitInterval = 0.9,
    beta2: UnitInterval = 0.98,
    eps: PositiveFloat = 1e-8,
    weight_decay: float = 0.01,
) -> torch.optim.Optimizer:
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019)."""
    return torch.optim.AdamW(groups(parameters, weight_decay), lr=rate, betas=(beta1, beta2), eps=eps, fused=True)


@optimizers.register("sgd")
def sgd(
    parameters: Iterable[nn.Parameter],
    *,
    rate: PositiveFloat = 1.0,
    momentum: UnitInterval = 0.0,
    nesterov: bool = False,
    weight_decay: float = 0.0,
) -> torch.optim.Optimizer:
    """Stochastic gradient descent, with momentum if asked; `nesterov` looks one step ahead of it."""
    if nesterov and not momentum:
        raise PartError("nesterov is a form of momentum, and momentum is 0; set it, to 0.99 for instance")
    return torch.optim.SGD(groups(parameters, weight_decay), lr=rate, momentum=momentum, nesterov=nesterov)


@optimizers.register("rmsprop")
def rmsprop(
    parameters: Iterable[nn.Parameter],
    *,
    rate: PositiveFloat = 1e-3,
    rho: UnitInterval = 0.99,
    eps: PositiveFloat = 1e-8,
) -> torch.optim.Optimizer:
    """Steps divided by a running root mean square of the gradient (Tieleman and Hinton 2012)."""
    return torch.optim.RMSprop(list(parameters), lr=rate, alpha=rho, eps=eps)


@optimizers.register("adadelta")
def adadelta(
    parameters: Iterable[nn.Parameter],
    *,
    rate: PositiveFloat = 1.0,
    rho: UnitInterval = 0.95,
    eps: PositiveFloat = 1e-6,
) -> torch.optim.Optimizer:
    """Adadelta: steps in the units of earlier steps, without a rate to choose (Zeiler 2012; Bahdanau et al. 2015)."""
    return torch.optim.Adadelta(list(parameters), lr=rate, rho=rho, eps=eps)


@optimizers.register("adafactor")
def adafactor(
    parameters: Iterable[nn.Parameter],
    *,
    rate: PositiveFloat = 0.01,
    eps: PositiveFloat = 1e-3,
    weight_decay: float = 0.0,
) -> torch.optim.Optimizer:
    """Adafactor (Shazeer and Stern 2018), as in T5: memory of rows and columns only, steps relative to the weights."""
    # torch would not let mean R fall below 1e-7: all steps on gradients smaller than 3e-4 would be of one size. The
    # paper's bound on G² is 1e-30, of which torch takes the root; less would underflow, and make 0/0 of unseen words.
    return torch.optim.Adafactor(groups(parameters, weight_decay), lr=rate, eps=(1e-15, eps))
