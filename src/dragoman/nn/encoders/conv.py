"""A stack of gated convolutions: every layer sees k − 1 neighbors more (ConvS2S, Gehring et al. 2017).

    e = x + position      h⁰ = W_in e      hˡ_i = (GLU(conv_k(hˡ⁻¹)_i) + hˡ⁻¹_i)·√½      z = W_out hᴺ

Attention compares with z and averages (z + e)·√½: what a place means around its word, and the word itself.
Before the first position and after the last real one there are zeros in every layer, padding or not.

B batch, S source length, D width of x, e and z; the width of h is an option.
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor, nn

from dragoman.core.errors import PartError
from dragoman.core.registry import Part, PositiveInt, UnitInterval
from dragoman.core.types import Memory, Segments
from dragoman.nn.convolution import GatedConvolution, halved, projection
from dragoman.nn.encoders import encoders
from dragoman.nn.kernels.dropout import Dropout
from dragoman.nn.positions import positions


@encoders.register("conv")
class ConvEncoder(nn.Module):
    """N gated convolutions over the source with residuals (ConvS2S, Gehring et al. 2017)."""

    def __init__(
        self,
        d_in: int,
        *,
        layers: PositiveInt = 6,
        width: PositiveInt | None = None,
        kernel: PositiveInt = 3,
        position: Annotated[Part, positions] = Part("learned"),
        dropout: UnitInterval = 0.1,
        weight_norm: bool = False,
    ) -> None:
        super().__init__()
        if kernel % 2 == 0:
            raise PartError(
                f"a convolutional encoder needs an odd kernel, so that a position is in its middle, not {kernel}; "
                f"use {kernel + 1}"
            )
        self.d, self.side = d_in, kernel // 2
        width, keep = width or d_in, 1.0 - dropout
        self.position = positions.build(position, d_in, None)
        self.dropout = Dropout(dropout)
        self.inward = projection(d_in, width, keep, weight_norm)
        self.layers = nn.ModuleList([GatedConvolution(width, kernel, keep, weight_norm) for _ in range(layers)])
        self.outward = projection(width, d_in, 1.0, weight_norm)

    @property
    def length(self) -> int | None:
        """The longest source its positions allow."""
        return self.position.length

    def forward(self, x: Tensor, segments: Segments) -> Memory:
        real = segments.mask(x.shape[1])[..., None]  # (B, S, 1)
        e = self.dropout(self.position(x, torch.arange(x.shape[1], device=x.device)[None]))  # (B, S, D)
        h = self.inward(e)
        for convolve in self.layers:
            # Zeroed in every layer, since what a layer writes into padding would come back through the next one.
            near = nn.functional.pad(self.dropout(h).masked_fill(~real, 0.0), (0, 0, self.side, self.side))
            h = halved(convolve(near), h)
        z = self.outward(h)  # (B, S, D)
        return Memory(z, segments.lengths, segments.mean(z), values=halved(z, e))
