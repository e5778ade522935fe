"""Transformer decoder: N blocks of causal self-attention, cross-attention and feed-forward.

    o = block_N(… block_1(y + position, memory) …)

or decoder-only, without cross-attention: source and target are one sequence, in which the source is read from left to
right (`prefix`: GPT-2), or attends to itself in both directions (`full_prefix`: UniLM).

    [o_x; o_y] = block_N(… block_1([x; y] + position) …)

B sentences, K hypotheses, T target and S source positions, D width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from dragoman.core.errors import PartError
from dragoman.core.registry import Part, PositiveInt, UnitInterval
from dragoman.core.types import Capacity, Memory, Output, Segments
from dragoman.nn.attention import AttentionMask, MultiHeadConfig, recorded_weights
from dragoman.nn.blocks import BlockState, TransformerStack
from dragoman.nn.decoders import decoders
from dragoman.nn.layers import Activation, norms
from dragoman.nn.normalizers import normalizers
from dragoman.nn.positions import positions
from dragoman.nn.prefix import append_after_lengths, slice_after_lengths
from dragoman.nn.scores import scores
from dragoman.nn.token_mixers import BlockConfig, mixers


@dataclass
class TransformerState:
    """The state of each block, the next position, and the padding mask and lengths of the source."""

    blocks: list[BlockState]
    t: Tensor  # (B, 1)
    mask: Tensor  # (B, 1, S): false at padding
    lengths: Tensor  # (B, 1)


@decoders.register("transformer")
class TransformerDecoder(nn.Module):
    """N blocks of causal self-attention, cross-attention and feed-forward (Vaswani et al. 2017); or decoder-only."""

    def __init__(
        self,
        d_in: int,
        d_memory: int,
        *,
        source: Literal["attention", "prefix", "full_prefix"] = "attention",
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
        self.d_in, self.source = d_in, source
        if source != "attention" and d_memory != d_in:
            raise PartError(
                f"source: {source} needs an embedded source of width {d_in}, but the encoder gives {d_memory}; "
                "use encoder: none"
            )
        if source == "full_prefix" and mixers[mixer.name].is_left_to_right:  # type: ignore[attr-defined]
            raise PartError(
                f"mixer '{mixer.name}' reads from left to right, which source: full_prefix does not; use source: prefix"
            )
        widths, folded = (key_heads, key_width, value_width), fold_scaling_into_initializer
        attention = MultiHeadConfig(heads, score, normalizer, attention_dropout, *widths, bias, folded)
        config = BlockConfig(attention, feedforward or 4 * d, activation, norm, norm_order, dropout, mixer, causal=True)
        d_cross = d_memory if source == "attention" else None
        self.stack = TransformerStack(d_in, d, d_cross, layers, config, position, layer_drop, embedding_norm, shared)
        self.max_positions = self.stack.max_positions  # of the target, or of source and target together

    def packing_blocker(self) -> str | None:
        if self.source != "attention":
            return "decoder-only models support only padded rows"
        return self.stack.packing_blocker()

    def forward(self, y: Tensor, memory: Memory, segments: Segments | None = None) -> Output:
        """y (B, T, D_in) → o (B, T, D); with packed `segments`, (1, N, D_in) → (1, N, D)."""
        if segments is not None and segments.positions is not None and memory.packed is not None:
            mask = AttentionMask(segments.positions, None, True, packed=(segments, segments))
            cross_mask = AttentionMask(segments.positions, None, packed=(segments, memory.packed))
            return Output(self.stack(y, mask, memory, cross_mask))
        if self.source != "attention":
            return self.decode_with_prefix(y, memory)
        t = torch.arange(y.shape[1], device=y.device)[None]
        # No padding mask on the target: padding comes last, so that no real position attends to it.
        cross_mask = AttentionMask(t, memory.mask[:, None, None], lengths=memory.lengths[:, None, None])
        o = self.stack(y, AttentionMask(t, None, True, t[:, None] + 1), memory, cross_mask)
        return Output(o, self.mean_cross_attention())

    def decode_with_prefix(self, y: Tensor, memory: Memory) -> Output:
        """Source and target as one sequence: o of the target, and o of the source as the extra "prefix"."""
        x = append_after_lengths(memory.states, memory.lengths, y)  # (B, S + T, D_in)
        o = self.stack(x, self.prefix_mask(x, memory))
        S = memory.states.shape[1]
        return Output(slice_after_lengths(o, memory.lengths, y.shape[1]), extras={"prefix": o[:, :S]})

    def prefix_mask(self, x: Tensor, memory: Memory) -> AttentionMask:
        """The mask of x (B, S, D), which starts with the source: causal, or with the source visible to all."""
        s = torch.arange(x.shape[1], device=x.device)[None]
        t = s if self.max_positions is None else s.clamp(max=self.max_positions - 1)  # only padding is farther out
        if self.source == "prefix":
            return AttentionMask(t, None, True, s[:, None] + 1)
        earlier = (s[0] <= s[0, :, None])[None]  # (1, S, S)
        allowed = earlier | (s < memory.lengths[:, None])[:, None]  # every position attends to the whole source
        return AttentionMask(t, allowed[:, None], False, torch.maximum(s + 1, memory.lengths[:, None])[:, None])

    def mean_cross_attention(self) -> Tensor | None:
        """The recorded cross-attention weights, averaged over all heads and layers, (B, T, S); None: not recorded."""
        modules = [block.cross_attention for block, _ in self.stack.layers()]  # shared layers several times
        weights = [a.mean(1) for m in dict.fromkeys(modules) for a in recorded_weights(m, modules.count(m))]
        return torch.stack(weights).mean(0) if weights else None

    def start(self, memory: Memory, capacity: Capacity) -> TransformerState:
        """The state before the first step, at t = 0; decoder-only models read the source here and start after it."""
        x, lengths, t = memory.states, memory.lengths, memory.lengths[:, None]
        if self.source == "attention":
            prefix, t, prefix_lengths = x.new_zeros(x.shape[0], 0, self.d_in), t * 0, lengths * 0
        else:
            prefix, prefix_lengths = x, lengths
        blocks = self.stack.start(prefix, self.prefix_mask(prefix, memory), prefix_lengths, memory, *capacity)
        return TransformerState(blocks, t, memory.mask[:, None], lengths[:, None])

    def step(self, y: Tensor, state: TransformerState) -> tuple[Output, TransformerState]:
        """One position of each hypothesis: y (B, K, D_in) → o (B, K, D), t + 1; writes into the caches of the state."""
        cross_mask = AttentionMask(state.t, state.mask[:, None], lengths=state.lengths[:, None])
        o, blocks = self.stack.step(y, state.blocks, state.t, cross_mask)  # (B, K, D)
        return Output(o, self.mean_cross_attention()), TransformerState(blocks, state.t + 1, state.mask, state.lengths)
