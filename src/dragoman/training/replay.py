"""What the model makes of a few fixed sources at every checkpoint: the frames of a replay.

    validation set ─sources→ the first N ─frame→ one line of replay.jsonl for each checkpoint

    {"step": 500, "sources": [{"source", "output", "log_prob", "source_tokens", "tokens", "attention"}, …]}

`attention` has a row for each of `tokens` (</s> is one where the result ended by itself) and a column for each of
`source_tokens`; null where the model has none to show. Training goes on as if nobody had asked.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from dragoman.core.json import finite
from dragoman.core.registry import Part
from dragoman.core.types import EOS, SPECIALS, Example
from dragoman.inference.constraints import Constraints
from dragoman.inference.length_limits import NOTHING
from dragoman.inference.pipeline import Pipeline, Prediction
from dragoman.training import prepare

LONGEST = 100  # tokens of a result: a model that knows nothing yet talks until it is stopped
CELLS = LONGEST**2  # weights of a map that are kept; a larger one would make a line of a megabyte
DIGITS = 4  # of a weight


def sources(pipeline: Pipeline) -> list[Example]:
    """The first sources of the validation set; of a text that a language model learns from, the first half."""
    config = pipeline.config
    if config.data.valid is None:
        return []
    every = (e for e in prepare.pairs(config, config.data.valid) if e.source.strip() and not e.source_truncated)
    readable = (e for e in every if prepare.is_readable(e, pipeline.codec))
    first = list(itertools.islice(readable, config.training.replay))
    return [replace(e, source=half(e.source.strip())) for e in first] if pipeline.continues_text else first


def half(text: str) -> str:
    return text[: (len(text) + 1) // 2]


def frame(pipeline: Pipeline, examples: Sequence[Example], step: int) -> dict[str, Any]:
    """What the model says now, word by word the most probable."""
    wishes = [limit(pipeline, example) for example in examples]
    with undisturbed(pipeline):
        found = pipeline.predict(examples, search=Part("greedy"), attention=True, constraints=wishes)
    ends = pipeline.model.head is None  # a head's labels have no </s>
    return {"step": step, "sources": [told(e, p, ends) for e, p in zip(examples, found, strict=True)]}


def limit(pipeline: Pipeline, example: Example) -> Constraints:
    """At most LONGEST tokens, where the config allows more."""
    options = pipeline.config.generation
    usual = pipeline.reading.counted(len(pipeline.reading.encode(example))) * options.ratio + options.extra
    return Constraints(longest=LONGEST) if usual > LONGEST else NOTHING


def told(example: Example, found: Prediction, ends: bool) -> dict[str, Any]:
    """One source and its result, as JSON holds it."""
    tokens = [*found.tokens, SPECIALS[EOS]] if ends and found.finish_reason == "eos" else found.tokens
    weights = None if found.attention is None else found.attention[: len(tokens)]
    if weights is not None and not 0 < weights.size <= CELLS:
        weights = None
    return {
        "source": example.source,
        "output": found.text,
        "log_prob": finite(found.log_prob),
        "source_tokens": found.source_tokens,
        "tokens": tokens,
        "attention": None if weights is None else [[round(a, DIGITS) for a in row] for row in weights.tolist()],
    }


@contextmanager
def undisturbed(pipeline: Pipeline) -> Iterator[None]:
    """Leave the random generators and the model's mode as they were."""
    mode: bool = pipeline.model.training
    devices = [pipeline.device] if pipeline.device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        try:
            yield
        finally:
            pipeline.model.train(mode)
