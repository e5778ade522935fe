"""Two sources in one memory: the second has its own frontend and encoder, and its states follow those of the first.

    h = h¹_1 … h¹_n, A h²_1 … A h²_m          summary = W [summary¹; summary²]

Attention then chooses among the states of both, and decoders and heads need not know of the second. There is no padding
between the two in a row; the memory keeps where h² starts. A exists only where the widths of h¹ and h² differ. With
bridge: copy a decoder starts from the final state of the first encoder.

B sentences, n and m positions of the two sources, D width of h¹.
"""

from __future__ import annotations

from typing import Annotated, Any

import torch
from torch import Tensor, nn

from dragoman.core.registry import Options, Part
from dragoman.core.types import Memory, Segments
from dragoman.nn.attention import attention_values
from dragoman.nn.encoders import encoders
from dragoman.nn.frontends import frontends
from dragoman.nn.layers import linear
from dragoman.nn.prefix import append_after_lengths


class SecondSourceConfig(Options):
    """The frontend and the encoder of the second source."""

    frontend: Annotated[Part, frontends] = Part("tokens")
    encoder: Annotated[Part, encoders] = Part("transformer")


class SourceEncoder(nn.Module):
    """The frontend and the encoder of one source: the base of the whole model and of its second source."""

    def __init__(self, size: int, width: int, frontend: Part, encoder: Part) -> None:
        super().__init__()
        # Any, since engines and views read attributes beyond the protocols, of the parts that they know.
        self.frontend: Any = frontends.build(frontend, size, width)
        self.encoder: Any = encoders.build(encoder, self.frontend.d)
        self.stride = int(getattr(self.encoder, "stride", 1))  # input vectors that become one state

    def encode_source(self, source: Tensor, lengths: Tensor) -> Memory:
        """The memory of this source alone, padded (B, S) ids or (B, S, F) numbers."""
        memory: Memory = self.encoder(*self.frontend.embed_source(source, Segments(lengths)))
        return memory

    def position_labels(self, length: int) -> list[str]:
        """Labels of the encoder's states for a source of `length` positions that is no text."""
        labels: list[str] = self.frontend.position_labels(length)
        return labels[:: self.stride]


class SecondSource(SourceEncoder):
    """Encodes the second source and appends its states to those of the first."""

    def __init__(self, size: int, width: int, d: int, parts: SecondSourceConfig) -> None:
        super().__init__(size, width, parts.frontend, parts.encoder)
        self.A = None if self.encoder.d == d else linear(self.encoder.d, d)
        self.W = linear(d + self.encoder.d, d)

    def forward(self, first: Memory, source: Tensor, lengths: Tensor) -> Memory:
        """The memory of both sources, from that of the first and the second itself."""
        second = self.encode_source(source, lengths)
        values = None
        if first.values is not None or second.values is not None:
            values = self._append(first, attention_values(first), attention_values(second))
        return Memory(
            self._append(first, first.states, second.states),
            first.lengths + second.lengths,
            self.W(torch.cat([first.summary, second.summary], -1)),
            first.final,
            values=values,
            second_source_start=first.lengths,
        )

    def _append(self, first: Memory, h: Tensor, other: Tensor) -> Tensor:
        """h (B, n, D) and A other, (B, m, D) → (B, n + m, D), without padding between the two."""
        return append_after_lengths(h, first.lengths, other if self.A is None else self.A(other))
