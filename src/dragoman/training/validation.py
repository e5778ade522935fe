"""How good a model is on pairs it was not trained on: loss per token, and metrics of decoded results.

    loss = −1/T Σ log p(y_t | y_<t, x)          perplexity = e^loss

The loss has no label smoothing and is summed in float64, so that it does not depend on the batches.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

from dragoman.config import Config
from dragoman.core.registry import Part
from dragoman.data.batching import in_order
from dragoman.data.objectives import Objective
from dragoman.data.store.store import Store
from dragoman.evaluation.metrics import corpus, metrics
from dragoman.inference.pipeline import Pipeline
from dragoman.training.prepare import Prepared


@torch.no_grad()
def loss(pipeline: Pipeline, store: Store, tokens: int, objective: Objective | None = None) -> float:
    """Mean negative log-probability of a target token."""
    pipeline.model.eval()
    total, count = 0.0, 0
    for batch in in_order(store, tokens, objective):
        batch = batch.to(pipeline.device)
        total -= float(pipeline.model.token_log_probs(batch).sum())
        count += batch.tokens
    return total / count


def validate(pipeline: Pipeline, prepared: Prepared, config: Config) -> dict[str, float]:
    """Loss, perplexity, and every metric the config asks for."""
    assert prepared.valid is not None
    options, examples = config.training, prepared.examples
    mean = loss(pipeline, prepared.valid, options.batch_tokens, prepared.objective)
    values = {"loss": mean, "perplexity": math.exp(min(mean, 700.0))}
    if options.validate_metrics:
        texts = [p.text for p in pipeline.stream(examples, search=options.validate_search)]
        references = [example.accepted for example in examples]
        for part in options.validate_metrics:
            values[part.name] = corpus(metrics.build(part), texts, references)
    return values


def better(name: str, new: Mapping[str, float], old: tuple[float, float] | None, parts: Sequence[Part]) -> bool:
    """Whether what a validation found beats an earlier one, (the metric that decides, the loss).

    Between equals the loss decides, for there are many of them: exact match is 0 for a long time, and of few examples
    it has few values. What is not finite beats nothing.
    """
    value = new[name]
    if not math.isfinite(value) or old is None:
        return math.isfinite(value)
    if value == old[0]:
        return new["loss"] < old[1]
    part = next((part for part in parts if part.name == name), None)
    higher = part is not None and metrics.build(part).higher_is_better
    return value > old[0] if higher else value < old[0]
