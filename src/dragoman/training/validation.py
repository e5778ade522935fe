"""Validation on held-out pairs: loss per token, and metrics of decoded text.

    loss = −1/T Σ log p(y_t | y_<t, x)          perplexity = e^loss

The loss has no label smoothing and is summed in float64, so it does not depend on the batches.

Several ranks share the work. Batches and windows are cut as for one rank and dealt out in turn, and their values are
put together in the order of one rank, so the result does not depend on the number of ranks, to the last bit.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

import torch

from dragoman.config import Config
from dragoman.core.registry import Part
from dragoman.data.batching import validation_batches
from dragoman.data.objectives import Objective, Pairs
from dragoman.data.store.store import TokenStore
from dragoman.evaluation.metrics import corpus_score, metrics
from dragoman.inference.pipeline import Pipeline
from dragoman.training.distributed import RankGroup
from dragoman.training.prepare import TrainingData

WINDOW = 64  # examples that are decoded together: few enough that many ranks have some of the usual 500
END = object()  # after the last item of a rank that has fewer

T = TypeVar("T")


@torch.no_grad()
def validation_loss(
    pipeline: Pipeline,
    store: TokenStore,
    tokens: int,
    objective: Objective = Pairs(),
    ranks: RankGroup = RankGroup(),
) -> float:
    """The mean negative log-probability of a target token over a store; sets the model to evaluation mode."""
    pipeline.model.eval()
    own: list[tuple[float, int]] = []
    for batch in validation_batches(store, tokens, objective, ranks.rank, ranks.world_size):
        batch = batch.to(pipeline.device)
        own.append((float(pipeline.model.token_log_probs(batch).sum()), batch.tokens))
    total, count = 0.0, 0
    for log_p, batch_tokens in in_turn(ranks.gather_when_ready(own)):
        total -= log_p
        count += batch_tokens
    return total / count


def decode_examples(pipeline: Pipeline, data: TrainingData, config: Config, ranks: RankGroup) -> list[str]:
    """The decoded texts of the validation examples, in their order; those of a window are about as long."""
    examples, options = data.examples, config.training.validate_generation
    order = sorted(range(len(examples)), key=lambda i: len(examples[i].source))
    own = []
    for start in range(0, len(order), WINDOW)[ranks.rank :: ranks.world_size]:
        window = [examples[i] for i in order[start : start + WINDOW]]
        own.append([p.text for p in pipeline.stream(window, options, token_log_probs=False, first_index=start)])
    decoded = [text for texts in in_turn(ranks.gather_when_ready(own)) for text in texts]
    texts = dict(zip(order, decoded, strict=True))
    return [texts[i] for i in range(len(examples))]


def in_turn(parts: Sequence[Sequence[T]]) -> Iterator[T]:
    """The items that ranks took in turn, in their common order."""
    for items in itertools.zip_longest(*parts, fillvalue=END):
        yield from (item for item in items if item is not END)  # type: ignore[misc]


def validate(
    pipeline: Pipeline, data: TrainingData, config: Config, ranks: RankGroup = RankGroup()
) -> dict[str, float]:
    """Loss and perplexity on the validation set, and the config's metrics on its decoded examples, by name."""
    assert data.valid is not None
    options = config.training
    mean = validation_loss(pipeline, data.valid, options.batch_tokens, data.objective, ranks)
    values = {"loss": mean, "perplexity": math.exp(min(mean, 700.0))}
    if options.validate_metrics:
        texts = decode_examples(pipeline, data, config, ranks)
        references = [pipeline.codec.normalize_targets(example).accepted for example in data.examples]
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
