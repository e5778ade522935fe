"""A recurrent decoder, in the four ways it can learn of the source.

    attention   before (Bahdanau)   c_t = attend(s_{t-1}, h)    s_t = g([y_{t-1}; c_t], s_{t-1})
                after (Luong)       s_t = g([y_{t-1}; o_{t-1}], s_{t-1})    c_t = attend(s_t, h)
                bottom (GNMT)       c_t = attend(s¹_{t-1}, h)   sˡ_t = g([sˡ⁻¹_t; c_t], sˡ_{t-1}) in every layer l
    context     s_t = g([y_{t-1}; c], s_{t-1}), c the encoder's summary (Cho)
    initial     s_t = g(y_{t-1}, s_{t-1}), the source known from s_0 alone (Sutskever)
    prefix      the same, and s_0 is where the decoder's own layers came to, from zeros, over the source's states

    gate        c_t ← σ(w·q + b) c_t, q the state that asked: how much of what it sees a step takes in (Xu)

    readout     o_t = tanh(W r), max of pairs of W r (maxout), W r or s_t;   r = s_t, [s_t; c_t] or [s_t; c_t; y_{t-1}]

After the cell, o_{t-1} enters it only with input feeding; without it no step waits for an attention, so that the whole
target runs through the cell at once. Elsewhere than with a prefix, s_0 comes from the encoder over the bridge.

With `doubly_stochastic` λ, looking at all places evenly is asked for in training: λ Σ_j (1 − Σ_t a_tj)² in the loss
(Xu et al. 2015).

B sentences, K hypotheses, T target and S source positions, L layers, D width of s and o.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from dragoman.core.errors import PartError
from dragoman.core.registry import NonNegativeInt, Part, PositiveInt, UnitInterval
from dragoman.core.types import Capacity, Memory, Output
from dragoman.nn.attention import Attention, Look
from dragoman.nn.decoders import decoders
from dragoman.nn.kernels.dropout import Dropout
from dragoman.nn.layers import linear
from dragoman.nn.normalizers import normalizers
from dragoman.nn.recurrent import Cell, Reset, Stack, State
from dragoman.nn.scores import scores

Source = Literal["attention", "context", "initial", "prefix"]
Order = Literal["before", "after", "bottom"]
Reads = Literal["s", "sc", "scy"]
Readout = Literal["tanh", "maxout", "linear", "none"]


@dataclass
class View:
    """The source as attention wants it, and what its score remembers."""

    keys: Tensor  # (B, 1, S, ·)
    values: Tensor  # (B, 1, S, D_memory)
    mask: Tensor  # (B, 1, S)
    lengths: Tensor  # (B, 1)
    memo: Tensor | None  # (B, K, S)


@dataclass
class RNNState:
    """The layers' state, (B, K, L, D) each; what came out last, (B, K, D); the number of the step, (B, 1)."""

    s: State
    o: Tensor
    t: Tensor
    c: Tensor | None = None  # (B, 1, D_memory): a context that stays the same
    view: View | None = None


@decoders.register("rnn")
class RNNDecoder(nn.Module):
    """s_t = g(y_{t-1}, s_{t-1}), with attention (Bahdanau, Luong, GNMT) or without it (Sutskever, Cho, prefix).

    `residual` is the first layer, counted from 1, that adds its input to its output (0: none).
    """

    def __init__(
        self,
        d_in: int,
        d_memory: int,
        *,
        cell: Cell = "lstm",
        reset: Reset = "after",
        layers: PositiveInt = 1,
        width: PositiveInt | None = None,
        residual: NonNegativeInt = 0,
        source: Source = "attention",
        order: Order = "after",
        input_feeding: bool = False,
        score: Annotated[Part, scores] = Part("additive"),
        normalizer: Annotated[Part, normalizers] = Part("softmax"),
        gate: bool = False,
        doubly_stochastic: Annotated[float, Field(ge=0.0, le=1e6)] = 0.0,
        bridge: Literal["dense", "copy", "zero"] = "dense",
        reads: Reads | None = None,
        readout: Readout = "tanh",
        dropout: UnitInterval = 0.1,
    ) -> None:
        super().__init__()
        reads = reads or usual(source, order, readout)
        check(d_in, d_memory, source, order, input_feeding, bridge, reads, readout)
        self.d = d = width or d_in
        self.looks = order if source == "attention" else None  # where in a step it looks at the source
        self.source, self.feeding, self.bridge, self.reads, self.form = source, input_feeding, bridge, reads, readout

        c_once = d_memory if self.looks == "before" or source == "context" else 0  # read by the bottom layer alone
        c_everywhere = d_memory if self.looks == "bottom" else 0
        d_first = d_in + c_once + (d if input_feeding else 0)
        self.stack = Stack(d_first, d, layers, cell, reset, "one", residual, dropout, c_everywhere)
        self.attention: Any = Attention(d, d_memory, score, normalizer) if source == "attention" else None
        self.gate = linear(d, 1) if gate else None
        self.evenness = doubly_stochastic
        check_looks(self.attention, gate, doubly_stochastic)
        if readout != "none":
            d_read = d + ("c" in reads) * d_memory + ("y" in reads) * d_in
            self.readout = linear(d_read, 2 * d if readout == "maxout" else d)
        if bridge == "dense" and source != "prefix":
            self.over = linear(d_memory, self.stack.tensors * layers * d)
        self.dropout = Dropout(dropout)
        self.loop: Callable[[Tensor, RNNState], Output] = self.in_steps  # a runtime may have a faster one

    @property
    def waits(self) -> bool:
        """Whether a step needs what attention gave the step before, or draws, and so cannot run beside the others."""
        if self.looks is None:
            return False
        attention = self.attention
        return self.looks != "after" or self.feeding or attention.remembers or attention.normalizer.samples

    # -- all at once -----------------------------------------------------------------------------------------------

    def forward(self, y: Tensor, memory: Memory) -> Output:
        before, state = self.begin(memory, 1)
        output = self.loop(y, state) if self.waits else self.at_once(y, state)
        if before is not None:
            output.extras["prefix"] = self.read(before, None, memory.states)  # (B, S, D)
        return output

    def at_once(self, y: Tensor, state: RNNState) -> Output:
        s, _ = self.stack(self.inputs(y, state.c, state.o), flat(state.s))  # (B, T, D)
        if state.view is None:
            return Output(self.read(s, state.c, y))
        t = torch.arange(y.shape[1], device=y.device)[None]  # (1, T)
        look = self.look(s, state.view, t)
        return Output(self.read(s, look.c, y), look.a, self.priced(look.extras, look.a, state.view))

    def in_steps(self, y: Tensor, state: RNNState) -> Output:
        B, T = y.shape[:2]
        if T == 0:
            return Output(y.new_zeros(B, 0, self.d), None if state.view is None else state.view.mask[:, :0].to(y.dtype))
        outputs = []
        for t in range(T):
            output, state = self.step(y[:, t : t + 1], state)
            outputs.append(output)
        a = torch.cat([output.attention for output in outputs if output.attention is not None], 1)
        extras = {name: torch.cat([output.extras[name] for output in outputs], 1) for name in outputs[0].extras}
        return Output(torch.cat([output.o for output in outputs], 1), a, self.priced(extras, a, state.view))

    # -- step by step ----------------------------------------------------------------------------------------------

    def start(self, memory: Memory, capacity: Capacity) -> RNNState:
        return self.begin(memory, capacity.hypotheses)[1]

    def step(self, y: Tensor, state: RNNState) -> tuple[Output, RNNState]:
        """y (B, K, D_in). The hypotheses of a sentence are so many queries on the sentence's keys."""
        look, c, view = None, state.c, state.view
        if view is not None and self.looks != "after":
            asks = state.s[0][
                :, :, 0 if self.looks == "bottom" else -1
            ]  # s_{t-1} of the bottom or top layer, (B, K, D)
            look = self.look(asks, view, state.t)
            c = look.c  # (B, K, D_memory)
        s, layers = self.advance(y, c, state)  # (B, K, D)
        if view is not None and self.looks == "after":
            look = self.look(s, view, state.t)
            c = look.c
        o = self.read(s, c, y)
        state = replace(state, s=layers, o=o, t=state.t + 1)
        if look is None or view is None:
            return Output(o), state
        return Output(o, look.a, look.extras), replace(state, view=replace(view, memo=look.memo))

    # -- the beginning ---------------------------------------------------------------------------------------------

    def begin(self, memory: Memory, hypotheses: int) -> tuple[Tensor | None, RNNState]:
        """The state before the first step; for a prefix, besides, s at the source's positions, (B, S, D)."""
        h, K, before = memory.states, hypotheses, None
        if self.source == "prefix":
            before, s = self.stack(self.dropout(h), lengths=memory.lengths)
        else:
            s = self.cross(memory)
        spread = tuple(x.transpose(0, 1)[:, None].expand(-1, K, -1, -1).contiguous() for x in s)  # (B, K, L, D)
        state = RNNState(spread, h.new_zeros(h.shape[0], K, self.d), memory.lengths.new_zeros(h.shape[0], 1))
        if self.source == "context":
            state.c = memory.summary[:, None]
        if self.source == "attention":
            keys, values = self.attention.prepare(h), h if memory.values is None else memory.values
            memo = h.new_zeros(h.shape[0], K, h.shape[1]) if self.attention.remembers else None
            state.view = View(keys[:, None], values[:, None], memory.mask[:, None], memory.lengths[:, None], memo)
        return before, state

    def cross(self, memory: Memory) -> State:
        """s_0 over the bridge, (L, B, D) each."""
        B, L, tensors = memory.states.shape[0], len(self.stack.layers), self.stack.tensors
        if self.bridge == "dense":
            over = torch.tanh(self.over(memory.summary))
            return over.view(B, tensors, L, self.d).permute(1, 2, 0, 3).unbind(0)
        if self.bridge == "zero":
            return (memory.states.new_zeros(L, B, self.d),) * tensors
        final = memory.final
        if final is None or len(final) != tensors or final[0].shape[::2] != (L, self.d):
            raise PartError(
                f"bridge 'copy' needs an RNN encoder with the same cell, {L} layers and width {self.d}; use 'dense'"
            )
        return final

    # -- the pieces of the equations -------------------------------------------------------------------------------

    def look(self, q: Tensor, view: View, t: Tensor) -> Look:
        """One look for queries (B, T or K, D), asked at the steps t (B or 1, T or 1)."""
        keys, values = view.keys[:, 0], view.values[:, 0]
        look: Look = self.attention(q, keys, values, view.mask, view.memo, t, view.lengths)
        return look if self.gate is None else look._replace(c=torch.sigmoid(self.gate(q)) * look.c)

    def priced(self, extras: dict[str, Tensor], a: Tensor, view: View | None) -> dict[str, Tensor]:
        """With what uneven looks cost, (B, T): what each step adds to λ Σ_j (1 − Σ_t a_tj)², the first all before it.

        As differences, so that a sum over the real steps of a padded target is the cost of just these.
        """
        if not self.evenness or view is None:
            return extras
        missing = (1.0 - a.cumsum(1)) * view.mask  # (B, T, S)
        cost = missing.square().sum(-1)  # after each step
        penalty = self.evenness * torch.cat([cost[:, :1], cost.diff(dim=1)], 1)
        return extras | {"penalty": extras.get("penalty", 0.0) + penalty}

    def inputs(self, y: Tensor, c: Tensor | None, o: Tensor) -> Tensor:
        """What the bottom layer reads, (B, T or K, ·)."""
        x = [self.dropout(y)]
        if c is not None and self.looks != "bottom":
            x.append(c.expand(-1, y.shape[1], -1))
        if self.feeding:
            x.append(o)
        return torch.cat(x, -1)

    def advance(self, y: Tensor, c: Tensor | None, state: RNNState) -> tuple[Tensor, State]:
        """One step of every layer for every hypothesis: y (B, K, D_in) → s_t (B, K, D) and the new state."""
        B, K = y.shape[:2]
        x = self.inputs(y, c, state.o).reshape(B * K, 1, -1)
        everywhere = c.reshape(B * K, 1, -1) if c is not None and self.looks == "bottom" else None
        s, layers = self.stack(x, flat(state.s), c=everywhere)
        return s.view(B, K, -1), tuple(z.transpose(0, 1).reshape(B, K, *z.shape[::2]) for z in layers)

    def read(self, s: Tensor, c: Tensor | None, y: Tensor) -> Tensor:
        """o from what the readout reads, (B, T or K, D)."""
        if self.form == "none":
            return self.dropout(s)  # type: ignore[no-any-return]
        r = [s]
        if "c" in self.reads and c is not None:
            r.append(c.expand(-1, s.shape[1], -1))
        if "y" in self.reads:
            r.append(y)
        o = self.readout(torch.cat(r, -1))
        if self.form == "tanh":
            o = torch.tanh(o)
        if self.form == "maxout":
            o = o.unflatten(-1, (self.d, 2)).amax(-1)
        return self.dropout(o)  # type: ignore[no-any-return]


def flat(s: State) -> State:
    """(B, K, L, D) each → (L, B·K, D): to the layers, hypotheses are rows."""
    return tuple(x.flatten(0, 1).transpose(0, 1) for x in s)


def usual(source: Source, order: Order, readout: Readout) -> Reads:
    """What the readout reads where nobody says."""
    if readout == "none" or source in ("initial", "prefix"):
        return "s"
    return "sc" if source == "context" or order == "after" else "scy"


def check(
    d_in: int, d_memory: int, source: Source, order: Order, feeding: bool, bridge: str, reads: Reads, readout: Readout
) -> None:
    """Refuse options that make no sense together."""
    if feeding and source != "attention":
        raise PartError(f"input feeding belongs to source 'attention', not to '{source}'; set input_feeding: false")
    if feeding and order != "after":
        raise PartError(
            f"input feeding belongs to attention after the cell; with order '{order}' the cell reads c already"
        )
    if source == "prefix" and d_in != d_memory:
        raise PartError(
            f"source 'prefix' reads source and target as one sequence, but the source is {d_memory} wide and the "
            f"target {d_in}; use encoder 'none', or one of the target's width"
        )
    if source == "initial" and bridge == "zero":
        raise PartError("source 'initial' comes over the bridge alone, and bridge 'zero' carries nothing; use 'dense'")
    if "c" in reads and source in ("initial", "prefix"):
        raise PartError(f"reads '{reads}' needs a context c, and source '{source}' has none; use reads: s")
    if reads == "s" and source == "attention" and order == "after":
        raise PartError(
            "with order 'after' only the readout reads c; reading s alone it would never see the source; use 'sc'"
        )
    if readout == "none" and reads != "s":
        raise PartError(f"readout 'none' hands on s alone, and reads is '{reads}'; use reads: s or another readout")


def check_looks(attention: Any, gate: bool, evenness: float) -> None:
    """Refuse what acts on looks where there are none, or none with a gradient."""
    if attention is None and (gate or evenness):
        name = "gate" if gate else "doubly_stochastic"
        raise PartError(f"{name} belongs to source 'attention', which looks at the source; leave it out")
    if evenness and attention.normalizer.samples:
        raise PartError(
            "doubly_stochastic needs weights with a gradient, and a draw has none; leave it out, or use softmax "
            "(normalizer.entropy keeps the draws diverse)"
        )
