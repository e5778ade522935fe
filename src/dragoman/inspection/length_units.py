"""The unit in which the length of a source is counted, for quality by length.

Texts are counted in tokens without </s>; where a text and a file are read together, only the text counts. For other
modalities the frontend names the unit: steps of so many milliseconds of audio, frames of a video, and none for
images, which all have one size.
"""

from __future__ import annotations

from collections.abc import Sequence

from dragoman.core.types import EOS, SPECIALS, Example
from dragoman.inference.pipeline import Pipeline
from dragoman.inference.prediction import Prediction
from dragoman.inspection.media_preview import first_member
from dragoman.text.codec import has_text_source

TOKENS, FRAMES = "tokens", "frames"


def length_unit(pipeline: Pipeline) -> str:
    """Return the unit of source lengths (tokens, frames …); '' where sources have no length to compare."""
    codec = pipeline.codec
    if has_text_source(codec.modality, codec.second_source):
        return TOKENS
    if codec.second_source is not None:
        return ""
    model = first_member(pipeline.model)
    unit: str = model.frontend.length_unit(model.stride)
    return unit


def length_pieces(pipeline: Pipeline, example: Example, prediction: Prediction) -> Sequence[str]:
    """Return the source's pieces that its length counts: tokens without </s>, or one label for each frame."""
    codec, tokens = pipeline.codec, prediction.source_tokens
    if codec.second_source is not None:
        example = pipeline.input_processor.to_example(example)
        first = codec.encode_source(example) if codec.modality is None else []
        second = codec.encode_second_source(example) if codec.second_source == "text" else []
        return [*strip_eos(codec.source.pieces(list(first))), *strip_eos(codec.source.pieces(list(second)))]
    if length_unit(pipeline) == FRAMES:
        cells = len(first_member(pipeline.model).frontend.position_labels(1))  # of each frame
        return tokens[::cells]
    return strip_eos(tokens)


def strip_eos(tokens: Sequence[str]) -> Sequence[str]:
    """Return the tokens without a final </s>."""
    return tokens[:-1] if tokens and tokens[-1] == SPECIALS[EOS] else tokens
