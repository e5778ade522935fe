"""Minimum Bayes risk: of some candidates, the one that is most like all the others, weighted by how likely those are.

    u_i = Σ_j w_j U(c_i, c_j)          ĉ = argmax_i u_i          w_j ≥ 0,  Σ_j w_j = 1

(Kumar and Byrne 2004; Eikema and Aziz 2020). Samples stand for the distribution they were drawn from by how often they
come, so their weights are equal: w_j = 1/N. An n-best list has each result once, so its weights are the model's:

    w_j = exp(s_j) / Σ_i exp(s_i)          s the log-probabilities

The utility U comes from outside: two lists of texts, hypotheses and references, to one number for each pair, higher
meaning better. A metric whose `score` reads the `statistics` of items is one by

    lambda hypotheses, references: metric.score(metric.statistics(hypotheses, [[r] for r in references]))

with a minus in front where lower is better.

N candidates; U (N, N), the candidate as hypothesis in rows and as reference in columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Utility = Callable[[list[str], list[str]], "Sequence[float] | Array"]  # pair by pair


def choose(
    candidates: Sequence[str], utility: Utility | Array, weights: Sequence[float] | Array | None = None
) -> list[int]:
    """The places of the candidates by expected utility, best first; of equal ones the earlier comes first."""
    if not len(candidates):
        return []
    U = pairwise(candidates, utility) if callable(utility) else np.asarray(utility, dtype=np.float64)
    if U.shape != (len(candidates),) * 2:
        raise ValueError(f"{len(candidates)} candidates need a square of utilities of that side, not {U.shape}")
    return [int(i) for i in np.argsort(-expected(U, weights), kind="stable")]


def expected(U: Array, weights: Sequence[float] | Array | None = None) -> Array:
    """u_i = Σ_j w_j U_ij, (N, N) → (N,); the weights need not sum to 1, and are equal where none are given."""
    w = np.ones(len(U)) if weights is None else np.asarray(weights, dtype=np.float64)
    if w.shape != (len(U),) or not (np.isfinite(w) & (w >= 0)).all() or w.sum() <= 0:
        raise ValueError(f"there must be {len(U)} weights, none below 0 and not all of them 0")
    # Not U @ w: equal rows must have equal sums, so that equal candidates stay in their order.
    return np.asarray((U * (w / w.sum())).sum(axis=1), dtype=np.float64)


def pairwise(candidates: Sequence[str], utility: Utility) -> Array:
    """U (N, N) in one call of the utility; texts that come several times are compared once."""
    texts = list(dict.fromkeys(candidates))
    place = {text: i for i, text in enumerate(texts)}
    hypotheses, references = [a for a in texts for _ in texts], texts * len(texts)
    values = np.asarray(utility(hypotheses, references), dtype=np.float64)
    if values.shape != (len(hypotheses),):
        raise ValueError(f"a utility of {len(hypotheses)} pairs must be as many numbers, not {values.shape}")
    which = [place[text] for text in candidates]
    return values.reshape(len(texts), len(texts))[np.ix_(which, which)]


def posterior(scores: Sequence[float] | Array) -> Array:
    """Weights for an n-best list: the softmax of its log-probabilities."""
    s = np.asarray(scores, dtype=np.float64)
    p = np.exp(s - s.max())
    return np.asarray(p / p.sum(), dtype=np.float64)
