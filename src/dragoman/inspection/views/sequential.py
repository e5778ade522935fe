"""How many layer calls must run one after the other, counted while they run.

A layer over all positions is one sequential step; a recurrent layer is one for each position. The counts for two
lengths tell whether an architecture is parallel over positions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from rich.console import Console

from dragoman.core.types import BOS, UNK, Capacity, Memory, Segments
from dragoman.inspection.blockers import single_model_blocker
from dragoman.inspection.views import ViewData, register_view

if TYPE_CHECKING:
    from torch import Tensor, nn

    from dragoman.inference.pipeline import Pipeline
    from dragoman.nn.multi_source import SecondSource
    from dragoman.nn.seq2seq import Seq2Seq

MAX_LENGTH = 16  # tokens, </s> included: steps are counted for this length, and for half of it


def _print_sequential(out: Console, data: ViewData) -> None:
    for row in data["rows"]:
        out.print(row["sentence"], markup=False)


@register_view(
    "sequential",
    inputs="none",
    cost=lambda _: 16 * MAX_LENGTH,  # two lengths, four parts, and every call of a layer is counted
    print_view=_print_sequential,
    blocker=single_model_blocker,
)
def count_sequential_steps(pipeline: Pipeline) -> ViewData:
    """How many steps depend on each other: for a source, for a target in training, for a target in search."""
    import torch

    model: Seq2Seq = pipeline.model.eval()
    long = min(MAX_LENGTH, model.max_source_positions or MAX_LENGTH, model.max_target_positions or MAX_LENGTH)
    lengths = (long // 2, long)
    with torch.inference_mode():
        steps = [_count_steps(pipeline, length) for length in lengths]
    rows = [_row_data(part, side, lengths, [each[part, side] for each in steps]) for part, side in steps[0]]
    return {"lengths": list(lengths), "rows": rows}


def _count_steps(pipeline: Pipeline, length: int) -> dict[tuple[str, str], int]:
    """Count the sequential steps for `length` tokens, by (part of the model, side that it reads or writes)."""
    import torch

    model = pipeline.model
    steps = {("encoder", "the source"): _encoder_steps(pipeline, model, length)}
    if model.second_source is not None:
        steps["second encoder", "the second source"] = _encoder_steps(pipeline, model.second_source, length)
    if model.head is not None:
        return steps
    # A memory of one state, or none for a decoder-only model, which would read it itself.
    memory = _encode_zeros(pipeline, model, 0 if model.is_decoder_only else 1)
    target = torch.tensor([[BOS] + [UNK] * (length - 1)], device=pipeline.device)
    forced = count_layer_calls(model.decoder, lambda: model.decode(target, memory))
    start = model.start(_encode_zeros(pipeline, model, 0 if model.is_decoder_only else 1), Capacity(1, length))

    def search() -> None:
        state = start
        for _ in range(length):
            _, state = model.step(target[:, :1], state)

    steps["decoder in training", "the target"] = max(forced, 1)  # without layers it is 1 step
    steps["decoder in search", "the target"] = max(count_layer_calls(model.decoder, search), length)
    return steps


def _row_data(part: str, side: str, lengths: tuple[int, int], steps: Sequence[int]) -> ViewData:
    (short, long), (few, many) = lengths, steps
    if few == many:
        count = f"{few} step{'s' * (few != 1)}, however long {side} is"
    elif few * long == many * short and few % short == 0:
        count = f"{few // short} step{'s' * (few != short)} for each token of {side}"
    else:
        count = f"{few} steps for {short} tokens of {side} and {many} for {long}"
    return {"part": part, "steps": list(steps), "sentence": f"{part}: {count}"}


def count_layer_calls(part: nn.Module, run: Callable[[], object]) -> int:
    """Count a part's sequential steps while `run` is called: one per layer call, or per position of an RNN."""
    from dragoman.nn.blocks import TransformerBlock
    from dragoman.nn.convolution import GatedConvolution
    from dragoman.nn.recurrent import ResetBeforeGRU, RNNLayer

    steps: list[int] = []

    def add_one(_: nn.Module, __: object, ___: object) -> None:
        steps.append(1)

    def add_positions(_: nn.Module, args: tuple[Tensor, ...], __: object) -> None:
        steps.append(args[0].shape[1])  # (B, T, D); two directions run side by side

    with ExitStack() as hooks:
        for module in part.modules():
            if isinstance(module, RNNLayer | ResetBeforeGRU):
                hooks.callback(module.register_forward_hook(add_positions).remove)
            elif isinstance(module, TransformerBlock):  # its `step` is no module call, but it calls this one
                hooks.callback(module.feedforward.register_forward_hook(add_one).remove)
            elif isinstance(module, GatedConvolution):
                hooks.callback(module.register_forward_hook(add_one).remove)
        run()
    return sum(steps)


def _encode_zeros(pipeline: Pipeline, part: Seq2Seq | SecondSource, length: int) -> Memory:
    import torch

    x = torch.zeros(1, length, part.frontend.d, device=pipeline.device)
    memory: Memory = part.encoder(x, Segments(torch.tensor([length], device=pipeline.device)))
    memory.source = torch.full((1, length), UNK, device=pipeline.device)
    return memory


def _encoder_steps(pipeline: Pipeline, part: Seq2Seq | SecondSource, length: int) -> int:
    return count_layer_calls(part.encoder, lambda: _encode_zeros(pipeline, part, length))
