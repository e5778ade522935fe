"""What the length of a source is counted in, for quality by length.

Of a text it is tokens, </s> not counted, and where a medium stands beside it, the text's alone. A medium's frontend
says it (`unit`): steps of so many milliseconds of a sound, frames of a clip, and nothing of images, which are all of
one size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dragoman.core.types import EOS, SPECIALS, Example
from dragoman.inference.pipeline import Pipeline, Prediction
from dragoman.inspection.media_preview import first_of
from dragoman.text.codec import reads_text

TOKENS, FRAMES = "tokens", "frames"


def unit_of(pipeline: Pipeline) -> str:
    """What lengths are counted in; '' where they say nothing."""
    codec = pipeline.codec
    if reads_text(codec.modality, codec.second_source):
        return TOKENS
    if codec.second_source is not None:
        return ""
    model = first_of(pipeline.model)
    frontend: Any = model.frontend
    unit: str = frontend.unit(model.stride)
    return unit


def pieces_of(pipeline: Pipeline, example: Example, prediction: Prediction) -> Sequence[str]:
    """As many pieces as a source is long."""
    codec, tokens = pipeline.codec, prediction.source_tokens
    if codec.second_source is not None:
        example = pipeline.reading.example(example)
        first = codec.encode_source(example) if codec.modality is None else []
        second = codec.encode_second_source(example) if codec.second_source == "text" else []
        return [*words(codec.source_pieces(list(first))), *words(codec.source_pieces(list(second)))]
    if unit_of(pipeline) == FRAMES:
        frontend: Any = first_of(pipeline.model).frontend
        return tokens[:: len(frontend.labels(1))]  # a frame may have several cells
    return words(tokens)


def words(tokens: Sequence[str]) -> Sequence[str]:
    """The tokens of a source without the </s> at its end."""
    return tokens[:-1] if tokens and tokens[-1] == SPECIALS[EOS] else tokens
