"""Steps made of steps: several models that a search drives as one.

    average_steps   log p(y_t | y_<t) = log Σ_i w_i p_i(y_t | y_<t)             an ensemble; the weights w_i sum to one
    fuse_steps      s(y_t | y_<t) = log p(y_t | y_<t) + λ log p_LM(y_t | y_<t)  shallow fusion (Gulcehre et al. 2015)

The state is the tuple of the members' states. Fusion gives scores, not log-probabilities: e^s does not sum to one.

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


def average_steps(steps: Sequence[Step], weights: Sequence[float] | None = None) -> Step:
    """Build a step that averages the probabilities of several models, log Σ_i w_i p_i; equal weights by default."""
    w = normalize_weights(weights, len(steps))

    def step(tokens: Tensor, state: States) -> tuple[Tensor, States]:
        log_ps, states = zip(*(member(tokens, mine) for member, mine in zip(steps, state, strict=True)), strict=True)
        return log_mean(log_ps, w), states

    return step


def fuse_steps(step: Step, other: Step, weight: float) -> Step:
    """Build a step with shallow fusion: log p + λ log p_LM, with `weight` λ ≥ 0."""

    def fused(tokens: Tensor, state: States) -> tuple[Tensor, States]:
        (log_p, mine), (log_q, others) = step(tokens, state[0]), other(tokens, state[1])
        # Without this, 0 · −∞ would not be a number.
        s = at_least_float32(log_p) + weight * at_least_float32(log_q) if weight else at_least_float32(log_p)
        return s, (mine, others)

    return fused


def log_mean(log_ps: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """Return log Σ_i w_i p_i of log-probabilities of one shape, in float32 or more."""
    log_w = [math.log(w) if w else -math.inf for w in weights]
    return torch.stack([at_least_float32(log_p) + b for log_p, b in zip(log_ps, log_w, strict=True)]).logsumexp(0)


def normalize_weights(weights: Sequence[float] | None, count: int) -> list[float]:
    """Return the weights divided by their sum, or `count` equal ones; wrong weights raise UserError."""
    if weights is None:
        return [1 / count] * count
    total = sum(weights)
    if len(weights) != count or min(weights) < 0 or not 0 < total < math.inf:
        raise UserError(f"the weights are {list(weights)}; {count} models need {count} of 0 or more, not all of them 0")
    return [w / total for w in weights]


def at_least_float32(x: Tensor) -> Tensor:
    """Convert a tensor of lower precision to float32; others stay as they are."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
