"""What the length of a source is counted in, for quality by length.

text            tokens, </s> not counted; where a medium stands beside it, the text's alone
sound, frames   steps, the states that stand for it, each of so many milliseconds
clip            frames
image           nothing: all are of one size, and the cells of its grid say nothing of it
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dragoman.core.interfaces import EOS, SPECIALS, Example
from dragoman.inspection.medium import first_of
from dragoman.media.audio import SHIFT
from dragoman.pipeline import Pipeline, Prediction
from dragoman.text.codec import reads_text

TOKENS, FRAMES = "tokens", "frames"


def unit_of(pipeline: Pipeline) -> str:
    """What lengths are counted in; '' where they say nothing."""
    codec = pipeline.codec
    if reads_text(codec.medium, codec.second):
        return TOKENS
    if codec.second is not None or codec.medium is None or codec.medium.kind == "image":
        return ""
    model = first_of(pipeline.model)
    frontend: Any = model.frontend
    if codec.medium.kind == "clip" and model.stride == 1:
        return FRAMES
    if codec.medium.kind in ("sound", "frames"):
        return f"steps of {1000 * frontend.stride * model.stride * getattr(frontend, 'shift', SHIFT):.10g} ms"
    return "positions"


def pieces_of(pipeline: Pipeline, example: Example, prediction: Prediction) -> Sequence[str]:
    """As many pieces as a source is long."""
    codec, tokens = pipeline.codec, prediction.source_tokens
    if codec.second is not None:
        example = pipeline.reading.example(example)
        first = codec.encode_source(example) if codec.medium is None else []
        second = codec.encode_second(example) if codec.second == "text" else []
        return [*words(codec.source_pieces(list(first))), *words(codec.source_pieces(list(second)))]
    if unit_of(pipeline) == FRAMES:
        frontend: Any = first_of(pipeline.model).frontend
        return tokens[:: len(frontend.labels(1))]  # a frame may have several cells
    return words(tokens)


def words(tokens: Sequence[str]) -> Sequence[str]:
    """The tokens of a source without the </s> at its end."""
    return tokens[:-1] if tokens and tokens[-1] == SPECIALS[EOS] else tokens
