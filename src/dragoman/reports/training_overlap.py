"""Which sources of a test are in the training data, too: on these the model shows its memory, not what it has learned.

The training data are read again, where they are still there and small (as for the counts of tokens, views/quality.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from dragoman.core.errors import DataError
from dragoman.core.types import Example
from dragoman.data.readers import read_pairs
from dragoman.inference.pipeline import Pipeline
from dragoman.text.normalization import normalize


def find_trained_sources(pipeline: Pipeline, examples: Sequence[Example]) -> set[int] | None:
    """Return the indices of examples whose sources and languages are in the training data; None if unreadable."""
    data = pipeline.config.data
    wanted = {_key(pipeline, example) for example in examples}
    seen = set()
    try:
        for corpus in data.train:
            pairs = read_pairs(corpus.path, columns=pipeline.config.columns, on_error=data.on_error)
            seen |= {key for key in (_key(pipeline, example) for example in pairs) if key in wanted}
    except (OSError, DataError):
        return None
    return {index for index, example in enumerate(examples) if _key(pipeline, example) in seen}


def _key(pipeline: Pipeline, example: Example) -> tuple[str, str, str | None]:
    form = pipeline.codec.normalization
    return normalize(example.source, form), normalize(example.second_source, form), example.target_lang
