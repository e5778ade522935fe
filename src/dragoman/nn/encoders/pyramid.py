"""A recurrent encoder whose layers read ever fewer positions (Listen, Attend and Spell, Chan et al. 2016).

    h⁰ = rnn(x)        hˡ = rnn([hˡ⁻¹_1; hˡ⁻¹_2], [hˡ⁻¹_3; hˡ⁻¹_4], …)        every layer in both directions

After n such layers ⌈S/2ⁿ⌉ states are left for attention to choose among. Where a row has an odd number of positions,
zeros stand beside its last.

B batch, S source length, L layers, D width of h (both directions together).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dragoman.core.registry import PositiveInt, UnitInterval
from dragoman.core.types import Memory, Segments
from dragoman.nn.encoders import encoders
from dragoman.nn.kernels.dropout import Dropout
from dragoman.nn.recurrent import Cell, Stack


@encoders.register("pyramid")
class PyramidEncoder(nn.Module):
    """A bidirectional RNN, and `layers` more above it, each over pairs of what is below (Chan et al. 2016)."""

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
        self.bottom = Stack(d_in, self.d, 1, cell, directions="both")
        self.upper = nn.ModuleList([Stack(2 * self.d, self.d, 1, cell, directions="both") for _ in range(layers)])

    def forward(self, x: Tensor, segments: Segments) -> Memory:
        lengths = segments.lengths
        h, end = self.bottom(self.dropout(x), lengths=lengths)  # (B, S, D), (1, B, D) each
        ends = [end]
        for layer in self.upper:
            h, lengths = pairs(self.dropout(h), lengths)
            h, end = layer(h, lengths=lengths)
            ends.append(end)
        final = tuple(torch.cat(states) for states in zip(*ends, strict=True))  # (L, B, D) each
        return Memory(self.dropout(h), lengths, final[0][-1], final)


def pairs(x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """(B, S, D) → (B, ⌈S/2⌉, 2D), and the lengths that go with it."""
    x = x.masked_fill(~Segments(lengths).mask(x.shape[1])[..., None], 0.0)
    x = nn.functional.pad(x, (0, 0, 0, x.shape[1] % 2))
    return x.view(x.shape[0], x.shape[1] // 2, 2 * x.shape[2]), (lengths + 1) // 2
