"""A recurrent encoder in which every layer halves the number of positions (Listen, Attend and Spell, Chan et al. 2016).

    h⁰ = rnn(x)        hˡ = rnn([hˡ⁻¹_1; hˡ⁻¹_2], [hˡ⁻¹_3; hˡ⁻¹_4], …)        every layer in both directions

After n such layers ⌈S/2ⁿ⌉ states are left to attend to. The last of an odd number of positions is paired with zeros.

B batch, S source length, L layers, D width of h (both directions together).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dragoman.core.registry import PositiveInt, UnitInterval
from dragoman.core.types import Memory, Segments
from dragoman.nn.encoders import encoders
from dragoman.nn.kernels.dropout import Dropout
from dragoman.nn.layers import stack_neighbors
from dragoman.nn.recurrent import Cell, RNNStack


@encoders.register("pyramid")
class PyramidEncoder(nn.Module):
    """A bidirectional RNN, and `layers` more above it, each over pairs of the states below (Chan et al. 2016)."""

    def __init__(
        self,
        d_in: int,
        *,
        cell: Cell = "lstm",
        layers: PositiveInt = 3,  # each halves the number of positions
        width: PositiveInt | None = None,
        dropout: UnitInterval = 0.1,
    ) -> None:
        super().__init__()
        self.d, self.stride = width or d_in, 2**layers
        self.dropout = Dropout(dropout)
        self.bottom = RNNStack(d_in, self.d, 1, cell, directions="both")
        self.upper = nn.ModuleList([RNNStack(2 * self.d, self.d, 1, cell, directions="both") for _ in range(layers)])

    def forward(self, x: Tensor, segments: Segments) -> Memory:
        """x (B, S, D_in) → Memory: states (B, ⌈S/2ⁿ⌉, D), summary, and the final state of every layer."""
        lengths = segments.lengths
        h, final = self.bottom(self.dropout(x), lengths=lengths)  # (B, S, D), (1, B, D) each
        final_states = [final]
        for layer in self.upper:
            h, lengths = stack_neighbors(self.dropout(h), lengths, 2)  # (B, ⌈S/2⌉, 2D)
            h, final = layer(h, lengths=lengths)
            final_states.append(final)
        finals = tuple(torch.cat(states) for states in zip(*final_states, strict=True))  # (L, B, D) each
        return Memory(self.dropout(h), lengths, finals[0][-1], finals)
