"""A recurrent decoder, which can use the source in four ways.

    attention   before (Bahdanau)   c_t = attend(s_{t-1}, h)    s_t = g([y_{t-1}; c_t], s_{t-1})
                after (Luong)       s_t = g([y_{t-1}; o_{t-1}], s_{t-1})    c_t = attend(s_t, h)
                bottom (GNMT)       c_t = attend(s¹_{t-1}, h)   sˡ_t = g([sˡ⁻¹_t; c_t], sˡ_{t-1}) in every layer l
    context     s_t = g([y_{t-1}; c], s_{t-1}), c the encoder's summary (Cho)
    initial     s_t = g(y_{t-1}, s_{t-1}), the source known from s_0 alone (Sutskever)
    prefix      the same, where s_0 is the state of the decoder's own layers after reading the source

    gate        c_t ← σ(w·q + b) c_t, where q is the query (Xu)

    readout     o_t = tanh(W r), max of pairs of W r (maxout), W r or s_t;   r = s_t, [s_t; c_t] or [s_t; c_t; y_{t-1}]

With order 'after', o_{t-1} enters the cell only with input feeding; without it no step depends on an earlier attention,
and the whole target runs through the cell at once. Except with a prefix, s_0 comes from the encoder over the bridge.

With `doubly_stochastic` λ, the loss gets the term λ Σ_j (1 − Σ_t a_tj)², so that all source positions get the same
total attention (Xu et al. 2015).

B sentences, K hypotheses, T target and S source positions, L layers, D width of s and o.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from dragoman.core.errors import PartError
from dragoman.core.registry import NonNegativeInt, Part, PositiveInt, UnitInterval
from dragoman.core.types import Capacity, Memory, Output
from dragoman.nn.attention import Attention, AttentionOutput, AttentionSource
from dragoman.nn.decoders import decoders
from dragoman.nn.kernels.dropout import Dropout
from dragoman.nn.layers import linear
from dragoman.nn.normalizers import normalizers
from dragoman.nn.recurrent import Cell, HiddenState, Reset, RNNStack
from dragoman.nn.scores import scores

SourceUse = Literal["attention", "context", "initial", "prefix"]
Order = Literal["before", "after", "bottom"]
Reads = Literal["s", "sc", "scy"]
Readout = Literal["tanh", "maxout", "linear", "none"]


@dataclass
class RNNState:
    """The hidden state of all layers, the last output, the number of the step, and the source."""

    s: HiddenState  # (B, K, L, D) each
    o: Tensor  # (B, K, D)
    t: Tensor  # (B, 1)
    c: Tensor | None = None  # (B, 1, D_memory): the constant context of source 'context'
    source: AttentionSource | None = None
    past_weights: Tensor | None = None  # (B, K, S), see scores.py


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
        source: SourceUse = "attention",
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
        reads = reads or default_reads(source, order, readout)
        self.d = d = width or d_in
        self.attention_order = order if source == "attention" else None
        self.source, self.input_feeding, self.bridge = source, input_feeding, bridge
        self.reads, self.readout_kind = reads, readout

        d_bottom_context = d_memory if self.attention_order == "before" or source == "context" else 0
        d_context = d_memory if self.attention_order == "bottom" else 0  # read by every layer
        d_bottom = d_in + d_bottom_context + (d if input_feeding else 0)
        self.stack = RNNStack(d_bottom, d, layers, cell, reset, "one", residual, dropout, d_context)
        self.attention = Attention(d, d_memory, score, normalizer) if source == "attention" else None
        self.gate = linear(d, 1) if gate else None
        self.doubly_stochastic = doubly_stochastic
        self.check_options(d_in, d_memory)
        if readout != "none":
            d_read = d + ("c" in reads) * d_memory + ("y" in reads) * d_in
            self.readout = linear(d_read, 2 * d if readout == "maxout" else d)
        if bridge == "dense" and source != "prefix":
            self.bridge_proj = linear(d_memory, self.stack.states_per_layer * layers * d)
        self.dropout = Dropout(dropout)
        self.step_loop: Callable[[Tensor, RNNState], Output] = self.decode_sequentially  # an engine may replace it

    def check_options(self, d_in: int, d_memory: int) -> None:
        """Raise PartError where options contradict each other or hide the source from the decoder."""
        source, order, reads = self.source, self.attention_order, self.reads
        if self.input_feeding and source != "attention":
            raise PartError(f"input_feeding needs source 'attention', not '{source}'; set input_feeding: false")
        if self.input_feeding and order != "after":
            raise PartError(
                f"input_feeding needs order 'after'; with order '{order}' the cell reads c; set input_feeding: false"
            )
        if source == "prefix" and d_in != d_memory:
            raise PartError(
                f"source 'prefix' reads source and target as one sequence, so both need the same width, not {d_memory} "
                f"and {d_in}; use encoder 'none', or one of the target's width"
            )
        if source == "initial" and self.bridge == "zero":
            raise PartError(
                "with source 'initial' and bridge 'zero' the decoder never sees the source; use bridge 'dense'"
            )
        if "c" in reads and source in ("initial", "prefix"):
            raise PartError(f"reads '{reads}' needs a context c, and source '{source}' has none; use reads: s")
        if reads == "s" and order == "after":
            raise PartError("with order 'after' and reads 's' the decoder never sees the source; use reads 'sc'")
        if self.readout_kind == "none" and reads != "s":
            raise PartError(f"readout 'none' outputs s itself, and reads is '{reads}'; use reads: s or another readout")

        if self.attention is None and (self.gate is not None or self.doubly_stochastic):
            name = "doubly_stochastic" if self.gate is None else "gate"
            raise PartError(f"{name} needs source 'attention'; leave it out")
        if self.doubly_stochastic and self.attention is not None and self.attention.normalizer.is_stochastic:
            raise PartError(
                "doubly_stochastic needs weights with a gradient, which sampled ones lack; leave it out, or use "
                "softmax (normalizer.entropy keeps the samples diverse)"
            )

    @property
    def is_sequential(self) -> bool:
        """Whether a step needs the attention of the step before, or samples, so that steps cannot run in parallel."""
        attention = self.attention
        if attention is None:
            return False
        stateful = attention.score.uses_past_weights or attention.normalizer.is_stochastic
        return self.attention_order != "after" or self.input_feeding or stateful

    def forward(self, y: Tensor, memory: Memory) -> Output:
        """y (B, T, D_in) → o (B, T, D), all steps at once where none needs the one before; o of a prefix as extra."""
        prefix, state = self.initial_state(memory, 1)
        output = self.step_loop(y, state) if self.is_sequential else self.decode_parallel(y, state)
        if prefix is not None:
            output.extras["prefix"] = self.compute_readout(prefix, None, memory.states)  # (B, S, D)
        return output

    def decode_parallel(self, y: Tensor, state: RNNState) -> Output:
        """All steps through the cell at once, then attention for all of them: y (B, T, D_in) → o (B, T, D)."""
        s, _ = self.stack(self.cell_inputs(y, state.c, state.o), flatten_hypotheses(state.s))  # (B, T, D)
        if state.source is None:
            return Output(self.compute_readout(s, state.c, y))
        t = torch.arange(y.shape[1], device=y.device)[None]  # (1, T)
        c, a, _, extras = self.attend(s, t, state)
        return Output(self.compute_readout(s, c, y), a, self.with_coverage_loss(extras, a, state.source))

    def decode_sequentially(self, y: Tensor, state: RNNState) -> Output:
        """One `step` after the other, outputs concatenated: y (B, T, D_in) → o (B, T, D), attention and extras."""
        B, T = y.shape[:2]
        if T == 0:
            a = None if state.source is None else state.source.mask[:, :0].to(y.dtype)
            return Output(y.new_zeros(B, 0, self.d), a)
        outputs = []
        for t in range(T):
            output, state = self.step(y[:, t : t + 1], state)
            outputs.append(output)
        a = torch.cat([output.attention for output in outputs if output.attention is not None], 1)
        extras = {name: torch.cat([output.extras[name] for output in outputs], 1) for name in outputs[0].extras}
        o = torch.cat([output.o for output in outputs], 1)
        return Output(o, a, self.with_coverage_loss(extras, a, state.source))

    def start(self, memory: Memory, capacity: Capacity) -> RNNState:
        return self.initial_state(memory, capacity.hypotheses)[1]

    def step(self, y: Tensor, state: RNNState) -> tuple[Output, RNNState]:
        """One step of each hypothesis, y (B, K, D_in) → o (B, K, D): attention, cells, readout, and the next state."""
        attended, c, source = None, state.c, state.source
        if source is not None and self.attention_order != "after":
            layer = 0 if self.attention_order == "bottom" else -1
            q = state.s[0][:, :, layer]  # s_{t-1} of the bottom or top layer, (B, K, D)
            attended = self.attend(q, state.t, state)
            c = attended.c  # (B, K, D_memory)
        B, K = y.shape[:2]
        x = self.cell_inputs(y, c, state.o).reshape(B * K, 1, -1)  # to the layers, hypotheses are rows of a batch
        context = c.reshape(B * K, 1, -1) if c is not None and self.attention_order == "bottom" else None
        s, layers = self.stack(x, flatten_hypotheses(state.s), c=context)
        s = s.view(B, K, -1)  # (B, K, D)
        if source is not None and self.attention_order == "after":
            attended = self.attend(s, state.t, state)
            c = attended.c
        o = self.compute_readout(s, c, y)
        s_next = tuple(z.transpose(0, 1).reshape(B, K, *z.shape[::2]) for z in layers)  # (B, K, L, D)
        state = replace(state, s=s_next, o=o, t=state.t + 1)
        if attended is None:
            return Output(o), state
        return Output(o, attended.a, attended.extras), replace(state, past_weights=attended.past_weights)

    def initial_state(self, memory: Memory, hypotheses: int) -> tuple[Tensor | None, RNNState]:
        """With a prefix, s at the source's positions, (B, S, D), else None; and the state before the first step."""
        h, K, prefix = memory.states, hypotheses, None
        if self.source == "prefix":
            prefix, s = self.stack(self.dropout(h), lengths=memory.lengths)
        else:
            s = self.bridge_state(memory)
        expanded = tuple(x.transpose(0, 1)[:, None].expand(-1, K, -1, -1).contiguous() for x in s)  # (B, K, L, D)
        state = RNNState(expanded, h.new_zeros(h.shape[0], K, self.d), memory.lengths.new_zeros(h.shape[0], 1))
        if self.source == "context":
            state.c = memory.summary[:, None]
        if self.attention is not None:
            state.source = self.attention.prepare_source(memory)
            if self.attention.score.uses_past_weights:
                state.past_weights = h.new_zeros(h.shape[0], K, h.shape[1])
        return prefix, state

    def bridge_state(self, memory: Memory) -> HiddenState:
        """s_0 from the encoder, (L, B, D) each: tanh(W summary), zeros, or the encoder's final state ('copy')."""
        B, L, n = memory.states.shape[0], len(self.stack.layers), self.stack.states_per_layer
        if self.bridge == "dense":
            s: Tensor = torch.tanh(self.bridge_proj(memory.summary))
            return s.view(B, n, L, self.d).permute(1, 2, 0, 3).unbind(0)
        if self.bridge == "zero":
            return (memory.states.new_zeros(L, B, self.d),) * n
        final = memory.final
        if final is None or len(final) != n or final[0].shape[::2] != (L, self.d):
            raise PartError(
                f"bridge 'copy' needs an RNN encoder with the same cell, {L} layers and width {self.d}; use 'dense'"
            )
        return final

    def attend(self, q: Tensor, t: Tensor, state: RNNState) -> AttentionOutput:
        """Queries (B, T or K, D) at the steps t (B or 1, T or 1) attend to the source; a gate scales c."""
        assert self.attention is not None
        attended: AttentionOutput = self.attention(q, state.source, t, state.past_weights)
        return attended if self.gate is None else attended._replace(c=torch.sigmoid(self.gate(q)) * attended.c)

    def with_coverage_loss(
        self, extras: dict[str, Tensor], a: Tensor, source: AttentionSource | None
    ) -> dict[str, Tensor]:
        """The extras with the doubly stochastic loss λ Σ_j (1 − Σ_t a_tj)² added to the "penalty", (B, T).

        Step t gets the difference that it makes, so that the sum over the real steps of a padded target is their loss.
        """
        if not self.doubly_stochastic or source is None:
            return extras
        missing = (1.0 - a.cumsum(1)) * source.mask  # (B, T, S)
        cost = missing.square().sum(-1)  # after each step
        penalty = self.doubly_stochastic * torch.cat([cost[:, :1], cost.diff(dim=1)], 1)
        return extras | {"penalty": extras.get("penalty", 0.0) + penalty}

    def cell_inputs(self, y: Tensor, c: Tensor | None, o: Tensor) -> Tensor:
        """The bottom layer's inputs, (B, T or K, ·): y with dropout, c (not for order 'bottom'), o (input feeding)."""
        x = [self.dropout(y)]
        if c is not None and self.attention_order != "bottom":
            x.append(c.expand(-1, y.shape[1], -1))
        if self.input_feeding:
            x.append(o)
        return torch.cat(x, -1)

    def compute_readout(self, s: Tensor, c: Tensor | None, y: Tensor) -> Tensor:
        """o, (B, T or K, D), with dropout: tanh, maxout or linear of what the readout reads of s, c, y; or s itself."""
        if self.readout_kind == "none":
            return self.dropout(s)
        r = [s]
        if "c" in self.reads and c is not None:
            r.append(c.expand(-1, s.shape[1], -1))
        if "y" in self.reads:
            r.append(y)
        o: Tensor = self.readout(torch.cat(r, -1))
        if self.readout_kind == "tanh":
            o = torch.tanh(o)
        if self.readout_kind == "maxout":
            o = o.view(*o.shape[:-1], self.d, 2).amax(-1)
        return self.dropout(o)


def flatten_hypotheses(s: HiddenState) -> HiddenState:
    """(B, K, L, D) each → (L, B·K, D)"""
    return tuple(x.flatten(0, 1).transpose(0, 1) for x in s)


def default_reads(source: SourceUse, order: Order, readout: Readout) -> Reads:
    """What the readout reads by default: "s" without a context, "sc" for 'context' and order 'after', else "scy"."""
    if readout == "none" or source in ("initial", "prefix"):
        return "s"
    return "sc" if source == "context" or order == "after" else "scy"
