"""Length rules and the coverage penalty: log p of a sequence → the score by which hypotheses are compared.

    none   log p          mean   log p / n          power   log p / n^α          gnmt   log p / ((5 + n) / 6)^α

n counts target tokens, </s> included. Scores are log-probabilities: higher is better.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

from torch import Tensor

from dragoman.core.registry import NonNegativeInt, Registry

Number = TypeVar("Number", float, Tensor)


def log_coverage(coverage: Tensor) -> Tensor:
    """Return GNMT's coverage term Σ_j log min(Σ_t a_tj, 1) over the source positions, (B, k, S) → (B, k)."""
    return coverage.clamp(1e-6, 1.0).log().sum(-1)  # not 0: log 0 would rank all hypotheses alike that miss a position


class LengthRule(Protocol):
    """Normalizes log p by a length."""

    def __call__(self, log_p: Number, n: Number) -> Number: ...


length_rules: Registry[LengthRule] = Registry("length rule")


@length_rules.register("none")
class NoLengthRule:
    """log p as it is: short outputs have an advantage."""

    def __call__(self, log_p: Number, n: Number) -> Number:
        return log_p


@length_rules.register("mean")
class MeanLengthRule:
    """log p / n: the mean over the tokens."""

    def __call__(self, log_p: Number, n: Number) -> Number:
        return log_p / n


@length_rules.register("power")
class PowerLengthRule:
    """log p / n^α: between none (α = 0) and mean (α = 1); n leaves out `uncounted` tokens, as of a prompt."""

    def __init__(self, *, alpha: float = 1.0, uncounted: NonNegativeInt = 0) -> None:
        self.alpha, self.uncounted = alpha, uncounted

    def __call__(self, log_p: Number, n: Number) -> Number:
        if self.uncounted:
            n = (n - self.uncounted).clamp(min=1) if isinstance(n, Tensor) else max(n - self.uncounted, 1)
        return log_p / n**self.alpha  # type: ignore[no-any-return]


@length_rules.register("gnmt")
class GNMTLengthRule:
    """log p / ((5 + n) / 6)^α (Wu et al. 2016)."""

    def __init__(self, *, alpha: float = 0.6) -> None:
        self.alpha = alpha

    def __call__(self, log_p: Number, n: Number) -> Number:
        return log_p / ((5 + n) / 6) ** self.alpha  # type: ignore[no-any-return]
