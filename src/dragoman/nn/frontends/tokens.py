"""x_j = √D · E[source_j]: a row of a table for each token."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from dragoman.core.types import PAD, Segments
from dragoman.nn.frontends import frontends


@frontends.register("tokens")
class Tokens(nn.Module):
    """A table with one vector for each token of the source vocabulary, scaled by √D."""

    @staticmethod
    def reader(options: Mapping[str, Any], files: Sequence[str]) -> None:
        return None

    @staticmethod
    def longest(options: Mapping[str, Any]) -> int:
        return 0

    @staticmethod
    def most(options: Mapping[str, Any], length: int) -> int:
        return length

    def __init__(self, size: int, d: int, *, scale: bool = True) -> None:
        super().__init__()
        self.d, self.factor = d, math.sqrt(d) if scale else 1.0
        self.table = nn.Embedding(size, d, padding_idx=PAD)
        # Unscaled, as ConvS2S begins: larger ones would saturate a dot with what the decoder says.
        nn.init.normal_(self.table.weight, std=d**-0.5 if scale else 0.1)

    def read(self, source: Tensor, segments: Segments) -> tuple[Tensor, Segments]:
        return self(source), segments

    def forward(self, source: Tensor) -> Tensor:
        return self.table(source) * self.factor  # type: ignore[no-any-return]
