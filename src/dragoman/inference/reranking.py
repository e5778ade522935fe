"""Minimum Bayes risk: the candidate that a metric finds closest to all others comes first.

ŷ = argmax_y Σ_y' p(y') u(y, y')      u: a metric of texts;  p(y'): log-probabilities, or 1/n of samples
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import ValidationError
from pydantic_core import PydanticCustomError

from dragoman.core.errors import UserError
from dragoman.core.registry import Part
from dragoman.evaluation.metrics import Metric, metrics
from dragoman.inference.prediction import Prediction
from dragoman.search import mbr


def build_mbr_metric(part: Part) -> Metric:
    """Build the metric of minimum Bayes risk decoding; a UserError says what is wrong with it."""
    try:
        return metrics.build(metrics.parse(part))
    except PydanticCustomError as error:
        raise UserError(f"mbr: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(f"mbr: {'.'.join(map(str, first['loc']))}: {first['msg']}, found {first['input']!r}") from None


def rank_by_mbr(candidates: list[Prediction], metric: Metric, are_samples: bool) -> list[Prediction]:
    """Return the candidates ranked by minimum Bayes risk."""
    if len(candidates) < 2:
        return candidates
    sign = 1.0 if metric.higher_is_better else -1.0

    def utility(hypotheses: Sequence[str], references: Sequence[str]) -> list[float]:
        statistics = metric.statistics(hypotheses, [[reference] for reference in references])
        return (sign * metric.score(statistics)).tolist()  # type: ignore[no-any-return]

    log_probs = [candidate.log_prob for candidate in candidates]
    weights = None if are_samples else mbr.posterior_weights(log_probs)
    texts = [candidate.text for candidate in candidates]
    return [candidates[i] for i in mbr.rank_by_utility(texts, utility, weights)]
