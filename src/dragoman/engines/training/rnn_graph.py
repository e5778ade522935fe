"""A recurrent decoder's loop over the target as one CUDA graph, forward and backward.

    decoder.loop(y, state)     y (B, T, D), padded to (B', T', D); the source's keys to S'     → o (B, T, D)

Where a step waits for the attention of the step before, the loop is some 40 small kernels a step, and launching them
takes far longer than running them. Rows and lengths are rounded up, and both lengths to the longer one: of two texts
that are about as long that leaves few shapes. A source that is much longer (a conversation, the places of an image) is
rounded for itself: a caption of 15 words would take as many steps as an image has places, 64. Steps cost time, rows and
positions hardly any, so these are rounded more coarsely. A shape that comes a second time is captured, as long as the
GPU's memory holds it. Rows and steps that were added get no gradient, so they change none.

B rows, T target and S source positions, D width.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import pad

from dragoman.core.types import Output
from dragoman.nn.decoders.rnn import RNNDecoder, RNNState, View

logger = logging.getLogger("dragoman")

LENGTH, LONG, ROWS = 8, 32, 32  # what is added is less than this, or than a quarter, a half and a half
SHAPES = 96  # that are captured


class Loop(nn.Module):
    """decoder.in_steps as a function of tensors: what a capture wants."""

    def __init__(self, decoder: RNNDecoder, extras: list[str]) -> None:
        super().__init__()
        self.decoder, self.extras = decoder, extras
        self.names = [name for name, _ in self.named_parameters()]

    def forward(self, y: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        output = self.decoder.in_steps(y, built(tensors))
        return output.o, *(output.extras[name] for name in self.extras)

    def of(self, *given: Tensor) -> tuple[Tensor, ...]:
        """`forward` with the parameters as the last arguments."""
        tensors, weights = given[: -len(self.names)], given[-len(self.names) :]
        return functional_call(self, dict(zip(self.names, weights, strict=True)), tensors)  # type: ignore[no-any-return]


class Loops:
    """Takes the place of a decoder's own loop while it trains."""

    def __init__(self, decoder: RNNDecoder) -> None:
        self.decoder, self.plain = decoder, decoder.in_steps
        self.captured: dict[tuple[int, ...], tuple[Callable[..., tuple[Tensor, ...]], list[str]]] = {}
        self.seen: set[tuple[int, ...]] = set()
        self.room = SHAPES
        self.pool: Any = None

    def forget(self) -> None:
        """Give back what was captured, with its memory, and capture no more."""
        self.captured.clear()
        self.pool, self.room = None, 0

    def __call__(self, y: Tensor, state: RNNState) -> Output:
        view, (B, T) = state.view, y.shape[:2]
        if not self.decoder.training or view is None or T == 0:
            return self.plain(y, state)
        S, given = view.keys.shape[2], (y, state)
        steps, positions = rounded(T, S)
        y, tensors = widened(y, state, view, up(B, ROWS, 2) - B, steps - T, positions - S)
        key = (*y.shape[:2], positions, torch.is_autocast_enabled("cuda"))
        if key in self.seen and key not in self.captured and len(self.captured) < self.room:
            try:
                self.captured[key] = self._capture(y, tensors)
            except torch.OutOfMemoryError:
                self.room = 0
                mend_generator()
                logger.warning("the GPU's memory does not hold more captured loops; other shapes run step by step")
            except RuntimeError as error:
                reason = str(error).splitlines()[0]
                logger.warning("the decoder's loop cannot be captured and runs step by step: %s", reason)
                self.decoder.loop = self.plain
                mend_generator()
                return self.decoder.loop(*given)
        self.seen.add(key)
        if key in self.captured:
            run, names = self.captured[key]
            found = run(y, *tensors, *self.decoder.parameters())
        else:
            output = self.plain(y, built(tensors))
            names, found = list(output.extras), (output.o, *output.extras.values())
        o, *extras = (x[:B, :T] for x in found)
        return Output(o, None, dict(zip(names, extras, strict=True)))

    def _capture(self, y: Tensor, tensors: list[Tensor]) -> tuple[Callable[..., tuple[Tensor, ...]], list[str]]:
        with torch.no_grad():
            names = list(self.plain(y, built(tensors)).extras)
        self.pool = self.pool or torch.cuda.graph_pool_handle()
        samples = [x.detach().clone().requires_grad_(x.requires_grad) for x in (y, *tensors)]
        # The parameters under new names: under their own, backward would add to what the step under way has begun on
        # another stream, which a capture cannot. They stay where they are in memory, so nothing is copied.
        samples += [p.detach().requires_grad_(p.requires_grad) for p in self.decoder.parameters()]
        half = torch.is_autocast_enabled("cuda")
        with torch.autocast("cuda", torch.bfloat16, enabled=half, cache_enabled=False):
            run: Any = torch.cuda.make_graphed_callables(
                Loop(self.decoder, names).of,
                tuple(samples),
                num_warmup_iters=1,  # the kernels have run before
                allow_unused_input=True,
                pool=self.pool,
            )
        return run, names


def rounded(T: int, S: int) -> tuple[int, int]:
    """The steps and positions that a loop is captured for."""
    if S > 1.5 * T:
        return up(T, LENGTH, 4), up(S, LONG, 2)
    longer = up(max(S, T), LENGTH, 4)
    return longer, longer


def up(n: int, least: int, parts: int) -> int:
    """n rounded up, to multiples of `least` or of one of so many parts of the power of two below it."""
    unit = max(least, (1 << max(n - 1, 1).bit_length() - 1) // parts)
    return n + -n % unit


def mend_generator() -> None:
    """A capture that failed leaves the generator waiting for its end: give it a state of its own that is not."""
    mine = torch.cuda.default_generators[torch.cuda.current_device()]
    fresh = torch.Generator(mine.device).manual_seed(mine.initial_seed())
    mine.graphsafe_set_state(fresh.graphsafe_get_state())


def widened(
    y: Tensor, state: RNNState, view: View, rows: int, steps: int, positions: int
) -> tuple[Tensor, list[Tensor]]:
    """The same with so many more rows, steps and source positions, as tensors in the order of `built`."""
    below = [pad(x, (0, 0) * (x.dim() - 1) + (0, rows)) for x in (*state.s, state.o)]  # rows of zeros
    keys, values = (pad(x, (0, 0, 0, positions, 0, 0, 0, rows)) for x in (view.keys, view.values))
    mask = pad(view.mask, (0, positions, 0, 0, 0, rows))
    lengths, t = pad(view.lengths, (0, 0, 0, rows), value=1), pad(state.t, (0, 0, 0, rows))
    found = [t, keys, values, mask, lengths, *below]
    if view.memo is not None:
        found.append(pad(view.memo, (0, positions, 0, 0, 0, rows)))
    return pad(y, (0, 0, 0, steps, 0, rows)), [x.contiguous() for x in found]


def built(tensors: Any) -> RNNState:
    """The state that `widened` took apart."""
    t, keys, values, mask, lengths, *rest = tensors
    s = tuple(x for x in rest if x.dim() == 4)  # of each layer
    o, *memo = rest[len(s) :]
    return RNNState(s, o, t, None, View(keys, values, mask, lengths, memo[0] if memo else None))


def forget(decoder: Any) -> None:
    """Give back the memory of a decoder's captured loops, where it has some."""
    if isinstance(decoder, RNNDecoder) and isinstance(decoder.loop, Loops):
        decoder.loop.forget()


def hurry(decoder: Any) -> None:
    """Give a recurrent decoder that waits for itself a captured loop."""
    if isinstance(decoder, RNNDecoder) and decoder.waits:
        decoder.loop = Loops(decoder)
