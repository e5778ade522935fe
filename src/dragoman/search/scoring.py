"""Length rules: log p of a sequence → the score that hypotheses of different lengths are compared by.

    none   log p          mean   log p / n          power   log p / n^α          gnmt   log p / ((5 + n) / 6)^α

n counts target tokens, </s> included. Scores are log-probabilities: higher is better.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

from torch import Tensor

from dragoman.core.registry import Registry

Number = TypeVar("Number", float, Tensor)


def covered(looked: Tensor) -> Tensor:
    """Σ_j log min(Σ_t a_tj, 1) over the source's positions, (B, k, S) → (B, k): how much of it was looked at.

    A position that nobody looked at counts as looked at by 1e-6: the logarithm of nothing would rank all such alike.
    """
    return looked.clamp(1e-6, 1.0).log().sum(-1)


class LengthRule(Protocol):
    """log p and a length → a score."""

    def __call__(self, log_p: Number, n: Number) -> Number: ...


length_rules: Registry[LengthRule] = Registry("length rule")


@length_rules.register("none")
class NoRule:
    """log p as it is: short results have an advantage."""

    def __call__(self, log_p: Number, n: Number) -> Number:
        return log_p


@length_rules.register("mean")
class Mean:
    """log p / n: the mean over the tokens."""

    def __call__(self, log_p: Number, n: Number) -> Number:
        return log_p / n


@length_rules.register("power")
class Power:
    """log p / n^α: between none (α = 0) and mean (α = 1)."""

    def __init__(self, *, alpha: float = 1.0) -> None:
        self.alpha = alpha

    def __call__(self, log_p: Number, n: Number) -> Number:
        return log_p / n**self.alpha  # type: ignore[no-any-return]


@length_rules.register("gnmt")
class GNMT:
    """log p / ((5 + n) / 6)^α (Wu et al. 2016)."""

    def __init__(self, *, alpha: float = 0.6) -> None:
        self.alpha = alpha

    def __call__(self, log_p: Number, n: Number) -> Number:
        return log_p / ((5 + n) / 6) ** self.alpha  # type: ignore[no-any-return]
