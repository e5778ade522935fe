"""Encoders without layers: the embedded source itself.

    identity   h_j = x_j + position        none   h_j = x_j, for a decoder that reads the source as a prefix

The summary is the mean of h over the real positions, zeros where there are none. B batch, S source length, D width.
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor, nn

from dragoman.core.registry import Part, UnitInterval
from dragoman.core.types import Memory, Segments
from dragoman.nn.encoders import encoders
from dragoman.nn.kernels.dropout import Dropout
from dragoman.nn.positions import positions


@encoders.register("identity")
class IdentityEncoder(nn.Module):
    """h_j = x_j + position: the embeddings, by default without positions."""

    def __init__(
        self, d_in: int, *, position: Annotated[Part, positions] = Part("none"), dropout: UnitInterval = 0.1
    ) -> None:
        super().__init__()
        self.d = d_in
        self.position = positions.build(position, d_in, None)
        self.max_positions = self.position.max_positions
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, segments: Segments) -> Memory:
        t = torch.arange(x.shape[1], device=x.device)[None]  # (1, S)
        h = self.dropout(self.position(x, t))
        return Memory(h, segments.lengths, segments.mean(h))


@encoders.register("none")
class NoEncoder(nn.Module):
    """h_j = x_j: the embedded tokens themselves, for a decoder with source: prefix."""

    def __init__(self, d_in: int) -> None:
        super().__init__()
        self.d = d_in

    def forward(self, x: Tensor, segments: Segments) -> Memory:
        return Memory(x, segments.lengths, segments.mean(x))
