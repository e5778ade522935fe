"""Causal gated convolutions that look at the source in every layer (ConvS2S), or read it as their past (a CNN LM).

    g = y + position       h⁰ = W_in g       for each layer, with u = hˡ⁻¹ and zeros before its first position:

    v_i = GLU(conv_k(u_{i−k+1} … u_i))
    d_i = W_d v_i + b_d + g_i      a_i = normalize(score(d_i, z))      c_i = √m Σ_j a_ij (z_j + e_j)
    v_i ← (v_i + W_o c_i)·√½                                           only where the source is a memory
    hˡ_i = (v_i + u_i)·√½

    o = W_out hᴺ

z are the memory's states, z + e its values (the states where it has none), m the number of real source positions: a
mean of m vectors has an m-th of their variance, which √m = m·√(1/m) restores. With source 'prefix' there is one
sequence, the source's tokens and then the target's, without a gap, and no attention.

A step needs of the past what the kernels still reach: the last k − 1 inputs of each layer. So both ways of running are
one: x (B, K, T, ·) comes after past (B, K, k − 1, ·), where K = 1 (all at once) or T = 1 (a step).

B sentences, K hypotheses, T target and S source positions, D width of h.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from dragoman.core.errors import PartError
from dragoman.core.registry import Part, PositiveInt, UnitInterval
from dragoman.core.types import Capacity, Memory, Output
from dragoman.nn.attention import Attention, Look
from dragoman.nn.convolution import GatedConvolution, halved, projection
from dragoman.nn.decoders import decoders
from dragoman.nn.kernels.dropout import Dropout
from dragoman.nn.normalizers import normalizers
from dragoman.nn.positions import positions
from dragoman.nn.prefix import behind, joined
from dragoman.nn.scores import scores


@dataclass
class Source:
    """The memory as attention wants it, shared by the hypotheses of a sentence."""

    keys: list[Tensor]  # (B, 1, S, ·) for each layer
    values: Tensor  # (B, 1, S, D_memory)
    mask: Tensor  # (B, 1, S)
    m: Tensor  # (B, 1): how many positions are real


@dataclass
class ConvState:
    """What the kernels still reach of the past, the next position, and the source where it is looked at."""

    past: list[Tensor]  # (B, K, k − 1, D): the last inputs of each layer
    t: Tensor  # (B, 1)
    source: Source | None


class ConvLayer(nn.Module):
    """One gated convolution and, if d_memory is given, one attention."""

    def __init__(
        self, d: int, d_memory: int | None, kernel: int, keep: float, weight_norm: bool, score: Part, normalizer: Part
    ) -> None:
        super().__init__()
        self.convolve = GatedConvolution(d, kernel, keep, weight_norm)
        if d_memory is not None:
            self.attention = Attention(d_memory, d_memory, score, normalizer)
            self.Wd = projection(d, d_memory, 1.0, weight_norm)
            self.Wo = projection(d_memory, d, 1.0, weight_norm)

    def look(self, v: Tensor, g: Tensor, keys: Tensor, source: Source, t: Tensor) -> tuple[Tensor, Look]:
        """v (B, T or K, D) and what it saw: hypotheses are just more queries on the sentence's keys."""
        look: Look = self.attention(self.Wd(v) + g, keys[:, 0], source.values[:, 0], source.mask, t=t, lengths=source.m)
        c = source.m[..., None].to(v.dtype).sqrt() * look.c
        return halved(v, self.Wo(c)), look


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
                f"source: prefix reads source and target as one sequence, so both need one width, not {d_memory} and "
                f"{d_in}; use encoder 'none', or one of the target's width"
            )
        looks = source == "attention"
        self.d, self.source, self.past, self.width = d_in, source, kernel - 1, width or d_in
        keep = 1.0 - dropout
        self.position = positions.build(position, d_in, None)
        self.dropout = Dropout(dropout)
        self.inward = projection(d_in, self.width, keep, weight_norm)
        # g is added to d_i, which is as wide as the memory.
        widen = looks and d_in != d_memory
        self.over = projection(d_in, d_memory, keep, weight_norm) if widen else nn.Identity()
        self.layers = nn.ModuleList(
            [
                ConvLayer(self.width, d_memory if looks else None, kernel, keep, weight_norm, score, normalizer)
                for _ in range(layers)
            ]
        )
        self.outward = projection(self.width, d_in, 1.0, weight_norm)
        if looks:
            self.check(score, normalizer)

    def check(self, score: Part, normalizer: Part) -> None:
        """All positions run at once and every layer looks: there is no order to remember in, no one place to draw."""
        attention: Attention = self.layers[0].attention  # type: ignore[assignment]
        if attention.remembers:
            raise PartError(
                f"the decoder 'conv' looks from all positions at once and cannot use the score '{score.name}', which "
                "remembers earlier looks; use 'dot', 'general' or 'additive', or the decoder 'rnn'"
            )
        if attention.normalizer.samples:
            raise PartError(
                f"the decoder 'conv' looks in every layer and cannot use the normalizer '{normalizer.name}', which "
                "draws one place; use 'softmax', or the decoder 'rnn'"
            )

    @property
    def length(self) -> int | None:
        """The longest target its positions allow; a prefix counts too."""
        return self.position.length

    # -- all at once -----------------------------------------------------------------------------------------------

    def forward(self, y: Tensor, memory: Memory) -> Output:
        if self.source == "prefix":
            return self.go_on(y, memory)
        t = torch.arange(y.shape[1], device=y.device)[None]
        return self.run(y[:, None], t, self.nothing(y), self.view(memory))[0]

    def go_on(self, y: Tensor, memory: Memory) -> Output:
        """Source and target as one sequence; o of the target, and o of the source as an extra."""
        lengths, (S, T) = memory.lengths, (memory.states.shape[1], y.shape[1])
        x = joined(memory.states, lengths, y)  # (B, S + T, D_in)
        o = self.run(x[:, None], places(S + T, lengths + T), self.nothing(y), None)[0].o
        prefix = o[:, :S].masked_fill(~memory.mask[..., None], 0.0)
        return Output(behind(o, lengths, T), extras={"prefix": prefix})

    # -- step by step ----------------------------------------------------------------------------------------------

    def start(self, memory: Memory, capacity: Capacity) -> ConvState:
        x, lengths, past = memory.states, memory.lengths, self.nothing(memory.states)
        source, t = None, lengths[:, None]
        if self.source == "prefix":
            _, reads = self.run(x[:, None], places(x.shape[1], lengths), past, None)
            # A read is k − 1 places longer than the source: from place n on, it holds the last k − 1 real ones.
            past = [behind(read[:, 0], lengths, self.past)[:, None] for read in reads]
        else:
            source, t = self.view(memory), torch.zeros_like(t)
        past = [before.expand(-1, capacity.hypotheses, -1, -1).contiguous() for before in past]
        return ConvState(past, t, source)

    def step(self, y: Tensor, state: ConvState) -> tuple[Output, ConvState]:
        output, reads = self.run(y[:, :, None], state.t, state.past, state.source)  # reads (B, K, k, D) each
        return output, ConvState([read[:, :, 1:] for read in reads], state.t + 1, state.source)

    # -- the pieces of the equations -------------------------------------------------------------------------------

    def run(self, x: Tensor, t: Tensor, past: list[Tensor], source: Source | None) -> tuple[Output, list[Tensor]]:
        """x (B, K, T, D_in) at t (B or 1, T), after `past`: o (B, K·T, D_in), and what each layer read, past first."""
        g = self.dropout(self.position(x.flatten(1, 2), t))  # (B, K·T, D_in)
        h, over = self.inward(g), self.over(g)
        reads, looks = [], []
        for i, layer in enumerate(self.layers):
            read = torch.cat([past[i], self.dropout(h).unflatten(1, x.shape[1:3])], 2)  # (B, K, k − 1 + T, D)
            v = layer.convolve(read).flatten(1, 2)  # type: ignore[operator]
            if source is not None:
                v, look = layer.look(v, over, source.keys[i], source, t)  # type: ignore[operator]
                looks.append(look)
            h = halved(v, h)
            reads.append(read)
        return Output(self.dropout(self.outward(h)), *noticed(looks)), reads

    def nothing(self, like: Tensor) -> list[Tensor]:
        """What stands before the first position, (B, 1, k − 1, D) for each layer."""
        return [like.new_zeros(like.shape[0], 1, self.past, self.width) for _ in self.layers]

    def view(self, memory: Memory) -> Source:
        values = memory.states if memory.values is None else memory.values
        keys = [layer.attention.prepare(memory.states)[:, None] for layer in self.layers]  # type: ignore[operator,union-attr]
        return Source(keys, values[:, None], memory.mask[:, None], memory.lengths[:, None])


def noticed(looks: list[Look]) -> tuple[Tensor | None, dict[str, Tensor]]:
    """Where the layers looked on average, (B, T, S), and what their normalizers add to the loss together."""
    if not looks:
        return None, {}
    extras = {name: torch.stack([look.extras[name] for look in looks]).sum(0) for name in looks[0].extras}
    return torch.stack([look.a for look in looks]).mean(0), extras


def places(size: int, lengths: Tensor) -> Tensor:
    """0, 1, … for each row, (B, size); padding stays at the last real place, as positions may reach no farther."""
    t = torch.arange(size, device=lengths.device)[None]
    return torch.minimum(t, (lengths[:, None] - 1).clamp(min=0))
