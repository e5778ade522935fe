"""A stack of gated convolutions: every layer widens the context by k − 1 positions (ConvS2S, Gehring et al. 2017).

    e = x + position      h⁰ = W_in e      hˡ_i = (GLU(conv_k(hˡ⁻¹)_i) + hˡ⁻¹_i)·√½      z = W_out hᴺ

Attention uses z as keys and (z + e)·√½ as values: a word in its context, and the word itself. In every layer the
inputs before the first and after the last real position are zeros.

B batch, S source length, D width of x, e and z; the width of h is an option.
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor, nn

from dragoman.core.errors import PartError
from dragoman.core.registry import Part, PositiveInt, UnitInterval
from dragoman.core.types import Memory, Segments
from dragoman.nn.convolution import GatedConvolution, add_scaled, projection
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
                f"a convolutional encoder needs an odd kernel, centered on a position, not {kernel}; use {kernel + 1}"
            )
        self.d, self.padding = d_in, kernel // 2
        width, keep = width or d_in, 1.0 - dropout
        self.position = positions.build(position, d_in, None)
        self.max_positions = self.position.max_positions
        self.dropout = Dropout(dropout)
        self.input_proj = projection(d_in, width, keep, weight_norm)
        self.layers = nn.ModuleList([GatedConvolution(width, kernel, keep, weight_norm) for _ in range(layers)])
        self.output_proj = projection(width, d_in, 1.0, weight_norm)

    def forward(self, x: Tensor, segments: Segments) -> Memory:
        """x (B, S, D) → Memory: the states z (B, S, D), their mean as summary, and the values (z + e)·√½."""
        real = segments.mask(x.shape[1])[..., None]  # (B, S, 1)
        e = self.dropout(self.position(x, torch.arange(x.shape[1], device=x.device)[None]))  # (B, S, D)
        h = self.input_proj(e)
        for convolve in self.layers:
            # Padding is zeroed in every layer: its outputs would leak into real positions in the next one.
            padded = nn.functional.pad(self.dropout(h).masked_fill(~real, 0.0), (0, 0, self.padding, self.padding))
            h = add_scaled(convolve(padded), h)
        z = self.output_proj(h)  # (B, S, D)
        return Memory(z, segments.lengths, segments.mean(z), values=add_scaled(z, e))
