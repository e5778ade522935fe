"""A source with a target, given or written by the model itself: what the views of a model's insides look at.

source, target or predict(source) ─→ Pair ─one teacher-forced pass→ Predicted

A source may be a text, a file, or two of these; `pieces` names the states that a decoder sees of it, whatever it is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from dragoman.core.errors import UserError
from dragoman.core.types import EOS, Batch, Example
from dragoman.data.batching import collate
from dragoman.inference.inputs import Given
from dragoman.inference.pipeline import Pipeline
from dragoman.nn.seq2seq import Predicted, Seq2Seq


@dataclass(frozen=True)
class Pair:
    """A source with a target that was given, or that the model wrote itself."""

    example: Example
    read: Given  # what the model reads of the source, </s> included where it reads one
    pieces: list[str]  # what stands at each of its states
    target: list[int]  # with </s>
    given: bool
    text: str  # of the target

    @property
    def source(self) -> Any:
        """Ids, or the numbers of a file."""
        return self.read.source

    def batch(self, pipeline: Pipeline) -> Batch:
        return collate([self.read.row._replace(target=self.target)], [0]).to(pipeline.device)


def pair(pipeline: Pipeline, source: str | Example, target: str | None = None, *, beam: int | None = None) -> Pair:
    """The ids of both sides; the model's own output where no target is given."""
    check(pipeline)
    example = pipeline.reading.example(source)
    if not example.source.strip():
        raise UserError("the source is blank, so there is nothing to look at; give a text")
    found = read(pipeline, example)
    pieces = pipeline.reading.pieces(found)
    if target is None:
        best = pipeline.predict([replace(example, target=None)], beam=beam)[0]
        said, text = [*best.ids, EOS], best.text
    else:
        said, text = pipeline.codec.encode_target(target, source=example.source), target
    reach("target", said, pipeline.reading.longest_target(len(pieces)))
    return Pair(example, found, pieces, said, target is not None, text)


def check(pipeline: Pipeline) -> None:
    """Refuse models that have no pair of source and target, or more than one model inside."""
    if not isinstance(pipeline.model, Seq2Seq):
        raise UserError("several models work here as one; load one of them alone to look inside")
    if pipeline.model.head is not None:
        raise UserError("this model answers with labels and writes no target; look at a model with a decoder")
    if pipeline.continues_text:
        raise UserError("a language model goes on with a text and has no source beside it; look at its steps instead")


def read(pipeline: Pipeline, example: Example) -> Given:
    """What the model reads of a source, all of it or an error."""
    source = pipeline.reading.encode(example)
    reach("source", source, pipeline.reading.longest)
    if pipeline.codec.second_source is None:
        return Given(source, None, False)
    second = pipeline.codec.encode_second_source(example)
    reach("second source", second, pipeline.reading.max_second_source_positions)
    return Given(source, second, False)


def line(example: Example) -> str:
    """A source as it is given on one line."""
    return f"{example.source}\t{example.second_source}" if example.second_source else example.source


def reach(side: str, read: Any, longest: int | None) -> None:
    if longest is not None and len(read) > longest:
        what = "tokens" if isinstance(read, list) else "positions"
        raise UserError(f"the {side} has {len(read):,} {what}, and the model reads {longest:,}; shorten it")


@torch.inference_mode()
def forced(pipeline: Pipeline, pair: Pair) -> Predicted:
    """One pass over the pair, in which every token is predicted after those before it."""
    found: Predicted = pipeline.model.eval()(pair.batch(pipeline))
    return found
