"""Every position looks at every other: N blocks of self-attention and feed-forward.

h = block_N(… block_1(x + position))        summary = mean of h over the real positions
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from dragoman.core.interfaces import Memory, Segments
from dragoman.core.registry import Part, Positive, Share
from dragoman.nn.attention import normalizers, scores
from dragoman.nn.blocks import Block, Style
from dragoman.nn.encoders import encoders
from dragoman.nn.layers import linear, norms, positions


@encoders.register("transformer")
class TransformerEncoder(nn.Module):
    """N blocks of self-attention over the whole source and feed-forward (Vaswani et al. 2017)."""

    def __init__(
        self,
        d_in: int,
        *,
        layers: Positive = 6,
        width: Positive | None = None,
        heads: Positive = 8,
        feedforward: Positive | None = None,
        activation: Literal["relu", "gelu"] = "relu",
        position: Annotated[Part, positions] = Part("sinusoidal"),
        norm: Annotated[Part, norms] = Part("layer"),
        norm_order: Literal["pre", "post"] = "pre",
        dropout: Share = 0.1,
        attention_dropout: Share = 0.0,
        score: Annotated[Part, scores] = Part("scaled_dot"),
        normalizer: Annotated[Part, normalizers] = Part("softmax"),
    ) -> None:
        super().__init__()
        self.d = d = width or d_in
        style = Style(
            heads, feedforward or 4 * d, activation, norm, norm_order, dropout, attention_dropout, score, normalizer
        )
        self.inward = linear(d_in, d) if d != d_in else nn.Identity()
        self.position = positions.build(position, d)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList([Block(d, None, style) for _ in range(layers)])
        self.norm = norms.build(norm, d) if norm_order == "pre" else nn.Identity()

    @property
    def length(self) -> int | None:
        """The longest source its positions allow."""
        return self.position.length

    def forward(self, x: Tensor, segments: Segments) -> Memory:
        real = segments.mask(x.shape[1])  # (B, S)
        h = self.dropout(self.position(self.inward(x), torch.arange(x.shape[1], device=x.device)))
        for block in self.blocks:
            h = block(h, real[:, None, None])
        h = self.norm(h)  # (B, S, D)
        total = (h * real[..., None]).sum(1)
        return Memory(h, segments.lengths, total / segments.lengths[:, None].to(h.dtype))
