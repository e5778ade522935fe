"""h_t = f(x_t, h_{t-1}), read in one direction or both; the top layer's states stand for the source's positions.

    both    h_j = [forward_j; backward_j] in every layer
    first   only the bottom layer reads in both directions, those above go forward (GNMT 2016)
    one     forward only

Read in reverse (Sutskever 2014), x_1 is read last, next to the target's beginning; h_j still stands for x_j.

B batch, S source length, L layers, D width of h_j (both directions together).
"""

from __future__ import annotations

from torch import Tensor, nn

from dragoman.core.registry import NonNegativeInt, PositiveInt, UnitInterval
from dragoman.core.types import Memory, Segments
from dragoman.nn.encoders import encoders
from dragoman.nn.kernels.dropout import Dropout
from dragoman.nn.recurrent import Cell, Directions, Reset, Stack, backwards


@encoders.register("rnn")
class RNNEncoder(nn.Module):
    """h_t = f(x_t, h_{t-1}), read in one direction or both; `residual` is the first layer that adds its input."""

    def __init__(
        self,
        d_in: int,
        *,
        cell: Cell = "lstm",
        reset: Reset = "after",
        layers: PositiveInt = 1,
        width: PositiveInt | None = None,
        directions: Directions = "both",
        residual: NonNegativeInt = 0,
        reverse: bool = False,
        dropout: UnitInterval = 0.1,
    ) -> None:
        super().__init__()
        self.d = width or d_in
        self.reverse = reverse
        self.dropout = Dropout(dropout)
        self.stack = Stack(d_in, self.d, layers, cell, reset, directions, residual, dropout)

    def forward(self, x: Tensor, segments: Segments) -> Memory:
        x, lengths = self.dropout(x), segments.lengths
        if self.reverse:
            x = backwards(x, lengths)
        h, final = self.stack(x, lengths=lengths)  # (B, S, D), (L, B, D) each
        if self.reverse:
            h = backwards(h, lengths)
        return Memory(self.dropout(h), lengths, final[0][-1], final)
