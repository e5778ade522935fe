"""A codec from texts in memory, for tests; a run learns its own in one pass over its files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dragoman.core.registry import Part
from dragoman.core.types import Modality
from dragoman.text.codec import Codec, CodecLearner, SecondSourceReader, build_codec, has_text_source
from dragoman.text.normalization import Form


def learn_codec(
    source: Part,
    target: Part,
    joint: bool,
    normalization: Form,
    sources: Iterable[str],
    targets: Iterable[str],
    extra_symbols: Sequence[str],
    modality: Modality | None = None,
    second_source: SecondSourceReader | None = None,
) -> Codec:
    """Learn new tokenizers; `sources` has the texts of every source that is text."""
    learner = CodecLearner(build_codec(source, target, joint, normalization, modality, second_source))
    if has_text_source(modality, second_source):
        for text in sources:
            learner.add_source(text)
    for text in targets:
        learner.add_target(text)
    return learner.finish(extra_symbols)
