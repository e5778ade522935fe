"""A recurrent encoder: h_t = f(x_t, h_{t-1}), in one direction or both.

    both    h_j = [forward_j; backward_j] in every layer
    first   only the bottom layer is bidirectional, those above run forward (GNMT 2016)
    one     forward only

With `reverse` (Sutskever 2014) x_1 is read last, next to the start of the target; h_j still belongs to x_j.

B batch, S source length, L layers, D width of h_j (both directions together).
"""

from __future__ import annotations

from torch import Tensor, nn

from dragoman.core.registry import NonNegativeInt, PositiveInt, UnitInterval
from dragoman.core.types import Memory, Segments
from dragoman.nn.encoders import encoders
from dragoman.nn.kernels.dropout import Dropout
from dragoman.nn.recurrent import Cell, Directions, Reset, RNNStack, reverse_sequences


@encoders.register("rnn")
class RNNEncoder(nn.Module):
    """h_t = f(x_t, h_{t-1}), in one direction or both; `residual` is the first layer that adds its input (0: none)."""

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
        self.stack = RNNStack(d_in, self.d, layers, cell, reset, directions, residual, dropout)

    def forward(self, x: Tensor, segments: Segments) -> Memory:
        """x (B, S, D_in) → Memory: the top layer's states (B, S, D), the final states of all layers, and a summary."""
        x, lengths = self.dropout(x), segments.lengths
        if self.reverse:
            x = reverse_sequences(x, lengths)
        h, final = self.stack(x, lengths=lengths)  # (B, S, D), (L, B, D) each
        if self.reverse:
            h = reverse_sequences(h, lengths)
        return Memory(self.dropout(h), lengths, final[0][-1], final)
