"""A source with a target, and one teacher-forced pass of the model over both.

source, target or predict(source) ─→ ForcedPair ─one teacher-forced pass→ Seq2SeqOutput
"""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import dataclass, replace

import torch

from dragoman.core.errors import UserError
from dragoman.core.types import EOS, Batch, Example
from dragoman.data.batching import collate
from dragoman.data.objectives import TrainingRow
from dragoman.inference.inputs import ModelInput
from dragoman.inference.pipeline import Pipeline
from dragoman.nn.seq2seq import Seq2SeqOutput


@dataclass(frozen=True)
class ForcedPair:
    """A source with the target that the decoder is forced to produce: the user's, or the model's own output."""

    example: Example
    model_input: ModelInput  # what the model reads of the source, </s> included where it reads one
    pieces: list[str]  # a label for each encoder state
    target: list[int]  # with </s>
    target_text: str
    has_user_target: bool

    @property
    def row(self) -> TrainingRow:
        """The pair as in training."""
        return self.model_input.row._replace(target=self.target)


def prepare_pair(
    pipeline: Pipeline, source: str | Example, target: str | None = None, *, beam: int | None = None
) -> ForcedPair:
    """Encode a source and a target, by default the model's own output with `beam`; too long ones raise UserError."""
    example = read_example(pipeline, source)
    model_input = read_source(pipeline, example)
    pieces = pipeline.input_processor.source_labels(model_input)
    if target is None:
        best = pipeline.predict([replace(example, target=None)], beam=beam)[0]
        ids, text = [*best.ids, EOS], best.text
    else:
        ids, text = pipeline.codec.encode_target(replace(example, target=target)), target
    check_length("target", ids, pipeline.input_processor.max_target_length(len(pieces)))
    return ForcedPair(example, model_input, pieces, ids, text, target is not None)


def read_example(pipeline: Pipeline, source: str | Example) -> Example:
    """Return a source as an Example; a blank one raises UserError unless the model continues a text."""
    example = pipeline.input_processor.to_example(source)
    if not example.source.strip() and not pipeline.continues_text:
        raise UserError("the source is blank; give a text")
    return example


def read_source(pipeline: Pipeline, example: Example) -> ModelInput:
    """Encode one or two sources; one that the model would truncate raises UserError."""
    source = pipeline.input_processor.encode_source(example)
    check_length("source", source, pipeline.input_processor.max_source_length)
    if pipeline.codec.second_source is None:
        return ModelInput(source, None, False)
    second = pipeline.codec.encode_second_source(example)
    check_length("second source", second, pipeline.input_processor.max_second_source_length)
    return ModelInput(source, second, False)


def source_line(example: Example) -> str:
    """Format a source as one line of input: two sources with a tab between them."""
    return f"{example.source}\t{example.second_source}" if example.second_source else example.source


def check_length(side: str, positions: Sized, max_positions: int | None) -> None:
    """Raise UserError if a side has more positions than the model reads."""
    if max_positions is not None and len(positions) > max_positions:
        unit = "tokens" if isinstance(positions, list) else "positions"
        raise UserError(f"the {side} has {len(positions):,} {unit}, and the model reads {max_positions:,}; shorten it")


def batch_of_one(pipeline: Pipeline, row: TrainingRow) -> Batch:
    """Collate one row as a batch on the pipeline's device."""
    return collate([row], [0]).to(pipeline.device)


@torch.inference_mode()
def run_teacher_forced(pipeline: Pipeline, pair: ForcedPair) -> Seq2SeqOutput:
    """Run the model in evaluation mode over the pair once, each target token predicted from those before it."""
    output: Seq2SeqOutput = pipeline.model.eval()(batch_of_one(pipeline, pair.row))
    return output
