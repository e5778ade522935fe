"""Byte-pair encoding: a word starts as its characters, and the neighbors that were joined first in learning join first.

    ▁ l o w e r → ▁ lo w e r → ▁ low e r → ▁ low er → ▁low er

With dropout p (Provilkov et al. 2020), `sample` leaves each possible merge out with probability p, anew at every step,
and stops when all were left out: mostly the usual split, sometimes one of smaller pieces.

What a text looks like after encoding and decoding is said in text/sentencepiece_model.py.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from dragoman.core.registry import PositiveInt, UnitInterval
from dragoman.text.sentencepiece_model import Pieces
from dragoman.text.tokenizers import tokenizers

if TYPE_CHECKING:
    import numpy as np


@tokenizers.register("bpe")
class BPE(Pieces):
    """Subwords by byte-pair merges; with dropout, training sees other splits of the same text."""

    kind = "bpe"
    format = "tsv"

    def __init__(
        self,
        *,
        size: PositiveInt = 8000,
        dropout: UnitInterval = 0.0,
        byte_fallback: bool = True,
        character_coverage: Annotated[float, Field(ge=0.98, le=1.0)] = 1.0,
    ) -> None:
        super().__init__(size=size, byte_fallback=byte_fallback, character_coverage=character_coverage)
        self.dropout = dropout

    @property
    def samples(self) -> bool:
        return self.dropout > 0

    def corpus(self, counts: Counter[str]) -> Iterable[str]:
        return (f"{word}\t{n}" for word, n in counts.items())

    def draw(self, word: str, rng: np.random.Generator) -> list[str]:
        return merge(word, self.scores, self.dropout, rng)


def merge(
    word: str, scores: Mapping[str, float], dropout: float = 0.0, rng: np.random.Generator | None = None
) -> list[str]:
    """The pieces of a word: the best-scored neighbors join first, the leftmost of equals, until none can."""
    symbols = list(word)  # "" where a symbol has been joined to the one on its left
    before = list(range(-1, len(word) - 1))
    after = list(range(1, len(word) + 1))
    candidates: list[tuple[float, int, int]] = []  # (−score, left symbol, characters of the joined piece)

    def consider(left: int) -> None:
        if left >= 0 and after[left] < len(word):
            joined = symbols[left] + symbols[after[left]]
            if joined in scores:
                heapq.heappush(candidates, (-scores[joined], left, len(joined)))

    for i in range(len(word) - 1):
        consider(i)
    dropped: list[tuple[float, int, int]] = []  # in this step; each has a new chance in the next
    while candidates:
        candidate = heapq.heappop(candidates)
        left, right = candidate[1], after[candidate[1]]
        if not symbols[left] or right == len(word) or len(symbols[left]) + len(symbols[right]) != candidate[2]:
            continue  # one of the two has joined another since
        if rng is not None and rng.random() < dropout:
            dropped.append(candidate)
            continue
        symbols[left], symbols[right] = symbols[left] + symbols[right], ""
        after[left] = after[right]
        if after[left] < len(word):
            before[after[left]] = left
        consider(before[left])
        consider(left)
        while dropped:
            heapq.heappush(candidates, dropped.pop())
    return [symbol for symbol in symbols if symbol]
