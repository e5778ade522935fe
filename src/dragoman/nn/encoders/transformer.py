"""Every position looks at every other: N blocks of self-attention and feed-forward.

h = block_N(… block_1(x + position))        summary = mean of h over the real positions
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from dragoman.core.registry import Part, PositiveInt, UnitInterval
from dragoman.core.types import Memory, Segments
from dragoman.nn.attention import Heads, Places
from dragoman.nn.blocks import Stack, Style
from dragoman.nn.encoders import encoders
from dragoman.nn.layers import Activation, norms
from dragoman.nn.normalizers import normalizers
from dragoman.nn.positions import positions
from dragoman.nn.scores import scores
from dragoman.nn.token_mixers import mixers


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
        shared: bool = False,  # one layer's weights for all of them
        mixer: Annotated[Part, mixers] = Part("attention"),
        score: Annotated[Part, scores] = Part("scaled_dot"),
        normalizer: Annotated[Part, normalizers] = Part("softmax"),
        fold_scaling_into_initializer: bool = False,  # W_q begins smaller by √d_k, for score: dot (T5)
    ) -> None:
        super().__init__()
        self.d = d = width or d_in
        widths, folded = (key_heads, key_width, value_width), fold_scaling_into_initializer
        side = Heads(heads, score, normalizer, attention_dropout, *widths, bias, folded)
        style = Style(side, feedforward or 4 * d, activation, norm, norm_order, dropout, mixer, causal=False)
        self.stack = Stack(d_in, d, None, layers, style, position, layer_drop, embedding_norm, shared)

    @property
    def length(self) -> int | None:
        """The longest source its positions allow."""
        return self.stack.length

    def packs(self) -> str | None:
        """Why rows that lie end to end cannot run through it; None: they can."""
        return self.stack.packs()

    def forward(self, x: Tensor, segments: Segments) -> Memory:
        if segments.places is not None:
            h = self.stack(x, Places(segments.places, None, packed=(segments, segments)))  # (1, N, D)
            return Memory(h, segments.lengths, h[0, :0], packed=segments)
        real = segments.mask(x.shape[1])  # (B, S)
        t = torch.arange(x.shape[1], device=x.device)[None]
        h = self.stack(x, Places(t, real[:, None, None], False, segments.lengths[:, None, None], real))  # (B, S, D)
        return Memory(h, segments.lengths, segments.mean(h))
