"""Calibration: whether a model that says "80 %" is right in 80 % of the cases.

    p_n      the probability that the model gives its output n         r_n = 1 where the output is right, else 0
    bin b    the items with p_n in [b/10, (b+1)/10): their number N_b, mean p, share right
    ECE      Σ_b N_b/N · |share right_b − mean p_b|          the expected calibration error (Naeini et al. 2015)

Where ECE is large and the mean p is above the share right, the model is overconfident.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, isfinite

import numpy as np

BINS = 10
MIN_SHARE = 0.02  # of right outputs, and of wrong ones: without either there is nothing to calibrate
MIN_ITEMS = 20


@dataclass(frozen=True)
class CalibrationBin:
    """The items whose probability is from low to high: their number, mean probability and share right."""

    low: float
    high: float
    count: int
    probability: float
    right: float


@dataclass(frozen=True)
class Calibration:
    """The bins that have items, the expected calibration error, and the two means over all items."""

    bins: tuple[CalibrationBin, ...]
    error: float
    probability: float
    right: float

    @property
    def overconfidence(self) -> float:
        """The mean probability minus the share right; negative where the model is too modest."""
        return self.probability - self.right


def output_probability(log_prob: float) -> float:
    """The probability of an output from its log-probability; 0 where there is none."""
    return exp(min(log_prob, 0.0)) if isfinite(log_prob) else 0.0


def calibrate(probabilities: Sequence[float], right: Sequence[bool]) -> Calibration:
    """Compare the probabilities of outputs with whether they are right, in ten bins of equal width."""
    p, r = np.asarray(probabilities, dtype=np.float64), np.asarray(right, dtype=np.float64)
    if p.shape != r.shape or not len(p):
        raise ValueError("a calibration needs one probability for each output, and at least one")
    numbers = np.minimum((p * BINS).astype(int), BINS - 1)
    bins = []
    for b in np.unique(numbers).tolist():
        of_bin = numbers == b
        mean, share = float(p[of_bin].mean()), float(r[of_bin].mean())
        bins.append(CalibrationBin(b / BINS, (b + 1) / BINS, int(of_bin.sum()), mean, share))
    error = sum(each.count * abs(each.right - each.probability) for each in bins) / len(p)
    return Calibration(tuple(bins), error, float(p.mean()), float(r.mean()))


def calibration_blocker(right: Sequence[bool]) -> str:
    """Say why a calibration would tell nothing; "" if it can be computed."""
    share = sum(right) / max(len(right), 1)
    if len(right) < MIN_ITEMS:
        return f"there are only {len(right)} outputs"
    if share < MIN_SHARE:
        return "hardly any output is equal to its reference"
    if share > 1 - MIN_SHARE:
        return "hardly any output is wrong"
    return ""
