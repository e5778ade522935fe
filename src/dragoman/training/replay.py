"""Predictions for a few fixed validation sources at every checkpoint: the frames of a replay.

    validation set ─select_examples→ the first N ─replay_frame→ a line of replay.jsonl for each checkpoint

    {"step": 500, "sources": [{"source", "output", "log_prob", "source_tokens", "tokens", "attention"}, …]}

`attention` has a row for each of `tokens` (</s> is one if the result ends with it) and a column for each of
`source_tokens`; null where the model has no attention, or too much of it. Training itself is not affected.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from dragoman.core.generation import GenerationOptions
from dragoman.core.json import replace_nonfinite
from dragoman.core.registry import Part
from dragoman.core.types import EOS, SPECIALS, Example
from dragoman.inference.pipeline import Pipeline
from dragoman.inference.prediction import Prediction
from dragoman.training.prepare import is_readable, read_examples

MAX_TOKENS = 100  # of a result: an untrained model seldom stops by itself
MAX_ATTENTION_WEIGHTS = MAX_TOKENS**2  # of a result; more would make a line of a megabyte
DIGITS = 4  # of an attention weight


def select_examples(pipeline: Pipeline) -> list[Example]:
    """The first `training.replay` readable validation examples; for a language model, the first half of each text."""
    config = pipeline.config
    if config.data.valid is None:
        return []
    every = read_examples(config, config.data.valid)
    readable = (e for e in every if e.source.strip() and not e.source_truncated and is_readable(e, pipeline.codec))
    first = list(itertools.islice(readable, config.training.replay))
    if not pipeline.continues_text:
        return first
    texts = [e.source.strip() for e in first]
    return [replace(e, source=text[: (len(text) + 1) // 2]) for e, text in zip(first, texts, strict=True)]


def replay_frame(pipeline: Pipeline, examples: Sequence[Example], step: int) -> dict[str, Any]:
    """Predict the examples with greedy search, as a line of replay.jsonl; generators and mode stay as they are."""
    options = [replay_options(pipeline, example) for example in examples]
    is_training: bool = pipeline.model.training
    with torch.random.fork_rng([pipeline.device] if pipeline.device.type == "cuda" else []):
        predictions = pipeline.predict(examples, options, attention=True)
    pipeline.model.train(is_training)
    has_eos = pipeline.model.head is None  # the labels of a head have no </s>
    return {
        "step": step,
        "sources": [serialize_prediction(e, p, has_eos) for e, p in zip(examples, predictions, strict=True)],
    }


def replay_options(pipeline: Pipeline, example: Example) -> GenerationOptions:
    """Greedy search with at most MAX_TOKENS tokens, where the config allows more."""
    config, inputs = pipeline.config.generation, pipeline.input_processor
    length = inputs.count_length_units(len(inputs.encode_source(example)))
    usual = config.max_new_tokens or length * config.max_length_ratio + config.max_length_extra
    greedy = GenerationOptions(search=Part("greedy"))
    return greedy.merge(GenerationOptions(max_new_tokens=MAX_TOKENS)) if usual > MAX_TOKENS else greedy


def serialize_prediction(example: Example, prediction: Prediction, has_eos: bool) -> dict[str, Any]:
    """A source and its prediction as JSON."""
    tokens = prediction.tokens
    if has_eos and prediction.finish_reason == "eos":
        tokens = [*tokens, SPECIALS[EOS]]
    weights = None if prediction.attention is None else prediction.attention[: len(tokens)]
    if weights is not None and not 0 < weights.size <= MAX_ATTENTION_WEIGHTS:
        weights = None
    return {
        "source": example.source,
        "output": prediction.text,
        "log_prob": replace_nonfinite(prediction.log_prob),
        "source_tokens": prediction.source_tokens,
        "tokens": tokens,
        "attention": None if weights is None else [[round(a, DIGITS) for a in row] for row in weights.tolist()],
    }
