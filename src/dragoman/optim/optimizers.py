"""torch's optimizers by name; `rate` is the peak learning rate, which the schedule scales.

Weight decay applies to matrices only, not to biases and the gains of norms.

adafactor with rate γ; squares, quotients and roots are element-wise (R, C: means over rows and columns of G²):

    β = 1 − t^−0.8     R ← β R + (1 − β) mean_rows G²     C ← β C + (1 − β) mean_columns G²     V = R C / mean R
    U = G / √V         U ← U / max(1, RMS(U))             θ ← θ − min(γ, 1/√t) · max(ε, RMS(θ)) · U

With rate 0.01 and the schedule inverse_sqrt, flat for 10,000 steps, γ is T5's 1/√max(t, 10⁴).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from dragoman.core.errors import PartError
from dragoman.core.registry import PositiveFloat, Registry, UnitInterval

optimizers: Registry[torch.optim.Optimizer] = Registry("optimizer")


def parameter_groups(parameters: Iterable[nn.Parameter], weight_decay: float) -> list[dict[str, Any]]:
    """Put matrices into a group with weight decay and all other parameters into one without."""
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
    return torch.optim.AdamW(
        parameter_groups(parameters, weight_decay), lr=rate, betas=(beta1, beta2), eps=eps, fused=True
    )


@optimizers.register("sgd")
def sgd(
    parameters: Iterable[nn.Parameter],
    *,
    rate: PositiveFloat = 1.0,
    momentum: UnitInterval = 0.0,
    nesterov: bool = False,
    weight_decay: float = 0.0,
) -> torch.optim.Optimizer:
    """Stochastic gradient descent, optionally with momentum or Nesterov momentum."""
    if nesterov and not momentum:
        raise PartError("nesterov needs momentum, but momentum is 0; set it, for example to 0.99")
    return torch.optim.SGD(parameter_groups(parameters, weight_decay), lr=rate, momentum=momentum, nesterov=nesterov)


@optimizers.register("rmsprop")
def rmsprop(
    parameters: Iterable[nn.Parameter],
    *,
    rate: PositiveFloat = 1e-3,
    rho: UnitInterval = 0.99,
    eps: PositiveFloat = 1e-8,
) -> torch.optim.Optimizer:
    """RMSprop: the gradient divided by its running root mean square (Tieleman and Hinton 2012)."""
    return torch.optim.RMSprop(list(parameters), lr=rate, alpha=rho, eps=eps)


@optimizers.register("adadelta")
def adadelta(
    parameters: Iterable[nn.Parameter],
    *,
    rate: PositiveFloat = 1.0,
    rho: UnitInterval = 0.95,
    eps: PositiveFloat = 1e-6,
) -> torch.optim.Optimizer:
    """Adadelta: the step size follows from earlier steps, not from a rate (Zeiler 2012; Bahdanau et al. 2015)."""
    return torch.optim.Adadelta(list(parameters), lr=rate, rho=rho, eps=eps)


@optimizers.register("adafactor")
def adafactor(
    parameters: Iterable[nn.Parameter],
    *,
    rate: PositiveFloat = 0.01,
    eps: PositiveFloat = 1e-3,
    weight_decay: float = 0.0,
) -> torch.optim.Optimizer:
    """Adafactor (Shazeer and Stern 2018), as in T5: factored second moments, steps relative to the weights."""
    # By default torch does not let mean R fall below 1e-7, which gives all gradients below 3e-4 the same step size. The
    # paper's bound on G² is 1e-30, and torch takes the root of it. A smaller one underflows: 0/0 for unseen words.
    return torch.optim.Adafactor(parameter_groups(parameters, weight_decay), lr=rate, eps=(1e-15, eps))
