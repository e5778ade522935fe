"""Pointer-generator: generate a word of the vocabulary, or copy a word of the source (See et al. 2017).

    a = softmax(score(o_t, h))     c = Σ_j a_j h_j     g = σ(w [o_t; c; y_{t-1}])

    p(w) = g softmax(logits)_w + (1 − g) Σ_{j: x_j = w} a_j

The pointer has an attention of its own, so that it works with every decoder, also those without attention.

B sentences, T target positions (or K hypotheses), S source positions, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from dragoman.core.errors import PartError
from dragoman.core.registry import Part
from dragoman.core.types import Memory
from dragoman.nn.attention import Attention, AttentionSource
from dragoman.nn.layers import linear


@dataclass
class PointerSource:
    """The source of a pointer: prepared for its attention, and the ids (B, 1, S) to copy."""

    attention: AttentionSource
    ids: Tensor


class Pointer(nn.Module):
    """p(w) = g p_vocabulary(w) + (1 − g) Σ_{j: x_j = w} a_j."""

    def __init__(self, d: int, d_in: int, d_memory: int, score: Part) -> None:
        super().__init__()
        self.attention = Attention(d, d_memory, score, Part("softmax"))
        if self.attention.score.uses_past_weights:
            raise PartError(
                f"pointer: score '{score.name}' needs the weights of earlier steps, which it lacks; use 'general'"
            )
        self.gate = linear(d + d_memory + d_in, 1)

    def prepare_source(self, memory: Memory) -> PointerSource:
        """What depends on the source alone, computed once per sentence."""
        assert memory.source is not None
        return PointerSource(self.attention.prepare_source(replace(memory, values=None)), memory.source[:, None])

    def forward(self, logits: Tensor, o: Tensor, y: Tensor, source: PointerSource) -> tuple[Tensor, Tensor]:
        """logits (B, T, V), o (B, T, D), y (B, T, D_in) → log p with copied words (B, T, V), and a (B, T, S)."""
        c, a, _, _ = self.attention(o, source.attention)
        g = torch.sigmoid(self.gate(torch.cat([o, c, y], -1)).float())  # (B, T, 1)
        p = g * logits.float().softmax(-1)  # (B, T, V)
        p = p.scatter_add(-1, source.ids.expand(-1, o.shape[1], -1), (1 - g) * a.float())
        return p.clamp_min(torch.finfo(p.dtype).tiny).log(), a
