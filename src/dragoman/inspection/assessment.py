"""Evaluation of models on pairs: metrics with confidence intervals, perplexity, speed, and paired tests."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dragoman.core.errors import DataError
from dragoman.core.generation import GenerationOptions
from dragoman.core.registry import Part
from dragoman.core.types import Example
from dragoman.evaluation.metrics import Metric, metrics
from dragoman.evaluation.significance import PairedResult, bootstrap_interval, format_score, paired_bootstrap
from dragoman.inference import parallel
from dragoman.inference.pipeline import Pipeline
from dragoman.inference.prediction import Prediction
from dragoman.inspection.length_units import TOKENS, length_pieces, length_unit


@dataclass
class MetricScore:
    """The value of a metric on a set of pairs, its 95 % interval, and the statistics it was computed from."""

    metric: Metric
    stats: np.ndarray
    value: float
    low: float
    high: float
    own_label: str = ""  # what the data call it ("words with an error"), in place of the metric's label

    @property
    def label(self) -> str:
        """The short name to print."""
        return self.own_label or self.metric.label

    def __str__(self) -> str:
        return format_score(self.label, self.value, self.low, self.high, self.metric.unit)


@dataclass
class Assessment:
    """The predictions and scores of one model on one set of pairs."""

    examples: list[Example]
    predictions: list[Prediction]
    scores: dict[str, MetricScore]
    perplexity: float
    seconds: float  # of decoding; NaN where the outputs were known
    unscored: int = 0  # pairs without perplexity: they are longer than the model reads
    length_unit: str = TOKENS  # of source lengths (length_units.py); '' where sources have none
    length_pieces: list[Sequence[str]] = field(default_factory=list)  # of each source, one for each unit of its length

    def as_json(self) -> dict[str, Any]:
        """Return one JSON object with every metric, its signature, the number of pairs and the decoding speed."""
        tokens = sum(len(prediction.tokens) for prediction in self.predictions)
        scores = {
            name: {
                "value": score.value,
                "interval": [score.low, score.high],
                "signature": score.metric.signature,
                "higher_is_better": score.metric.higher_is_better,
                "label": score.label,
                "name": score.metric.name,
                "unit": score.metric.unit,
                "description": score.metric.description,
            }
            for name, score in self.scores.items()
        }
        return {
            "n": len(self.examples),
            "metrics": scores,
            "perplexity": self.perplexity if math.isfinite(self.perplexity) else None,
            "unscored": self.unscored,
            "decoding": None
            if math.isnan(self.seconds)
            else {
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
    predictions: list[Prediction] | None = None,
) -> Assessment:
    """Decode the sources, compute the metrics (default: all) and the perplexity, and measure the decoding speed.

    Outputs that are known already, one for each pair with a target, are given as `predictions`.
    """
    examples = [pipeline.codec.normalize_targets(example) for example in examples if example.target is not None]
    if not examples:
        raise DataError("there is no pair to evaluate on; a pair is a source and a target")
    pipeline.resolve_options(beam=beam)  # a beam below 1 raises UserError
    options = None if beam is None else GenerationOptions(beam=beam)
    seconds = math.nan
    if predictions is None:
        start = time.perf_counter()
        predictions = list(parallel.predict_stream(pipeline, examples, options, workers=workers))
        seconds = max(time.perf_counter() - start, 1e-9)
    parts = [Part(name) if isinstance(name, str) else name for name in names or metrics.names]
    references = [example.accepted for example in examples]
    texts = [prediction.text for prediction in predictions]
    scores = {part.name: score_metric(part, texts, references) for part in parts}
    perplexity, unscored = compute_perplexity(pipeline, examples, workers)
    pieces = [length_pieces(pipeline, *each) for each in zip(examples, predictions, strict=True)]
    unit = length_unit(pipeline)
    return Assessment(examples, predictions, scores, perplexity, seconds, unscored, unit, pieces)


def score_metric(part: Part, texts: Sequence[str], references: Sequence[Sequence[str]]) -> MetricScore:
    """Compute a metric of texts with its bootstrap interval; each text may have several references."""
    metric = metrics.build(part)
    stats = metric.statistics(texts, references)
    return MetricScore(metric, stats, float(metric.score(stats.sum(0))), *bootstrap_interval(metric, stats))


def compute_perplexity(pipeline: Pipeline, examples: Sequence[Example], workers: int | None = 1) -> tuple[float, int]:
    """Return the perplexity per target token, </s> included, and the number of pairs left out as too long."""
    log_probs = list(parallel.score_stream(pipeline, examples, workers=workers, skip=True))
    tokens, unscored = sum(map(len, log_probs)), sum(not row for row in log_probs)
    return (math.exp(min(-sum(map(sum, log_probs)) / tokens, 700.0)) if tokens else math.nan), unscored


def compare_scores(first: MetricScore, other: MetricScore) -> PairedResult:
    """Test by paired bootstrap how much `other` gains over `first` on the same pairs."""
    return paired_bootstrap(other.metric, other.stats, first.stats)
