"""Why an output deserves a look, and how probable the model finds it.

    probability = exp Σ log p, of the whole output: how sure the model is of exactly these tokens
    confidence  = exp mean log p, of a token

An output of symbols (letters, phonemes) is doubtful if its probability is below 0.5: by the model's own account another
one is as likely. A sentence has many good translations, each of small probability, so for words and subwords it is the
confidence that must not be below 0.5.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from dragoman.text.unseen import format_unit

if TYPE_CHECKING:
    from dragoman.inference.prediction import Prediction

DOUBT = 0.5
SYMBOL_TOKENIZERS = ("characters", "bytes", "symbols")
MAX_UNITS_SHOWN = 5
FINISH_REASONS = {"length": "cut at the length limit", "no_valid_token": "the constraints left no token"}


def output_probability(prediction: Prediction) -> float:
    """exp Σ log p of an output's tokens, the end included; 0 for the output of an empty source."""
    return math.exp(prediction.log_prob) if prediction.token_count else 0.0


def is_doubtful(prediction: Prediction, target_tokenizer: str) -> bool:
    """Whether the model is unsure of an output, by the kind of tokens it writes."""
    if not prediction.token_count:
        return False
    count = 1 if target_tokenizer in SYMBOL_TOKENIZERS else prediction.token_count
    return prediction.log_prob / count < math.log(DOUBT)


def find_doubts(prediction: Prediction, target_tokenizer: str, unseen: Iterable[str] = ()) -> Iterator[str]:
    """Yield each reason why an output deserves a look; `unseen` is what of its source the model has never seen."""
    if prediction.finish_reason == "empty_source":
        yield "empty source"
        return
    if units := [format_unit(unit) for unit in unseen]:
        yield f"unseen: {' '.join(units[:MAX_UNITS_SHOWN])}{' …' if len(units) > MAX_UNITS_SHOWN else ''}"
    if prediction.source_truncated:
        yield "the source was too long and is cut"
    if reason := FINISH_REASONS.get(prediction.finish_reason):
        yield reason
    if not prediction.text.strip():
        yield "empty output"
    if is_doubtful(prediction, target_tokenizer):
        yield "low confidence"
