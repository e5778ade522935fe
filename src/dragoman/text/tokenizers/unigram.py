"""Unigram pieces (Kudo 2018): every piece has a probability, and a split is as probable as the product of its pieces.

    encode   the split of highest probability
    sample   a split x with probability p(x) ∝ exp(α Σ_i log p(x_i)); α = 1 follows the model, α near 0 takes all alike

Sampling: F[j] = log Σ_{pieces i..j} exp(F[i] + α log p(piece)) from left to right, then pieces from the end backward,
each in proportion to its term in F[j]. All but the draws depends on the word alone, and is kept for the next time.

What a text looks like after encoding and decoding is said in text/sentencepiece_model.py.
"""

from __future__ import annotations

import math
import random
from bisect import bisect
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from dragoman.core.registry import PositiveInt
from dragoman.text.sentencepiece_model import Pieces
from dragoman.text.tokenizers import tokenizers

if TYPE_CHECKING:
    import numpy as np

REMEMBERED = 20  # characters; longer words, such as whole sentences without spaces, seldom come twice
MOST_WORDS = 5_000_000  # to learn from, since the trainer keeps them all; of more, each word has its share

Edges = list[list[tuple[int, float]]]  # for every end: (start, score) of each piece
Choices = list[tuple[list[int], list[float]]]  # for every end: starts, and their cumulative shares


@tokenizers.register("unigram")
class Unigram(Pieces):
    """Subwords by a unigram language model; with alpha, training sees other splits of the same text."""

    kind = "unigram"
    format = "text"

    def __init__(
        self,
        *,
        size: PositiveInt = 8000,
        alpha: Annotated[float, Field(ge=0.0)] = 0.0,
        byte_fallback: bool = True,
        character_coverage: Annotated[float, Field(ge=0.98, le=1.0)] = 1.0,
    ) -> None:
        super().__init__(size=size, byte_fallback=byte_fallback, character_coverage=character_coverage)
        self.alpha = alpha

    @property
    def samples(self) -> bool:
        return self.alpha > 0

    def corpus(self, counts: Counter[str]) -> Iterable[str]:
        """Every word as often as it occurs, shuffled: the trainer's time is the square of a passage that repeats.

        (4,000 times the same word and then others: 4 s; shuffled, 0.03 s. With counts it learns other, worse pieces.)
        """
        total = counts.total()
        share = min(1.0, MOST_WORDS / total)
        words: list[str] = []
        for word, n in counts.items():
            words.extend([word] * max(1, round(share * min(n, total - n + 1))))  # one word may not outweigh all others
        random.Random(0).shuffle(words)
        return words

    def draw(self, word: str, rng: np.random.Generator) -> list[str]:
        pieces: list[str] = []
        choices = self._recall(word) if len(word) <= REMEMBERED else self._choices(word)
        end = len(word)
        while end > 0:
            starts, shares = choices[end]
            # A single choice takes no draw; the last share may be a rounding error below 1.
            start = starts[min(bisect(shares, rng.random()), len(starts) - 1)] if len(starts) > 1 else starts[0]
            pieces.append(word[start:end])
            end = start
        return pieces[::-1]

    def _open(self, model: bytes, extra: Sequence[str], byte_fallback: bool) -> None:
        super()._open(model, extra, byte_fallback)
        self._recall = lru_cache(maxsize=1 << 14)(self._choices)

    def _choices(self, word: str) -> Choices:
        return backward(edges(word, self.scores, self.longest), self.alpha)


def edges(word: str, scores: Mapping[str, float], longest: int) -> Edges:
    """For every end in a word the pieces that end there, as (start, score); `longest` is the length of the longest.

    A character without a piece is in no longer one either, hence by itself in every split: it may score anything.
    """
    ending: Edges = [[] for _ in range(len(word) + 1)]
    for end in range(1, len(word) + 1):
        for start in range(max(0, end - longest), end):
            score = scores.get(word[start:end], 0.0 if start == end - 1 else None)
            if score is not None:
                ending[end].append((start, score))
    return ending


def backward(ending: Edges, alpha: float) -> Choices:
    """For every end the starts its last piece may have, and the cumulative share of each."""
    F = [0.0]
    choices: Choices = [([], [])]
    for pieces in ending[1:]:
        terms = [F[start] + alpha * score for start, score in pieces]
        top = max(terms)
        weights = [math.exp(term - top) for term in terms]
        total = sum(weights)
        F.append(top + math.log(total))
        choices.append(([start for start, _ in pieces], [share / total for share in accumulate(weights)]))
    return choices
