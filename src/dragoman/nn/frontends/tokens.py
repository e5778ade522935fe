"""Token embeddings: x_j = √D · E[source_j]."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor, nn

from dragoman.core.types import PAD, Segments
from dragoman.nn.frontends import PartOptions, frontends


@frontends.register("tokens")
class TokenEmbedding(nn.Module):
    """An embedding table with one vector for each token of the vocabulary, scaled by √D."""

    def __init__(self, size: int, d: int, *, scale: bool = True) -> None:
        super().__init__()
        self.d, self.factor = d, math.sqrt(d) if scale else 1.0
        self.table = nn.Embedding(size, d, padding_idx=PAD)
        # Unscaled embeddings are initialized as in ConvS2S: larger ones would saturate its dot-product attention.
        nn.init.normal_(self.table.weight, std=d**-0.5 if scale else 0.1)

    @staticmethod
    def build_modality(options: PartOptions, files: Sequence[str]) -> None:
        return

    @staticmethod
    def default_max_length(options: PartOptions) -> int:
        return 0

    @staticmethod
    def max_vectors(options: PartOptions, length: int) -> int:
        return length

    def embed_source(self, source: Tensor, segments: Segments) -> tuple[Tensor, Segments]:
        return self(source), segments

    def forward(self, ids: Tensor) -> Tensor:
        """√D · E[id], or E[id] without `scale`: (…) ids → (…, D)"""
        x: Tensor = self.table(ids) * self.factor
        return x
