"""Every position attends to every other: N blocks of self-attention and feed-forward.

h = block_N(… block_1(x + position))        summary = mean of h over the real positions
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from dragoman.core.registry import Part, PositiveInt, UnitInterval
from dragoman.core.types import Memory, Segments
from dragoman.nn.attention import AttentionMask, MultiHeadConfig
from dragoman.nn.blocks import TransformerStack
from dragoman.nn.encoders import encoders
from dragoman.nn.layers import Activation, norms
from dragoman.nn.normalizers import normalizers
from dragoman.nn.positions import positions
from dragoman.nn.scores import scores
from dragoman.nn.token_mixers import BlockConfig, mixers


@encoders.register("transformer")
class TransformerEncoder(nn.Module):
    """N blocks of self-attention over the whole source and feed-forward (Vaswani et al. 2017)."""

    def __init__(
        self,
        d_in: int,
        *,
        layers: PositiveInt = 6,
        width: PositiveInt | None = None,
        heads: PositiveInt = 8,
        key_heads: PositiveInt | None = None,
        key_width: PositiveInt | None = None,
        value_width: PositiveInt | None = None,
        feedforward: PositiveInt | None = None,
        activation: Activation = "relu",
        position: Annotated[Part, positions] = Part("sinusoidal"),
        norm: Annotated[Part, norms] = Part("layer"),
        norm_order: Literal["pre", "post"] = "pre",
        embedding_norm: bool = False,
        bias: bool = True,
        dropout: UnitInterval = 0.1,
        attention_dropout: UnitInterval = 0.0,
        layer_drop: UnitInterval = 0.0,
        shared: bool = False,  # all layers share one set of weights
        mixer: Annotated[Part, mixers] = Part("attention"),
        score: Annotated[Part, scores] = Part("scaled_dot"),
        normalizer: Annotated[Part, normalizers] = Part("softmax"),
        fold_scaling_into_initializer: bool = False,  # initialize W_q smaller by √d_k, for score: dot (T5)
    ) -> None:
        super().__init__()
        self.d = d = width or d_in
        widths, folded = (key_heads, key_width, value_width), fold_scaling_into_initializer
        attention = MultiHeadConfig(heads, score, normalizer, attention_dropout, *widths, bias, folded)
        config = BlockConfig(
            attention, feedforward or 4 * d, activation, norm, norm_order, dropout, mixer, causal=False
        )
        self.stack = TransformerStack(d_in, d, None, layers, config, position, layer_drop, embedding_norm, shared)
        self.max_positions = self.stack.max_positions

    def packing_blocker(self) -> str | None:
        return self.stack.packing_blocker()

    def forward(self, x: Tensor, segments: Segments) -> Memory:
        """x (B, S, D_in) padded, or (1, N, D_in) packed → states alike; their mean as summary (padded only)."""
        if segments.positions is not None:
            h = self.stack(x, AttentionMask(segments.positions, None, packed=(segments, segments)))  # (1, N, D)
            return Memory(h, segments.lengths, h[0, :0], packed=segments)
        real = segments.mask(x.shape[1])  # (B, S)
        t = torch.arange(x.shape[1], device=x.device)[None]
        mask = AttentionMask(t, real[:, None, None], lengths=segments.lengths[:, None, None], real=real)
        h = self.stack(x, mask)  # (B, S, D)
        return Memory(h, segments.lengths, segments.mean(h))
