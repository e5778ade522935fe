"""A source with a target, given or written by the model itself: what the views of a model's insides look at.

source, target or predict(source) ─→ Pair ─one teacher-forced pass→ Predicted
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from dragoman.core.errors import UserError
from dragoman.core.interfaces import EOS, Batch, Example
from dragoman.data.batching import collate
from dragoman.nn.seq2seq import Predicted, Seq2Seq
from dragoman.pipeline import Pipeline


@dataclass(frozen=True)
class Pair:
    """A source with a target that was given, or that the model wrote itself."""

    example: Example
    source: list[int]  # with </s> as the model reads it
    target: list[int]  # with </s>
    given: bool
    text: str  # of the target

    def batch(self, pipeline: Pipeline) -> Batch:
        return collate([(self.source, self.target)], [0]).to(pipeline.device)


def pair(pipeline: Pipeline, source: str | Example, target: str | None = None, *, beam: int | None = None) -> Pair:
    """The ids of both sides; the model's own output where no target is given."""
    check(pipeline)
    example = source if isinstance(source, Example) else Example(source)
    if not example.source.strip():
        raise UserError("the source is blank, so there is nothing to look at; give a text")
    ids = pipeline.encode(example)
    reach("source", ids, pipeline.longest)
    if target is None:
        found = pipeline.predict([replace(example, target=None)], beam=beam)[0]
        said, text = [*found.ids, EOS], found.text
    else:
        said, text = pipeline.codec.encode_target(target, source=example.source), target
    reach("target", said, longest_target(pipeline, ids))
    return Pair(example, ids, said, target is not None, text)


def check(pipeline: Pipeline) -> None:
    """Refuse models that have no pair of source and target, or more than one model inside."""
    if not isinstance(pipeline.model, Seq2Seq):
        raise UserError("several models work here as one; load one of them alone to look inside")
    if pipeline.model.head is not None:
        raise UserError("this model answers with labels and writes no target; look at a model with a decoder")
    if pipeline.codec.medium is not None or pipeline.codec.second is not None:
        raise UserError("this model reads more than one text; `predict` with attention shows where it looked")
    if pipeline.goes_on:
        raise UserError("a language model goes on with a text and has no source beside it; look at its steps instead")


def longest_target(pipeline: Pipeline, source: Sequence[int]) -> int | None:
    """The most tokens, </s> included, for which the model has positions beside this source."""
    longest: int | None = pipeline.model.longest_target
    return None if longest is None else longest - (len(source) if pipeline.model.one_sequence else 0)


def reach(side: str, ids: Sequence[int], longest: int | None) -> None:
    if longest is not None and len(ids) > longest:
        raise UserError(f"the {side} has {len(ids):,} tokens, and the model reads {longest:,}; shorten it")


@torch.inference_mode()
def forced(pipeline: Pipeline, pair: Pair) -> Predicted:
    """One pass over the pair, in which every token is predicted after those before it."""
    found: Predicted = pipeline.model.eval()(pair.batch(pipeline))
    return found
