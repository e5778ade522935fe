"""Run the loop of a recurrent decoder over the target as one CUDA graph, forward and backward.

    decoder.step_loop(y, state)     y (B, T, D), padded to (B', T', D); the source's keys to S'     → o (B, T, D)

Where a step needs the attention of the previous step, the loop is some 40 small kernels a step, and launching them
takes far longer than running them. Rows and lengths are rounded up, both lengths to the longer one; a source that is
much longer (the positions of an image) is rounded by itself. Steps cost time, rows and positions hardly any, so these
are rounded more coarsely. A shape that comes up a second time is captured. What is added gets no gradient.

B rows, T target and S source positions, D width.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import pad

from dragoman.core.types import Output
from dragoman.engines.length_batches import round_up
from dragoman.nn.attention import AttentionSource
from dragoman.nn.decoders.rnn import RNNDecoder, RNNState

logger = logging.getLogger("dragoman")

# Steps, the positions of a long source and rows are rounded up by less than this, or than a quarter, a half and a half.
STEP_MULTIPLE, POSITION_MULTIPLE, ROW_MULTIPLE = 8, 32, 32
MAX_GRAPHS = 96  # shapes that are captured

GraphedLoop = tuple[Callable[..., tuple[Tensor, ...]], list[str]]  # the captured function, and the names of its extras


class LoopFunction(nn.Module):
    """decoder.decode_sequentially as a function of tensors alone, as a capture needs it."""

    def __init__(self, decoder: RNNDecoder, extras: list[str]) -> None:
        super().__init__()
        self.decoder, self.extras = decoder, extras
        self.names = [name for name, _ in self.named_parameters()]

    def forward(self, y: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The decoder's output o for y, and its extras in the order of their names; `tensors` are the state."""
        output = self.decoder.decode_sequentially(y, build_state(tensors))
        return output.o, *(output.extras[name] for name in self.extras)

    def call_with_weights(self, *arguments: Tensor) -> tuple[Tensor, ...]:
        """`forward` with the parameters as the last arguments."""
        tensors, weights = arguments[: -len(self.names)], arguments[-len(self.names) :]
        outputs: tuple[Tensor, ...] = functional_call(self, dict(zip(self.names, weights, strict=True)), tensors)
        return outputs


class CapturedLoop:
    """Replaces a decoder's own loop in training: one CUDA graph for each shape."""

    def __init__(self, decoder: RNNDecoder) -> None:
        self.decoder, self.reference_loop = decoder, decoder.decode_sequentially
        self.captured: dict[tuple[int, ...], GraphedLoop] = {}
        self.seen: set[tuple[int, ...]] = set()
        self.max_graphs = MAX_GRAPHS
        self.pool: torch.cuda._POOL_HANDLE | None = None

    def release_graphs(self) -> None:
        """Free all captured graphs and their memory, and capture no more."""
        self.captured.clear()
        self.pool, self.max_graphs = None, 0

    def __call__(self, y: Tensor, state: RNNState) -> Output:
        """The decoder's output for y (B, T, D), without attention weights; a shape that comes up again is captured."""
        source, (B, T) = state.source, y.shape[:2]
        if not self.decoder.training or source is None or T == 0:
            return self.reference_loop(y, state)
        S, arguments = source.keys.shape[2], (y, state)
        steps, positions = round_up_shape(T, S)
        y, tensors = pad_inputs(y, state, source, round_up(B, ROW_MULTIPLE, 2) - B, steps - T, positions - S)
        key = (*y.shape[:2], positions, torch.is_autocast_enabled("cuda"))
        if key in self.seen and key not in self.captured and len(self.captured) < self.max_graphs:
            try:
                self.captured[key] = self._capture(y, tensors)
            except torch.OutOfMemoryError:
                self.max_graphs = 0
                reset_generator()
                logger.warning("The GPU has no memory for more captured loops; other shapes run step by step.")
            except RuntimeError as error:
                reason = str(error).splitlines()[0]
                logger.warning("The decoder's loop cannot be captured and runs step by step: %s", reason)
                self.decoder.step_loop = self.reference_loop
                reset_generator()
                return self.decoder.step_loop(*arguments)
        self.seen.add(key)
        if key in self.captured:
            run, names = self.captured[key]
            outputs = run(y, *tensors, *self.decoder.parameters())
        else:
            output = self.reference_loop(y, build_state(tensors))
            names, outputs = list(output.extras), (output.o, *output.extras.values())
        o, *extras = (x[:B, :T] for x in outputs)
        return Output(o, None, dict(zip(names, extras, strict=True)))

    def _capture(self, y: Tensor, tensors: list[Tensor]) -> GraphedLoop:
        """Capture the loop, forward and backward, for these shapes: the function and the names of its extras."""
        with torch.no_grad():
            names = list(self.reference_loop(y, build_state(tensors)).extras)
        self.pool = self.pool or torch.cuda.graph_pool_handle()
        samples = [x.detach().clone().requires_grad_(x.requires_grad) for x in (y, *tensors)]
        # Detached parameters: with the originals, backward would add to gradients of the running step on another
        # stream, which a capture cannot. They share their memory, so nothing is copied.
        samples += [p.detach().requires_grad_(p.requires_grad) for p in self.decoder.parameters()]
        half = torch.is_autocast_enabled("cuda")
        with torch.autocast("cuda", torch.bfloat16, enabled=half, cache_enabled=False):
            run: Callable[..., tuple[Tensor, ...]] = torch.cuda.make_graphed_callables(  # type: ignore[assignment]
                LoopFunction(self.decoder, names).call_with_weights,
                tuple(samples),
                num_warmup_iters=1,  # the kernels have run before
                allow_unused_input=True,
                pool=self.pool,
            )
        return run, names


def round_up_shape(T: int, S: int) -> tuple[int, int]:
    """The steps and source positions that a loop over T and S of them is captured for."""
    if S > 1.5 * T:
        return round_up(T, STEP_MULTIPLE, 4), round_up(S, POSITION_MULTIPLE, 2)
    longer = round_up(max(S, T), STEP_MULTIPLE, 4)
    return longer, longer


def reset_generator() -> None:
    """Give the CUDA generator a new state: after a failed capture, the old one still waits for the capture's end."""
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    fresh = torch.Generator(generator.device).manual_seed(generator.initial_seed())
    generator.graphsafe_set_state(fresh.graphsafe_get_state())


def pad_inputs(
    y: Tensor, state: RNNState, source: AttentionSource, rows: int, steps: int, positions: int
) -> tuple[Tensor, list[Tensor]]:
    """y padded by so many rows and steps, and the state, with more source positions, as tensors for `build_state`."""
    hidden = [pad(x, (0, 0) * (x.dim() - 1) + (0, rows)) for x in (*state.s, state.o)]  # rows of zeros
    keys, values = (pad(x, (0, 0, 0, positions, 0, 0, 0, rows)) for x in (source.keys, source.values))
    mask = pad(source.mask, (0, positions, 0, 0, 0, rows))
    lengths, t = pad(source.lengths, (0, 0, 0, rows), value=1), pad(state.t, (0, 0, 0, rows))
    tensors = [t, keys, values, mask, lengths, *hidden]
    if state.past_weights is not None:
        tensors.append(pad(state.past_weights, (0, positions, 0, 0, 0, rows)))
    return pad(y, (0, 0, 0, steps, 0, rows)), [x.contiguous() for x in tensors]


def build_state(tensors: Sequence[Tensor]) -> RNNState:
    """The state from the tensors of `pad_inputs`."""
    t, keys, values, mask, lengths, *rest = tensors
    s = tuple(x for x in rest if x.dim() == 4)  # of each layer
    o, *past_weights = rest[len(s) :]
    return RNNState(s, o, t, None, AttentionSource(keys, values, mask, lengths), *past_weights)


def release_captured_loops(decoder: nn.Module | None) -> None:
    """Free the captured loops of a decoder, if it has any; it then captures no more."""
    if isinstance(decoder, RNNDecoder) and isinstance(decoder.step_loop, CapturedLoop):
        decoder.step_loop.release_graphs()


def captured_loop_blocker(decoder: nn.Module | None, device: torch.device) -> str | None:
    """Why a decoder does not train with a captured loop; None: it does."""
    if device.type != "cuda":
        return f"it runs on a GPU, and the device is {device.type}"
    if not isinstance(decoder, RNNDecoder):
        return "the model has no rnn decoder"
    if not decoder.is_sequential:
        return "no step of the decoder needs the attention of the previous one, so that all steps run at once"
    return None
