"""The Transformer block that encoder and decoder share.

    pre    x ← x + f(norm(x))          post   x ← norm(x + f(x))

for f in turn: self-attention, cross-attention (where there is a memory to look at), feed-forward. All positions at once
(`forward`), or one position more for each hypothesis (`step`), with the keys and values of the past kept in a cache.

B sentences, K hypotheses, H heads, T target and S source positions, C capacity of the cache, D width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from dragoman.core.registry import Part
from dragoman.nn.attention import MultiHead
from dragoman.nn.layers import FeedForward, norms

KeysValues = tuple[Tensor, Tensor]


class Style(NamedTuple):
    """The options that every block of a stack has in common."""

    heads: int
    feedforward: int
    activation: Literal["relu", "gelu"]
    norm: Part
    norm_order: Literal["pre", "post"]
    dropout: float
    attention_dropout: float
    score: Part
    normalizer: Part


@dataclass
class Cache:
    """Keys and values of the positions so far, (B, K, H, C, D/H) each, and the projected memory, (B, 1, H, S, D/H)."""

    k: Tensor
    v: Tensor
    cross: KeysValues | None


class Block(nn.Module):
    """Self-attention, cross-attention if d_memory is given, feed-forward; a residual around each."""

    def __init__(self, d: int, d_memory: int | None, style: Style) -> None:
        super().__init__()

        def attention(d_keys: int) -> MultiHead:
            return MultiHead(d, d_keys, style.heads, style.score, style.normalizer, style.attention_dropout)

        self.pre = style.norm_order == "pre"
        self.self_attention = attention(d)
        self.self_norm = norms.build(style.norm, d)
        self.cross_attention = attention(d_memory) if d_memory is not None else None
        self.cross_norm = norms.build(style.norm, d) if d_memory is not None else None
        self.feedforward = FeedForward(d, style.feedforward, style.activation, style.dropout)
        self.feedforward_norm = norms.build(style.norm, d)
        self.dropout = nn.Dropout(style.dropout)

    def residual(self, x: Tensor, norm: nn.Module, f: Callable[[Tensor], Tensor]) -> Tensor:
        if self.pre:
            return x + self.dropout(f(norm(x)))  # type: ignore[no-any-return]
        return norm(x + self.dropout(f(x)))  # type: ignore[no-any-return]

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None,
        causal: bool = False,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
    ) -> Tensor:
        """x (B, T, D); mask and memory_mask broadcast to (B, H, T, T) and (B, H, T, S)."""

        def look_at_self(x: Tensor) -> Tensor:
            k, v = self.self_attention.keys_values(x)
            return self.self_attention(x, k, v, mask, causal)  # type: ignore[no-any-return]

        x = self.residual(x, self.self_norm, look_at_self)
        if self.cross_attention is not None and self.cross_norm is not None and memory is not None:
            cross, (k, v) = self.cross_attention, self.cross_attention.keys_values(memory)
            x = self.residual(x, self.cross_norm, lambda x: cross(x, k, v, memory_mask))
        return self.residual(x, self.feedforward_norm, self.feedforward)

    def start(self, memory: Tensor | None, hypotheses: int, capacity: int, like: Tensor) -> Cache:
        """An empty cache and the memory's keys and values, projected once per sentence."""
        # What a score keeps of a key may be wider or narrower than D/H: ask it.
        one = self.self_attention.keys_values(like.new_zeros(1, 1, self.self_attention.Wk.in_features))
        room = like.shape[0], hypotheses, self.self_attention.heads, capacity
        empty_k, empty_v = (x.new_zeros(*room, x.shape[-1]) for x in one)
        cross = None
        if self.cross_attention is not None and memory is not None:
            k, v = self.cross_attention.keys_values(memory)
            cross = k[:, None], v[:, None]
        return Cache(empty_k, empty_v, cross)

    def step(self, x: Tensor, cache: Cache, t: Tensor, memory_mask: Tensor | None) -> Tensor:
        """One position for each hypothesis, x (B, K, D) at t (B, 1); writes its keys and values into the cache."""

        def look_at_self(x: Tensor) -> Tensor:
            k, v = self.self_attention.keys_values(x[:, :, None])  # (B, K, H, 1, D/H)
            place = t[:, :, None, None, None]
            cache.k.scatter_(3, place.expand_as(k), k)
            cache.v.scatter_(3, place.expand_as(v), v)
            past = torch.arange(cache.k.shape[3], device=t.device) <= t[:, :, None, None, None]  # (B, 1, 1, 1, C)
            q = self.self_attention.queries(x[:, :, None])  # (B, K, H, 1, D/H)
            rows = past.expand(-1, x.shape[1], -1, -1, -1).flatten(0, 1)
            seen = self.self_attention.attend(q.flatten(0, 1), cache.k.flatten(0, 1), cache.v.flatten(0, 1), rows)
            return self.self_attention.join(seen)[:, 0].view(x.shape)

        x = self.residual(x, self.self_norm, look_at_self)
        if self.cross_attention is not None and self.cross_norm is not None and cache.cross is not None:
            # The hypotheses of a sentence are the queries of one call: they share the sentence's keys and values.
            cross, (k, v) = self.cross_attention, (cache.cross[0][:, 0], cache.cross[1][:, 0])
            x = self.residual(x, self.cross_norm, lambda x: cross(x, k, v, memory_mask))
        return self.residual(x, self.feedforward_norm, self.feedforward)
