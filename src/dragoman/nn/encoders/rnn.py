"""h_t = f(x_t, h_{t-1}), read in both directions; the top layer's two states stand side by side as h_j.

B batch, S source length, L layers, D width of h_j (both directions together).
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from dragoman.core.errors import PartError
from dragoman.core.interfaces import Memory, Segments
from dragoman.core.registry import Positive, Share
from dragoman.nn.encoders import encoders

CELLS = {"lstm": nn.LSTM, "gru": nn.GRU}


@encoders.register("rnn")
class RNNEncoder(nn.Module):
    """h_t = f(x_t, h_{t-1}), read in one direction or both."""

    def __init__(
        self,
        d_in: int,
        *,
        cell: Literal["gru", "lstm"] = "lstm",
        layers: Positive = 1,
        width: Positive | None = None,
        bidirectional: bool = True,
        dropout: Share = 0.1,
    ) -> None:
        super().__init__()
        self.d = width or d_in
        self.directions = 2 if bidirectional else 1
        if self.d % self.directions:
            raise PartError(f"a bidirectional RNN needs an even width, not {self.d}")
        self.dropout = nn.Dropout(dropout)
        self.rnn = CELLS[cell](
            d_in,
            self.d // self.directions,
            layers,
            batch_first=True,
            bidirectional=bidirectional,
            dropout=dropout if layers > 1 else 0.0,
        )

    def forward(self, x: Tensor, segments: Segments) -> Memory:
        x, lengths = self.dropout(x), segments.lengths
        # Packed, so that the backward direction begins at the last real token and padding is never read.
        packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        states, final = self.rnn(packed)
        h, _ = pad_packed_sequence(states, batch_first=True, total_length=x.shape[1])  # (B, S, D)
        tensors = final if isinstance(final, tuple) else (final,)
        joined = tuple(self.join(s) for s in tensors)  # (L, B, D) each
        return Memory(self.dropout(h), lengths, joined[0][-1], joined)

    def join(self, s: Tensor) -> Tensor:
        """(L · directions, B, D / directions) → (L, B, D)"""
        return torch.cat(s.view(-1, self.directions, *s.shape[1:]).unbind(1), -1)
