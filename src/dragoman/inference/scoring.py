"""The log-probability of given outputs: pairs → log p of every target token, in batches by length.

log p(y | x) = Σ_t log p(y_t | y_<t, x)      </s> included; of a language model, log p of a text
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from dragoman.core.errors import DataError, UserError
from dragoman.core.types import PAD, Example
from dragoman.data.batching import collate
from dragoman.data.objectives import TrainingRow
from dragoman.engines.length_batches import batch_by_length
from dragoman.inference.inputs import InputProcessor
from dragoman.inference.windows import Window
from dragoman.nn.losses import output_log_probs, token_log_probs

PairLike = tuple[str, str] | Example | str  # a pair to score; to a language model, a text


def score_window(
    inputs: InputProcessor, window: Window[PairLike], max_tokens: int, device: torch.device, skip: bool = False
) -> Iterator[list[float]]:
    """Yield token scores of a window; a bad pair raises after those before it, or with `skip` yields []."""
    rows: list[TrainingRow | None] = []
    error: Exception | None = None
    for pair in window.inputs:
        try:
            if isinstance(pair, tuple) and (len(pair) != 2 or not isinstance(pair[1], str)):
                raise UserError(f"a pair must be two texts, (source, target); found {pair!r:.60}")
            example = inputs.to_example(Example(*pair) if isinstance(pair, tuple) else pair)
            rows.append(inputs.encode_pair(example))
        except Exception as raised:
            if not (skip and isinstance(raised, DataError)):
                error = raised
                break
            rows.append(None)
    scores = iter(score_rows(inputs, [row for row in rows if row is not None], max_tokens, device))
    yield from ([] if row is None else next(scores) for row in rows)
    if error is not None:
        raise error


@torch.inference_mode()
def score_rows(
    inputs: InputProcessor, rows: list[TrainingRow], max_tokens: int, device: torch.device
) -> list[list[float]]:
    """Return log p of every target token of each row."""
    model = inputs.model.eval()
    results: list[list[float]] = [[] for _ in rows]
    sides = [[side for side in (row.source, row.target, row.second_source) if side is not None] for row in rows]
    for indices in batch_by_length([max(map(len, each)) for each in sides], max_tokens):
        batch = collate([rows[i] for i in indices], indices).to(device)
        predicted = model(batch)
        log_probs = token_log_probs(output_log_probs(predicted.logits), predicted.gold)
        for i, row, is_scored in zip(indices, log_probs.tolist(), (predicted.gold != PAD).tolist(), strict=True):
            results[i] = [p for p, real in zip(row, is_scored, strict=True) if real]
    given = len(inputs.codec.target_template.prefix)  # tokens of probability 1
    return [[*[0.0] * given, *row[given:]] for row in results] if given else results
