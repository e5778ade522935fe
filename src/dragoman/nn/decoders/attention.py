"""An attention decoder without recurrence.

    x_t = y_{t-1} + position
    s_t = x_t + Σ_{j≤t} softmax_j(x_t·x_j / √D) x_j        without parameters; s_t = x_t where `past` is false
    c_t = attend(s_t, h)        o_t = tanh(W [s_t; c_t])

B sentences, K hypotheses, T target and S source positions, C capacity for target positions, D width.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from dragoman.core.errors import PartError
from dragoman.core.registry import Part, UnitInterval
from dragoman.core.types import Capacity, Memory, Output
from dragoman.nn.attention import Attention, AttentionSource
from dragoman.nn.decoders import decoders
from dragoman.nn.kernels.dropout import Dropout
from dragoman.nn.layers import linear
from dragoman.nn.normalizers import normalizers
from dragoman.nn.positions import positions
from dragoman.nn.scores import scores


@dataclass
class AttentionState:
    """The earlier inputs, the next position, and the prepared source."""

    x: Tensor | None  # (B, K, C, D): the earlier inputs; None where `past` is false
    t: Tensor  # (B, 1)
    source: AttentionSource


@decoders.register("attention")
class AttentionDecoder(nn.Module):
    """s_t from the inputs up to t by attention without parameters, then attention to the source: no recurrence."""

    def __init__(
        self,
        d_in: int,
        d_memory: int,
        *,
        position: Annotated[Part, positions] = Part("sinusoidal"),
        past: bool = True,
        score: Annotated[Part, scores] = Part("additive"),
        normalizer: Annotated[Part, normalizers] = Part("softmax"),
        dropout: UnitInterval = 0.1,
    ) -> None:
        super().__init__()
        self.d, self.past = d_in, past
        self.position = positions.build(position, d_in, None)
        self.max_positions = self.position.max_positions
        self.attention = Attention(d_in, d_memory, score, normalizer)
        if self.attention.score.uses_past_weights:
            raise PartError(
                f"score '{score.name}' needs the weights of earlier steps, but the decoder 'attention' computes all "
                "steps at once; use it in an rnn decoder"
            )
        self.W = linear(d_in + d_memory, d_in)
        self.dropout = Dropout(dropout)

    def forward(self, y: Tensor, memory: Memory) -> Output:
        """All target positions at once: y (B, T, D) → o (B, T, D) and the attention to the source."""
        t = torch.arange(y.shape[1], device=y.device)[None]  # (1, T)
        x = s = self.dropout(self.position(y, t))  # (B, T, D)
        if self.past:
            s = x + scaled_dot_product_attention(x, x, x, is_causal=True)
        return self.attend_to_source(s, t, self.attention.prepare_source(memory))

    def start(self, memory: Memory, capacity: Capacity) -> AttentionState:
        """The state before the first step: no earlier inputs, t = 0, and the prepared source."""
        h = memory.states
        x = h.new_zeros(h.shape[0], *capacity, self.d) if self.past else None
        return AttentionState(x, memory.lengths.new_zeros(h.shape[0], 1), self.attention.prepare_source(memory))

    def step(self, y: Tensor, state: AttentionState) -> tuple[Output, AttentionState]:
        """One position of each hypothesis: y (B, K, D) → o (B, K, D), t + 1; writes x into the state."""
        x = s = self.dropout(self.position(y, state.t))  # (B, K, D)
        if state.x is not None:
            past, index = state.x, state.t[:, :, None, None]  # (B, K, C, D), (B, 1, 1, 1)
            past.scatter_(2, index.expand(-1, x.shape[1], 1, self.d), x[:, :, None].to(past.dtype))
            visible = torch.arange(past.shape[2], device=x.device) <= index  # (B, 1, 1, C)
            s = x + scaled_dot_product_attention(x[:, :, None].to(past.dtype), past, past, visible)[:, :, 0]
        return self.attend_to_source(s, state.t, state.source), replace(state, t=state.t + 1)

    def attend_to_source(self, s: Tensor, t: Tensor, source: AttentionSource) -> Output:
        """c = attend(s, h), o = tanh(W [s; c]) with dropout, for queries s (B, T or K, D) at positions t."""
        c, a, _, extras = self.attention(s, source, t)
        o = self.dropout(torch.tanh(self.W(torch.cat([s, c], -1))))
        return Output(o, a, extras)
