"""A recurrent decoder that looks at the source once a step, before or after its cell.

    before (Bahdanau)   c_t = attend(s_{t-1}, h)    s_t = g([y_{t-1}; c_t], s_{t-1})   o_t = tanh(W [s_t; c_t; y_{t-1}])
    after (Luong)       s_t = g([y_{t-1}; o_{t-1}], s_{t-1})    c_t = attend(s_t, h)   o_t = tanh(W [s_t; c_t])

In the second, o_{t-1} enters the cell only with input feeding; without it no step waits for an attention, so that the
whole target runs through the cell at once. s_0 comes from the encoder over the bridge.

B sentences, K hypotheses, T target and S source positions, L layers, D width of s and o.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from dragoman.core.errors import PartError
from dragoman.core.interfaces import Capacity, Memory, Output
from dragoman.core.registry import Part, Positive, Share
from dragoman.nn.attention import Attention, normalizers, scores
from dragoman.nn.decoders import decoders
from dragoman.nn.layers import linear

CELLS = {"lstm": (nn.LSTM, 2), "gru": (nn.GRU, 1)}


@dataclass
class RNNState:
    """The cell's state, (B, K, L, D) each; what came out last, (B, K, D); and the source as attention wants it."""

    s: tuple[Tensor, ...]
    o: Tensor
    keys: Tensor  # (B, 1, S, ·)
    values: Tensor  # (B, 1, S, D_memory)
    mask: Tensor  # (B, 1, S)


@decoders.register("rnn")
class RNNDecoder(nn.Module):
    """s_t = g(y_{t-1}, s_{t-1}) with attention before the cell (Bahdanau 2015) or after it (Luong 2015)."""

    def __init__(
        self,
        d_in: int,
        d_memory: int,
        *,
        cell: Literal["gru", "lstm"] = "lstm",
        layers: Positive = 1,
        width: Positive | None = None,
        order: Literal["before", "after"] = "after",
        input_feeding: bool = False,
        score: Annotated[Part, scores] = Part("additive"),
        normalizer: Annotated[Part, normalizers] = Part("softmax"),
        bridge: Literal["dense", "copy", "zero"] = "dense",
        dropout: Share = 0.1,
    ) -> None:
        super().__init__()
        if input_feeding and order == "before":
            raise PartError(
                "input feeding belongs to attention after the cell; with order 'before' the cell reads c already"
            )
        self.d = d = width or d_in
        self.layers, self.order, self.feeding, self.bridge = layers, order, input_feeding, bridge
        kind, self.tensors = CELLS[cell]
        d_extra = d_memory if order == "before" else d if input_feeding else 0
        self.rnn = kind(d_in + d_extra, d, layers, batch_first=True, dropout=dropout if layers > 1 else 0.0)
        self.attention = Attention(d, d_memory, score, normalizer)
        self.readout = linear(d + d_memory + (d_in if order == "before" else 0), d)
        self.dropout = nn.Dropout(dropout)
        if bridge == "dense":
            self.over = linear(d_memory, self.tensors * layers * d)

    # -- all at once -----------------------------------------------------------------------------------------------

    def forward(self, y: Tensor, memory: Memory) -> Output:
        state = self.start(memory, Capacity(1, y.shape[1]))
        if self.order == "after" and not self.feeding:
            s, _ = self.rnn(self.dropout(y), self.cell_state(state.s))  # (B, T, D)
            c, a = self.look(s, state)
            return Output(self.read(s, c, y), a)
        outputs = []
        for t in range(y.shape[1]):
            output, state = self.step(y[:, t : t + 1], state)
            outputs.append(output)
        return Output(
            torch.cat([o.o for o in outputs], 1),
            torch.cat([o.attention for o in outputs if o.attention is not None], 1),
        )

    # -- step by step ----------------------------------------------------------------------------------------------

    def start(self, memory: Memory, capacity: Capacity) -> RNNState:
        h, K = memory.states, capacity.hypotheses
        s = tuple(x[:, None].expand(-1, K, -1, -1).contiguous() for x in self.begin(memory))  # (B, K, L, D)
        keys = self.attention.prepare(h)
        return RNNState(s, h.new_zeros(h.shape[0], K, self.d), keys[:, None], h[:, None], memory.mask[:, None])

    def step(self, y: Tensor, state: RNNState) -> tuple[Output, RNNState]:
        y_in = self.dropout(y)  # (B, K, D_in)
        if self.order == "before":
            c, a = self.look(state.s[0][:, :, -1], state)  # (B, K, D_memory), (B, K, S)
            s, cell = self.advance(torch.cat([y_in, c], -1), state.s)  # (B, K, D)
        else:
            s, cell = self.advance(torch.cat([y_in, state.o], -1) if self.feeding else y_in, state.s)
            c, a = self.look(s, state)
        o = self.read(s, c, y)
        return Output(o, a), replace(state, s=cell, o=o)

    # -- the pieces of the equations -------------------------------------------------------------------------------

    def begin(self, memory: Memory) -> tuple[Tensor, ...]:
        """s_0, as (B, L, D) for each tensor of the cell's state."""
        B = memory.states.shape[0]
        if self.bridge == "dense":
            over = torch.tanh(self.over(memory.summary))
            return over.view(B, self.tensors, self.layers, self.d).unbind(1)
        if self.bridge == "zero":
            return (memory.states.new_zeros(B, self.layers, self.d),) * self.tensors
        final = memory.final
        if final is None or len(final) != self.tensors or final[0].shape[::2] != (self.layers, self.d):
            raise PartError(
                f"bridge 'copy' needs an RNN encoder with the same cell, {self.layers} layers and width {self.d}; "
                "use 'dense'"
            )
        return tuple(x.transpose(0, 1) for x in final)

    def look(self, q: Tensor, state: RNNState) -> tuple[Tensor, Tensor]:
        """c and a for queries (B, T or K, D): hypotheses are just more queries on the sentence's keys."""
        return self.attention(q, state.keys[:, 0], state.values[:, 0], state.mask)  # type: ignore[no-any-return]

    def advance(self, x: Tensor, s: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """One step of the cell for every hypothesis: x (B, K, ·) → s_t (B, K, D) and the new state."""
        B, K = x.shape[:2]
        out, cell = self.rnn(x.reshape(B * K, 1, -1), self.cell_state(s))
        tensors = cell if isinstance(cell, tuple) else (cell,)
        return out.reshape(B, K, -1), tuple(z.transpose(0, 1).reshape(B, K, *z.shape[::2]) for z in tensors)

    def cell_state(self, s: tuple[Tensor, ...]) -> Tensor | tuple[Tensor, ...]:
        """(B, K, L, D) each → (L, B·K, D), alone for a GRU and as a pair for an LSTM, as torch wants it."""
        flat = tuple(x.flatten(0, 1).transpose(0, 1).contiguous() for x in s)
        return flat if len(flat) > 1 else flat[0]

    def read(self, s: Tensor, c: Tensor, y: Tensor) -> Tensor:
        parts = [s, c, y] if self.order == "before" else [s, c]
        return self.dropout(torch.tanh(self.readout(torch.cat(parts, -1))))  # type: ignore[no-any-return]
