"""How good models are on a file of pairs: scores with intervals, perplexity, speed, and one model against another."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dragoman.core.errors import DataError
from dragoman.core.registry import Part
from dragoman.core.types import Example
from dragoman.evaluation.by_length import Bucket, by_length
from dragoman.evaluation.metrics import Metric, metrics
from dragoman.evaluation.significance import Paired, format_score, interval, paired
from dragoman.inference import parallel
from dragoman.inference.pipeline import Pipeline, Prediction
from dragoman.inspection.length_units import TOKENS, pieces_of, unit_of


@dataclass
class Score:
    """A metric on a set of pairs: its value, its 95 % interval, and what it was computed from."""

    name: str
    metric: Metric
    stats: np.ndarray
    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return format_score(self.metric.label, self.value, self.low, self.high)


@dataclass
class Assessment:
    """One model on one set of pairs."""

    examples: list[Example]
    predictions: list[Prediction]
    scores: dict[str, Score]
    perplexity: float
    seconds: float  # spent on decoding
    unscored: int = 0  # pairs that the perplexity leaves out: the model's positions do not reach so far
    unit: str = TOKENS  # that lengths are counted in (sources.py); '' where they say nothing
    pieces: list[Sequence[str]] = field(default_factory=list)  # of each source, as many as it is long

    def as_json(self) -> dict[str, Any]:
        """One object with every metric, its signature, the number of pairs and the decoding rate."""
        tokens = sum(len(prediction.tokens) for prediction in self.predictions)
        scores = {
            name: {
                "value": score.value,
                "interval": [score.low, score.high],
                "signature": score.metric.signature,
                "higher_is_better": score.metric.higher_is_better,
            }
            for name, score in self.scores.items()
        }
        return {
            "n": len(self.examples),
            "metrics": scores,
            "perplexity": self.perplexity if math.isfinite(self.perplexity) else None,
            "unscored": self.unscored,
            "decoding": {
                "seconds": self.seconds,
                "sentences_per_second": len(self.examples) / self.seconds,
                "tokens_per_second": tokens / self.seconds,
            },
        }


def assess(
    pipeline: Pipeline,
    examples: Sequence[Example],
    names: Sequence[Part | str] = (),
    *,
    beam: int | None = None,
    workers: int | None = 1,
) -> Assessment:
    """Decode, score and measure; every metric there is where none is named."""
    examples = [example for example in examples if example.target is not None]
    if not examples:
        raise DataError("there is no pair to evaluate on; a pair is a source and a target")
    began = time.perf_counter()
    predictions = list(parallel.stream(pipeline, examples, workers=workers, beam=beam))
    seconds = time.perf_counter() - began
    parts = [Part(name) if isinstance(name, str) else name for name in names or metrics.names]
    references = [example.accepted for example in examples]
    texts = [prediction.text for prediction in predictions]
    scores = {part.name: measure(part, texts, references) for part in parts}
    surprise, unscored = perplexity(pipeline, examples, workers)
    pieces = [pieces_of(pipeline, *each) for each in zip(examples, predictions, strict=True)]
    return Assessment(examples, predictions, scores, surprise, max(seconds, 1e-9), unscored, unit_of(pipeline), pieces)


def measure(part: Part, texts: Sequence[str], references: Sequence[Sequence[str]]) -> Score:
    metric = metrics.build(part)
    stats = metric.statistics(texts, references)
    return Score(part.name, metric, stats, float(metric.score(stats.sum(0))), *interval(metric, stats))


def perplexity(pipeline: Pipeline, examples: Sequence[Example], workers: int | None = 1) -> tuple[float, int]:
    """e to the mean negative log-probability of a target token, </s> included, and how many pairs have none."""
    log_probs = list(parallel.token_scores(pipeline, examples, workers=workers, skip=True))
    tokens, unscored = sum(map(len, log_probs)), sum(not row for row in log_probs)
    return (math.exp(min(-sum(map(sum, log_probs)) / tokens, 700.0)) if tokens else math.nan), unscored


def against(first: Score, other: Score) -> Paired:
    """What the other model gains over the first on the same pairs, tested by paired bootstrap."""
    return paired(other.metric, other.stats, first.stats)


def lengths(assessment: Assessment, name: str, edges: Sequence[int] | None = None) -> list[Bucket]:
    """A metric by the length of the source in its unit, </s> not counted."""
    score = assessment.scores[name]
    return by_length(score.metric, score.stats, list(map(len, assessment.pieces)), edges=edges)
