"""Byte-pair encoding: a word starts as its characters; neighbors merge in the order in which the merges were learned.

    ▁ l o w e r → ▁ lo w e r → ▁ low e r → ▁ low er → ▁low er

With dropout p (Provilkov et al. 2020), `sample` skips each possible merge with probability p, anew
at every step, and stops when all were skipped: mostly the usual split, sometimes smaller pieces.

text/sentencepiece_model.py describes what decoding restores.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from dragoman.core.registry import PositiveInt, UnitInterval
from dragoman.text.sentencepiece_model import SentencePieceTokenizer
from dragoman.text.tokenizers import tokenizers

if TYPE_CHECKING:
    import numpy as np


@tokenizers.register("bpe")
class BPE(SentencePieceTokenizer):
    """Subwords by byte-pair merges; with dropout, training sees random splits of a text (BPE dropout)."""

    kind = "bpe"
    corpus_format = "tsv"

    def __init__(
        self,
        *,
        size: PositiveInt = 8000,
        dropout: UnitInterval = 0.0,
        byte_fallback: bool = True,
        character_coverage: Annotated[float, Field(ge=0.98, le=1.0)] = 1.0,
    ) -> None:
        super().__init__(size=size, byte_fallback=byte_fallback, character_coverage=character_coverage)
        self.dropout, self.is_stochastic = dropout, dropout > 0

    def corpus_lines(self, counts: Counter[str]) -> Iterable[str]:
        return (f"{word}\t{n}" for word, n in counts.items())

    def sample_word(self, word: str, rng: np.random.Generator) -> list[str]:
        return apply_merges(word, self.scores, self.dropout, rng)


def apply_merges(
    word: str, scores: Mapping[str, float], dropout: float = 0.0, rng: np.random.Generator | None = None
) -> list[str]:
    """Split a word: merge the best-scored neighbors first, the leftmost of equals, each skipped with p = dropout."""
    symbols = list(word)  # "" for a symbol that was merged into the one on its left
    before = list(range(-1, len(word) - 1))
    after = list(range(1, len(word) + 1))
    candidates: list[tuple[float, int, int]] = []  # (−score, index of the left symbol, length of the merged piece)

    def add_candidate(left: int) -> None:
        if left >= 0 and after[left] < len(word):
            joined = symbols[left] + symbols[after[left]]
            if joined in scores:
                heapq.heappush(candidates, (-scores[joined], left, len(joined)))

    for i in range(len(word) - 1):
        add_candidate(i)
    dropped: list[tuple[float, int, int]] = []  # in this step; they are candidates again in the next
    while candidates:
        candidate = heapq.heappop(candidates)
        left, right = candidate[1], after[candidate[1]]
        if not symbols[left] or right == len(word) or len(symbols[left]) + len(symbols[right]) != candidate[2]:
            continue  # outdated: one of the two was merged since
        if rng is not None and rng.random() < dropout:
            dropped.append(candidate)
            continue
        symbols[left], symbols[right] = symbols[left] + symbols[right], ""
        after[left] = after[right]
        if after[left] < len(word):
            before[after[left]] = left
        add_candidate(before[left])
        add_candidate(left)
        while dropped:
            heapq.heappush(candidates, dropped.pop())
    return [symbol for symbol in symbols if symbol]
