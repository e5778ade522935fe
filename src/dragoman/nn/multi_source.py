"""Two sources as one: the second is read by parts of its own, and its states stand behind those of the first.

    h = h¹_1 … h¹_n, A h²_1 … A h²_m          summary = W [summary¹; summary²]

Attention then chooses among the states of both, and no decoder or head knows that there were two. A row's states stand
without a gap, whatever was padded; where h² begins is kept. There is an A only where the widths of h¹ and h² differ. A
decoder that begins with the encoder's last state (bridge: copy) begins with the first one's.

B sentences, n and m positions of the two sources, D width of h¹.
"""

from __future__ import annotations

from typing import Annotated, Any

import torch
from torch import Tensor, nn

from dragoman.core.registry import Options, Part
from dragoman.core.types import Memory, Segments
from dragoman.nn.encoders import encoders
from dragoman.nn.frontends import frontends
from dragoman.nn.layers import linear
from dragoman.nn.prefix import joined


class Second(Options):
    """What reads the second source."""

    frontend: Annotated[Part, frontends] = Part("tokens")
    encoder: Annotated[Part, encoders] = Part("transformer")


class SecondSource(nn.Module):
    """A second source, read and put behind the first."""

    def __init__(self, size: int, width: int, d: int, parts: Second) -> None:
        super().__init__()
        self.frontend: Any = frontends.build(parts.frontend, size, width)
        self.encoder: Any = encoders.build(parts.encoder, self.frontend.d)
        self.A = None if self.encoder.d == d else linear(self.encoder.d, d)
        self.W = linear(d + self.encoder.d, d)

    @property
    def length(self) -> int | None:
        """The longest source its positions allow."""
        return getattr(self.encoder, "length", None)

    @property
    def stride(self) -> int:
        """How many of the vectors it reads the encoder makes one state of."""
        return int(getattr(self.encoder, "stride", 1))

    def labels(self, length: int) -> list[str]:
        """What to call the states made of so many positions, where they are no text."""
        every: list[str] = self.frontend.labels(length)
        return every[:: self.stride]

    def forward(self, first: Memory, source: Tensor, lengths: Tensor) -> Memory:
        """The memory of both sources."""
        second: Memory = self.encoder(*self.frontend.read(source, Segments(lengths)))
        values = None
        if first.values is not None or second.values is not None:
            values = self._behind(first, averaged(first), averaged(second))
        return Memory(
            self._behind(first, first.states, second.states),
            first.lengths + second.lengths,
            self.W(torch.cat([first.summary, second.summary], -1)),
            first.final,
            values=values,
            second_source_start=first.lengths,
        )

    def _behind(self, first: Memory, h: Tensor, other: Tensor) -> Tensor:
        """(B, n, D) and (B, m, D²) → (B, n + m, D), no padding between the two."""
        return joined(h, first.lengths, other if self.A is None else self.A(other))


def averaged(memory: Memory) -> Tensor:
    """What attention averages."""
    return memory.states if memory.values is None else memory.values
