"""How many layer calls must run one after the other, counted while they run.

A layer over all positions is one sequential step; a recurrent layer is one for each position. The counts for two
lengths tell whether an architecture is parallel over positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from dragoman.core.types import BOS, UNK, Capacity, Memory, Segments
from dragoman.inspection.blockers import single_model_blocker
from dragoman.inspection.views import ViewData, register_view

if TYPE_CHECKING:
    from rich.console import Console
    from torch import Tensor, nn

    from dragoman.inference.pipeline import Pipeline
    from dragoman.nn.multi_source import SecondSource
    from dragoman.nn.seq2seq import Seq2Seq

MAX_LENGTH = 16  # tokens, </s> included: steps are counted for this length, and for half of it


def print_sequential(out: Console, data: ViewData) -> None:
    """Print a sentence for each part of the model."""
    for row in data["rows"]:
        out.print(row["sentence"], markup=False)


@register_view("sequential", inputs="none", print_view=print_sequential, blocker=single_model_blocker)
def count_sequential_steps(pipeline: Pipeline) -> ViewData:
    """How many steps depend on each other: for a source, for a target in training, for a target in search."""
    import torch

    model: Seq2Seq = pipeline.model.eval()
    long = min(MAX_LENGTH, model.max_source_positions or MAX_LENGTH, model.max_target_positions or MAX_LENGTH)
    lengths = (long // 2, long)
    with torch.inference_mode():
        rows = [_row_data("encoder", "the source", lengths, [_encoder_steps(pipeline, n, model) for n in lengths])]
        if model.second_source is not None:
            steps = [_encoder_steps(pipeline, n, model.second_source) for n in lengths]
            rows.append(_row_data("second encoder", "the second source", lengths, steps))
        if model.head is None:
            steps = [_teacher_forced_steps(pipeline, n) for n in lengths]
            rows.append(_row_data("decoder in training", "the target", lengths, steps))
            steps = [_search_steps(pipeline, n) for n in lengths]
            rows.append(_row_data("decoder in search", "the target", lengths, steps))
    return {"lengths": list(lengths), "rows": rows}


def _row_data(part: str, side: str, lengths: tuple[int, int], steps: Sequence[int]) -> ViewData:
    """Describe a part's sequential steps at two lengths as JSON with a sentence: constant, per token, or neither."""
    (short, long), (few, many) = lengths, steps
    if few == many:
        count = f"{few} step{'s' * (few != 1)}, however long {side} is"
    elif few * long == many * short and few % short == 0:
        count = f"{few // short} step{'s' * (few != short)} for each token of {side}"
    else:
        count = f"{few} steps for {short} tokens of {side} and {many} for {long}"
    return {"part": part, "steps": list(steps), "sentence": f"{part}: {count}"}


class StepCounter:
    """The number of sequential steps so far."""

    steps = 0


@contextmanager
def count_layer_calls(part: nn.Module) -> Iterator[StepCounter]:
    """Count a part's sequential steps inside the `with` block: one per layer call, or per position of an RNN."""
    from dragoman.nn.blocks import TransformerBlock
    from dragoman.nn.convolution import GatedConvolution
    from dragoman.nn.recurrent import ResetBeforeGRU, RNNLayer

    counter = StepCounter()

    def add_one(_: nn.Module, __: object, ___: object) -> None:
        """A forward hook: count one step."""
        counter.steps += 1

    def add_positions(_: nn.Module, args: tuple[Tensor, ...], __: object) -> None:
        """A forward hook: count a step for each position of the input."""
        counter.steps += args[0].shape[1]  # (B, T, D); two directions run side by side

    with ExitStack() as hooks:
        for module in part.modules():
            if isinstance(module, RNNLayer | ResetBeforeGRU):
                hooks.callback(module.register_forward_hook(add_positions).remove)
            elif isinstance(module, TransformerBlock):  # its `step` is no module call, but it calls this one
                hooks.callback(module.feedforward.register_forward_hook(add_one).remove)
            elif isinstance(module, GatedConvolution):
                hooks.callback(module.register_forward_hook(add_one).remove)
        yield counter


def _encode_zeros(pipeline: Pipeline, length: int, part: Seq2Seq | SecondSource) -> Memory:
    """Encode a source of `length` zero vectors with a part's encoder; their content does not matter."""
    import torch

    x = torch.zeros(1, length, part.frontend.d, device=pipeline.device)
    memory: Memory = part.encoder(x, Segments(torch.tensor([length], device=pipeline.device)))
    memory.source = torch.full((1, length), UNK, device=pipeline.device)
    return memory


def _decoder_memory(pipeline: Pipeline) -> Memory:
    """Return a memory of one state, or none for a decoder-only model, which would read it itself."""
    return _encode_zeros(pipeline, 0 if pipeline.model.is_decoder_only else 1, pipeline.model)


def _encoder_steps(pipeline: Pipeline, length: int, part: Seq2Seq | SecondSource) -> int:
    """Count the sequential steps of encoding a source of `length` vectors."""
    with count_layer_calls(part.encoder) as counter:
        _encode_zeros(pipeline, length, part)
    return counter.steps


def _teacher_forced_steps(pipeline: Pipeline, length: int) -> int:
    """Count the sequential steps of a teacher-forced decoder pass over `length` tokens, at least 1."""
    import torch

    memory = _decoder_memory(pipeline)
    target = torch.tensor([[BOS] + [UNK] * (length - 1)], device=pipeline.device)
    with count_layer_calls(pipeline.model.decoder) as counter:
        pipeline.model.decode(target, memory)
    return max(counter.steps, 1)  # a decoder without layers is one step


def _search_steps(pipeline: Pipeline, length: int) -> int:
    """Count the sequential steps of decoding `length` tokens one by one, at least `length`."""
    import torch

    model = pipeline.model
    state = model.start(_decoder_memory(pipeline), Capacity(1, length))
    token = torch.tensor([[BOS]], device=pipeline.device)
    with count_layer_calls(model.decoder) as counter:
        for _ in range(length):
            _, state = model.step(token, state)
    return max(counter.steps, length)
