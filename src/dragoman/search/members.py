"""Steps made of steps: several models that a search drives like one.

    average   log p(y_t | y_<t) = log Σ_i w_i p_i(y_t | y_<t)                an ensemble; the weights w_i sum to one
    fuse      s(y_t | y_<t) = log p(y_t | y_<t) + λ log p_LM(y_t | y_<t)     shallow fusion (Gulcehre et al. 2015)

The state is the tuple of the members' states. Fusion gives what is added to a score, not log-probabilities: e^s does
not sum to one.

B sentences, K hypotheses, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dragoman.core.errors import UserError
from dragoman.core.types import Step

States = tuple[Any, ...]


def average(steps: Sequence[Step], weights: Sequence[float] | None = None) -> Step:
    """log p = log Σ_i w_i p_i; all weigh the same where no weights are given."""
    w = shares(weights, len(steps))

    def step(tokens: Tensor, state: States) -> tuple[Tensor, States]:
        log_ps, states = zip(*(member(tokens, mine) for member, mine in zip(steps, state, strict=True)), strict=True)
        return log_mean(log_ps, w), states

    return step


def fuse(step: Step, other: Step, weight: float) -> Step:
    """s = log p + λ log p_LM, with λ ≥ 0."""

    def fused(tokens: Tensor, state: States) -> tuple[Tensor, States]:
        (log_p, mine), (log_q, others) = step(tokens, state[0]), other(tokens, state[1])
        # Without this, 0 · −∞ would not be a number.
        s = precise(log_p) + weight * precise(log_q) if weight else precise(log_p)
        return s, (mine, others)

    return fused


def log_mean(log_ps: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """log Σ_i w_i p_i of log-probabilities of one shape."""
    log_w = [math.log(w) if w else -math.inf for w in weights]
    return torch.stack([precise(log_p) + b for log_p, b in zip(log_ps, log_w, strict=True)]).logsumexp(0)


def shares(weights: Sequence[float] | None, count: int) -> list[float]:
    """Weights that sum to one, in the proportions given."""
    if weights is None:
        return [1 / count] * count
    total = sum(weights)
    if len(weights) != count or min(weights) < 0 or not 0 < total < math.inf:
        raise UserError(f"the weights are {list(weights)}; {count} models need {count} of 0 or more, not all of them 0")
    return [w / total for w in weights]


def precise(x: Tensor) -> Tensor:
    """At least float32: small probabilities are summed here."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
