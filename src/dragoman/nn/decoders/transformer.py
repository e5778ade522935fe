"""Each position looks at those before it and at the source: N blocks of causal self-, cross-attention and feed-forward.

    o = block_N(… block_1(y + position, memory) …)

B sentences, K hypotheses, T target and S source positions, D width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from dragoman.core.interfaces import Capacity, Memory, Output
from dragoman.core.registry import Part, Positive, Share
from dragoman.nn.attention import normalizers, noted, scores
from dragoman.nn.blocks import Block, Cache, Style
from dragoman.nn.decoders import decoders
from dragoman.nn.layers import linear, norms, positions


@dataclass
class TransformerState:
    """A cache for each block, the next position (B, 1), and which source positions are real (B, 1, S)."""

    caches: list[Cache]
    t: Tensor
    mask: Tensor


@decoders.register("transformer")
class TransformerDecoder(nn.Module):
    """N blocks of causal self-attention, cross-attention and feed-forward (Vaswani et al. 2017)."""

    def __init__(
        self,
        d_in: int,
        d_memory: int,
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
        self.blocks = nn.ModuleList([Block(d, d_memory, style) for _ in range(layers)])
        self.norm = norms.build(norm, d) if norm_order == "pre" else nn.Identity()

    @property
    def length(self) -> int | None:
        """The longest target its positions allow."""
        return self.position.length

    def embed(self, y: Tensor, t: Tensor) -> Tensor:
        return self.dropout(self.position(self.inward(y), t))  # type: ignore[no-any-return]

    def forward(self, y: Tensor, memory: Memory) -> Output:
        x = self.embed(y, torch.arange(y.shape[1], device=y.device))  # (B, T, D)
        # No padding mask on the target: padding comes last, so that no real position looks at it.
        for block in self.blocks:
            x = block(x, None, True, memory.states, memory.mask[:, None, None])
        return Output(self.norm(x), self.alignment())

    def alignment(self) -> Tensor | None:
        """Where a watched pass looked, (B, T, S): the mean over the heads of all layers."""
        weights = [noted(block.cross_attention) for block in self.blocks]  # type: ignore[arg-type]
        seen = [a.mean(1) for a in weights if a is not None]
        return torch.stack(seen).mean(0) if seen else None

    def start(self, memory: Memory, capacity: Capacity) -> TransformerState:
        states, (hypotheses, length) = memory.states, capacity
        caches = [block.start(states, hypotheses, length, states) for block in self.blocks]  # type: ignore[operator]
        return TransformerState(caches, memory.lengths.new_zeros(states.shape[0], 1), memory.mask[:, None])

    def step(self, y: Tensor, state: TransformerState) -> tuple[Output, TransformerState]:
        x = self.embed(y, state.t)  # (B, K, D)
        for block, cache in zip(self.blocks, state.caches, strict=True):
            x = block.step(x, cache, state.t, state.mask[:, None])  # type: ignore[operator]
        return Output(self.norm(x)), TransformerState(state.caches, state.t + 1, state.mask)
