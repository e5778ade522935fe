"""Causal gated convolutions with attention to the source in every layer (ConvS2S), or decoder-only (a CNN LM).

    g = y + position       h⁰ = W_in g       for each layer, with u = hˡ⁻¹ and zeros before its first position:

    v_i = GLU(conv_k(u_{i−k+1} … u_i))
    d_i = W_d v_i + b_d + g_i      a_i = normalize(score(d_i, z))      c_i = √m Σ_j a_ij (z_j + e_j)
    v_i ← (v_i + W_o c_i)·√½                                           only with source 'attention'
    hˡ_i = (v_i + u_i)·√½

    o = W_out hᴺ

z are the memory's states, z + e its values (the states where it has none), m the number of real source positions: a
mean of m vectors has an m-th of their variance, which √m = m·√(1/m) restores. With source 'prefix' source and target
are one sequence without padding between them, and there is no attention.

A step needs the last k − 1 inputs of each layer. So training and decoding share one function: x (B, K, T, ·) follows
past (B, K, k − 1, ·), with K = 1 (all positions at once) or T = 1 (a step).

B sentences, K hypotheses, T target and S source positions, D width of h.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from dragoman.core.errors import PartError
from dragoman.core.registry import Part, PositiveInt, UnitInterval
from dragoman.core.types import Capacity, Memory, Output
from dragoman.nn.attention import Attention, AttentionOutput, AttentionSource, attention_values
from dragoman.nn.convolution import GatedConvolution, add_scaled, projection
from dragoman.nn.decoders import decoders
from dragoman.nn.kernels.dropout import Dropout
from dragoman.nn.normalizers import normalizers
from dragoman.nn.positions import positions
from dragoman.nn.prefix import append_after_lengths, slice_after_lengths
from dragoman.nn.scores import scores


@dataclass
class ConvSource:
    """The keys and values of the source, shared by the hypotheses of a sentence."""

    keys: list[Tensor]  # (B, 1, S, ·) for each layer
    values: Tensor  # (B, 1, S, D_memory)
    mask: Tensor  # (B, 1, S)
    m: Tensor  # (B, 1): the number of real positions


@dataclass
class ConvState:
    """The inputs that the kernels still need, the next position, and the source if there is attention."""

    past: list[Tensor]  # (B, K, k − 1, D): the last inputs of each layer
    t: Tensor  # (B, 1)
    source: ConvSource | None


class ConvLayer(nn.Module):
    """One gated convolution and, if d_memory is given, attention to the source."""

    def __init__(
        self, d: int, d_memory: int | None, kernel: int, keep: float, weight_norm: bool, score: Part, normalizer: Part
    ) -> None:
        super().__init__()
        self.convolve = GatedConvolution(d, kernel, keep, weight_norm)
        if d_memory is not None:
            self.attention = Attention(d_memory, d_memory, score, normalizer)
            self.Wd = projection(d, d_memory, 1.0, weight_norm)
            self.Wo = projection(d_memory, d, 1.0, weight_norm)

    def attend(
        self, v: Tensor, g: Tensor, keys: Tensor, source: ConvSource, t: Tensor
    ) -> tuple[Tensor, AttentionOutput]:
        """(v + W_o c)·√½ and the attention output, for queries v (B, T or K, D): hypotheses are queries, too."""
        d = self.Wd(v) + g
        attended: AttentionOutput = self.attention(d, AttentionSource(keys, source.values, source.mask, source.m), t)
        c = source.m[..., None].to(v.dtype).sqrt() * attended.c
        return add_scaled(v, self.Wo(c)), attended


@decoders.register("conv")
class ConvDecoder(nn.Module):
    """N causal gated convolutions, each with attention (ConvS2S, Gehring et al. 2017), or a CNN language model."""

    def __init__(
        self,
        d_in: int,
        d_memory: int,
        *,
        layers: PositiveInt = 6,
        width: PositiveInt | None = None,
        kernel: PositiveInt = 3,
        source: Literal["attention", "prefix"] = "attention",
        score: Annotated[Part, scores] = Part("dot"),
        normalizer: Annotated[Part, normalizers] = Part("softmax"),
        position: Annotated[Part, positions] = Part("learned"),
        dropout: UnitInterval = 0.1,
        weight_norm: bool = False,
    ) -> None:
        super().__init__()
        if source == "prefix" and d_memory != d_in:
            raise PartError(
                f"source: prefix reads source and target as one sequence, so both need the same width, not {d_memory} "
                f"and {d_in}; use encoder 'none', or one of the target's width"
            )
        has_attention = source == "attention"
        self.d, self.source, self.past_length, self.width = d_in, source, kernel - 1, width or d_in
        keep = 1.0 - dropout
        self.position = positions.build(position, d_in, None)
        self.max_positions = self.position.max_positions  # of the target, or of source and target together
        self.dropout = Dropout(dropout)
        self.input_proj = projection(d_in, self.width, keep, weight_norm)
        # g is added to d_i, which has the width of the memory.
        differs = has_attention and d_in != d_memory
        self.query_proj = projection(d_in, d_memory, keep, weight_norm) if differs else nn.Identity()
        build = partial(ConvLayer, self.width, d_memory if has_attention else None, kernel, keep, weight_norm)
        self.layers: Sequence[ConvLayer] = nn.ModuleList([build(score, normalizer) for _ in range(layers)])  # type: ignore[assignment]
        self.output_proj = projection(self.width, d_in, 1.0, weight_norm)
        if not has_attention:
            return
        attention = self.layers[0].attention
        if attention.score.uses_past_weights:
            raise PartError(
                f"the decoder 'conv' computes all steps at once and cannot use the score '{score.name}', which needs "
                "the weights of earlier steps; use 'dot', 'general' or 'additive', or the decoder 'rnn'"
            )
        if attention.normalizer.is_stochastic:
            raise PartError(
                f"the decoder 'conv' has attention in every layer and cannot use the normalizer '{normalizer.name}', "
                "which samples one position; use 'softmax', or the decoder 'rnn'"
            )

    def forward(self, y: Tensor, memory: Memory) -> Output:
        """All target positions at once: y (B, T, D_in) → o (B, T, D_in), with the source as memory or as prefix."""
        if self.source == "prefix":
            return self.decode_with_prefix(y, memory)
        t = torch.arange(y.shape[1], device=y.device)[None]
        return self.run_layers(y[:, None], t, self.empty_past(y), self.prepare_source(memory))[0]

    def decode_with_prefix(self, y: Tensor, memory: Memory) -> Output:
        """Source and target as one sequence: o of the target, and o of the source as the extra "prefix"."""
        lengths, (S, T) = memory.lengths, (memory.states.shape[1], y.shape[1])
        x = append_after_lengths(memory.states, lengths, y)  # (B, S + T, D_in)
        o = self.run_layers(x[:, None], row_positions(S + T, lengths + T), self.empty_past(y), None)[0].o
        prefix = o[:, :S].masked_fill(~memory.mask[..., None], 0.0)
        return Output(slice_after_lengths(o, lengths, T), extras={"prefix": prefix})

    def start(self, memory: Memory, capacity: Capacity) -> ConvState:
        """The state before the first step; with source 'prefix' the source is read here."""
        x, lengths, past = memory.states, memory.lengths, self.empty_past(memory.states)
        source, t = None, lengths[:, None]
        if self.source == "prefix":
            _, inputs = self.run_layers(x[:, None], row_positions(x.shape[1], lengths), past, None)
            # Inputs are k − 1 positions longer than the source: the last k − 1 real ones start at index n.
            past = [slice_after_lengths(u[:, 0], lengths, self.past_length)[:, None] for u in inputs]
        else:
            source, t = self.prepare_source(memory), torch.zeros_like(t)
        past = [u.expand(-1, capacity.hypotheses, -1, -1).contiguous() for u in past]
        return ConvState(past, t, source)

    def step(self, y: Tensor, state: ConvState) -> tuple[Output, ConvState]:
        """One position of each hypothesis: y (B, K, D_in) → o (B, K, D_in), and the state moved on by one."""
        output, inputs = self.run_layers(y[:, :, None], state.t, state.past, state.source)  # inputs (B, K, k, D) each
        return output, ConvState([u[:, :, 1:] for u in inputs], state.t + 1, state.source)

    def run_layers(
        self, x: Tensor, t: Tensor, past: list[Tensor], source: ConvSource | None
    ) -> tuple[Output, list[Tensor]]:
        """x (B, K, T, D_in) at t (B or 1, T), after `past` → o (B, K·T, D_in), and the inputs of each layer."""
        g = self.dropout(self.position(x.flatten(1, 2), t))  # (B, K·T, D_in)
        h, g = self.input_proj(g), self.query_proj(g)
        inputs, attentions = [], []
        for i, layer in enumerate(self.layers):
            u = torch.cat([past[i], self.dropout(h).reshape(*x.shape[:3], self.width)], 2)  # (B, K, k − 1 + T, D)
            v = layer.convolve(u).flatten(1, 2)
            if source is not None:
                v, attended = layer.attend(v, g, source.keys[i], source, t)
                attentions.append(attended)
            h = add_scaled(v, h)
            inputs.append(u)
        return Output(self.dropout(self.output_proj(h)), *average_attention(attentions)), inputs

    def empty_past(self, like: Tensor) -> list[Tensor]:
        """The zeros before the first position, (B, 1, k − 1, D) for each layer."""
        return [like.new_zeros(like.shape[0], 1, self.past_length, self.width) for _ in self.layers]

    def prepare_source(self, memory: Memory) -> ConvSource:
        """The keys of every layer and the values, computed once per sentence."""
        keys = [layer.attention.score.prepare_keys(memory.states)[:, None] for layer in self.layers]
        return ConvSource(keys, attention_values(memory)[:, None], memory.mask[:, None], memory.lengths[:, None])


def average_attention(layers: list[AttentionOutput]) -> tuple[Tensor | None, dict[str, Tensor]]:
    """The weights averaged over the layers, (B, T, S), and the extras summed over them."""
    if not layers:
        return None, {}
    extras = {name: torch.stack([layer.extras[name] for layer in layers]).sum(0) for name in layers[0].extras}
    return torch.stack([layer.a for layer in layers]).mean(0), extras


def row_positions(size: int, lengths: Tensor) -> Tensor:
    """The positions 0, 1, … of each row, (B, size); padding gets the last real one, since a table may end there."""
    t = torch.arange(size, device=lengths.device)[None]
    return torch.minimum(t, (lengths[:, None] - 1).clamp(min=0))
