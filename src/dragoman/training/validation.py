"""Validation on held-out pairs: loss per token, and metrics of decoded text.

    loss = −1/T Σ log p(y_t | y_<t, x)          perplexity = e^loss

The loss has no label smoothing and is summed in float64, so it does not depend on the batches.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

from dragoman.config import Config
from dragoman.core.registry import Part
from dragoman.data.batching import validation_batches
from dragoman.data.objectives import Objective, Pairs
from dragoman.data.store.store import TokenStore
from dragoman.evaluation.metrics import corpus_score, metrics
from dragoman.inference.pipeline import Pipeline
from dragoman.training.prepare import TrainingData


@torch.no_grad()
def validation_loss(pipeline: Pipeline, store: TokenStore, tokens: int, objective: Objective = Pairs()) -> float:
    """The mean negative log-probability of a target token over a store; sets the model to evaluation mode."""
    pipeline.model.eval()
    total, count = 0.0, 0
    for batch in validation_batches(store, tokens, objective):
        batch = batch.to(pipeline.device)
        total -= float(pipeline.model.token_log_probs(batch).sum())
        count += batch.tokens
    return total / count


def validate(pipeline: Pipeline, data: TrainingData, config: Config) -> dict[str, float]:
    """Loss and perplexity on the validation set, and the config's metrics on its decoded examples, by name."""
    assert data.valid is not None
    options, examples = config.training, data.examples
    mean = validation_loss(pipeline, data.valid, options.batch_tokens, data.objective)
    values = {"loss": mean, "perplexity": math.exp(min(mean, 700.0))}
    if options.validate_metrics:
        texts = [p.text for p in pipeline.stream(examples, options.validate_generation)]
        references = [pipeline.codec.normalize_targets(example).accepted for example in examples]
        for part in options.validate_metrics:
            values[part.name] = corpus_score(metrics.build(part), texts, references)
    return values


def is_better(metric: str, new: Mapping[str, float], best: tuple[float, float] | None, parts: Sequence[Part]) -> bool:
    """Whether a finite value of `metric` beats the best (metric, loss) so far; `parts` are the config's metrics.

    The loss breaks ties, which are common: exact match is 0 for a long time, and on few examples it has few values.
    A value that is not finite beats nothing.
    """
    value = new[metric]
    if not math.isfinite(value) or best is None:
        return math.isfinite(value)
    if value == best[0]:
        return new["loss"] < best[1]
    part = next((part for part in parts if part.name == metric), None)
    higher = part is not None and metrics.build(part).higher_is_better
    return value > best[0] if higher else value < best[0]
