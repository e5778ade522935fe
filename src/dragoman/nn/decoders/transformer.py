"""Each position looks at those before it and at the source: N blocks of causal self-, cross-attention and feed-forward.

    o = block_N(… block_1(y + position, memory) …)

or, without cross-attention, one network over source and target: the source stands before the target in the same
sequence. It is read from left to right (`prefix`: GPT-2), or seen by itself in both directions (`full_prefix`: UniLM).

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
from dragoman.nn.attention import Heads, Places, notes
from dragoman.nn.blocks import BlockState, Stack, Style
from dragoman.nn.decoders import decoders
from dragoman.nn.layers import Activation, norms
from dragoman.nn.normalizers import normalizers
from dragoman.nn.positions import positions
from dragoman.nn.prefix import behind, joined
from dragoman.nn.scores import scores
from dragoman.nn.token_mixers import mixers


@dataclass
class TransformerState:
    """The state of each block, the next position (B, 1), and which source positions are real (B, 1, S)."""

    blocks: list[BlockState]
    t: Tensor
    mask: Tensor
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
        shared: bool = False,  # one layer's weights for all of them
        mixer: Annotated[Part, mixers] = Part("attention"),
        score: Annotated[Part, scores] = Part("scaled_dot"),
        normalizer: Annotated[Part, normalizers] = Part("softmax"),
        fold_scaling_into_initializer: bool = False,  # W_q begins smaller by √d_k, for score: dot (T5)
    ) -> None:
        super().__init__()
        self.d = d = width or d_in
        self.d_in, self.source = d_in, source
        if source != "attention" and d_memory != d_in:
            raise PartError(
                f"source: {source} reads the embedded source itself, of width {d_in}, but the encoder gives "
                f"{d_memory}; use encoder: none"
            )
        if source == "full_prefix" and mixers[mixer.name].left_to_right:  # type: ignore[attr-defined]
            raise PartError(
                f"'{mixer.name}' reads from left to right and cannot see a prefix whole; use source: prefix"
            )
        widths, folded = (key_heads, key_width, value_width), fold_scaling_into_initializer
        side = Heads(heads, score, normalizer, attention_dropout, *widths, bias, folded)
        style = Style(side, feedforward or 4 * d, activation, norm, norm_order, dropout, mixer, causal=True)
        across = d_memory if source == "attention" else None
        self.stack = Stack(d_in, d, across, layers, style, position, layer_drop, embedding_norm, shared)

    @property
    def length(self) -> int | None:
        """The longest target its positions allow, or the longest source and target together."""
        return self.stack.length

    def packs(self) -> str | None:
        """Why rows that lie end to end cannot run through it; None: they can."""
        if self.source != "attention":
            return "source and target in one sequence are padded"
        return self.stack.packs()

    def forward(self, y: Tensor, memory: Memory, segments: Segments | None = None) -> Output:
        if segments is not None and segments.places is not None and memory.packed is not None:
            return Output(self.packed(y, memory, segments, segments.places, memory.packed))
        if self.source != "attention":
            return self.as_one(y, memory)
        t = torch.arange(y.shape[1], device=y.device)[None]
        # No padding mask on the target: padding comes last, so that no real position looks at it.
        across = Places(t, memory.mask[:, None, None], lengths=memory.lengths[:, None, None])
        o = self.stack(y, Places(t, None, True, t[:, None] + 1), memory, across)
        return Output(o, self.alignment())

    def packed(self, y: Tensor, memory: Memory, segments: Segments, t: Tensor, sources: Segments) -> Tensor:
        """Targets that lie end to end, (1, N, D_in), over sources that do."""
        inside = Places(t, None, True, packed=(segments, segments))
        return self.stack(y, inside, memory, Places(t, None, packed=(segments, sources)))  # type: ignore[no-any-return]

    def as_one(self, y: Tensor, memory: Memory) -> Output:
        """Source and target as one sequence."""
        x = joined(memory.states, memory.lengths, y)  # (B, S + T, D_in)
        o = self.stack(x, self.places(x, memory))
        S = memory.states.shape[1]
        return Output(behind(o, memory.lengths, y.shape[1]), extras={"prefix": o[:, :S]})

    def places(self, x: Tensor, memory: Memory) -> Places:
        """Who sees whom in one sequence x (B, S, D)."""
        s = torch.arange(x.shape[1], device=x.device)[None]
        t = s if self.length is None else s.clamp(max=self.length - 1)  # only padding stands farther out
        if self.source == "prefix":
            return Places(t, None, True, s[:, None] + 1)
        earlier = (s[0] <= s[0, :, None])[None]  # (1, S, S)
        mask = earlier | (s < memory.lengths[:, None])[:, None]  # the source is seen by everyone, itself included
        return Places(t, mask[:, None], False, torch.maximum(s + 1, memory.lengths[:, None])[:, None])

    def alignment(self) -> Tensor | None:
        """Where a watched pass looked, (B, T, S): the mean over the heads of all layers."""
        every = [block.cross_attention for block in self.stack.blocks]
        seen = [a.mean(1) for module in dict.fromkeys(every) for a in notes(module, every.count(module))]  # type: ignore[arg-type]
        return torch.stack(seen).mean(0) if seen else None

    def start(self, memory: Memory, capacity: Capacity) -> TransformerState:
        x, lengths, begin = memory.states, memory.lengths, memory.lengths[:, None]
        if self.source == "attention":
            before, begin, past = x.new_zeros(x.shape[0], 0, self.d_in), begin * 0, lengths * 0
        else:
            before, past = x, lengths
        blocks = self.stack.start(before, self.places(before, memory), past, memory, *capacity)
        return TransformerState(blocks, begin, memory.mask[:, None], lengths[:, None])

    def step(self, y: Tensor, state: TransformerState) -> tuple[Output, TransformerState]:
        across = Places(state.t, state.mask[:, None], lengths=state.lengths[:, None])
        o, blocks = self.stack.step(y, state.blocks, state.t, across)  # (B, K, D)
        return Output(o, self.alignment()), TransformerState(blocks, state.t + 1, state.mask, state.lengths)
