"""Minimum Bayes risk: of some candidates, the one most like all the others, weighted by how likely those are.

    u_i = Σ_j w_j U(c_i, c_j)          ĉ = argmax_i u_i          w_j ≥ 0,  Σ_j w_j = 1

(Kumar and Byrne 2004; Eikema and Aziz 2020). Samples represent their distribution by how often they come, so their
weights are equal: w_j = 1/N. An n-best list has each output once, so its weights are the model's:

    w_j = exp(s_j) / Σ_i exp(s_i)          s the log-probabilities

N candidates; U (N, N), the candidate as hypothesis in rows and as reference in columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Utility = Callable[[list[str], list[str]], "Sequence[float] | Array"]  # hypotheses, references → higher is better


def rank_by_utility(
    candidates: Sequence[str], utility: Utility, weights: Sequence[float] | Array | None = None
) -> list[int]:
    """Return the indices of the candidates by expected utility, best first; ties in their order."""
    if not len(candidates):
        return []
    expected = expected_utilities(pairwise_utilities(candidates, utility), weights)
    return [int(i) for i in np.argsort(-expected, kind="stable")]


def expected_utilities(U: Array, weights: Sequence[float] | Array | None = None) -> Array:
    """Return u_i = Σ_j w_j U_ij, (N, N) → (N,); weights are normalized, and equal by default."""
    w = np.ones(len(U)) if weights is None else np.asarray(weights, dtype=np.float64)
    if w.shape != (len(U),) or not (np.isfinite(w) & (w >= 0)).all() or w.sum() <= 0:
        raise ValueError(f"there must be {len(U)} weights, none below 0 and not all of them 0")
    # Not U @ w: equal rows must have equal sums, so that equal candidates stay in their order.
    return np.asarray((U * (w / w.sum())).sum(axis=1), dtype=np.float64)


def pairwise_utilities(candidates: Sequence[str], utility: Utility) -> Array:
    """Return the utility U_ij of each candidate i against each j as reference, (N, N), in one call."""
    texts = list(dict.fromkeys(candidates))
    index = {text: i for i, text in enumerate(texts)}
    hypotheses, references = [a for a in texts for _ in texts], texts * len(texts)
    values = np.asarray(utility(hypotheses, references), dtype=np.float64)
    if values.shape != (len(hypotheses),):
        raise ValueError(f"a utility of {len(hypotheses)} pairs must be as many numbers, not {values.shape}")
    which = [index[text] for text in candidates]
    return values.reshape(len(texts), len(texts))[np.ix_(which, which)]


def posterior_weights(scores: Sequence[float] | Array) -> Array:
    """Return the softmax of an n-best list's log-probabilities as its weights."""
    s = np.asarray(scores, dtype=np.float64)
    p = np.exp(s - s.max())
    return np.asarray(p / p.sum(), dtype=np.float64)
