"""Unigram language model tokenizer (Kudo 2018): the probability of a split is the product of those of its pieces.

    encode   the split of highest probability
    sample   a split x with probability p(x) ∝ exp(α Σ_i log p(x_i)); α = 1 follows the model, α near 0 is uniform

Sampling is forward filtering, backward sampling: F[j] = log Σ_{pieces i..j} exp(F[i] + α log
p(piece)) from left to right, then pieces from the end backward, each in proportion to its term in
F[j]. The forward pass depends on the word alone and is cached.

text/sentencepiece_model.py describes what decoding restores.
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
from dragoman.text.sentencepiece_model import SentencePieceTokenizer
from dragoman.text.tokenizers import tokenizers

if TYPE_CHECKING:
    import numpy as np

MAX_CACHED_LENGTH = 20  # longer words, such as sentences without spaces, seldom repeat
MAX_TRAINING_WORDS = 5_000_000  # the trainer keeps all in memory; larger corpora are scaled down

Lattice = list[list[tuple[int, float]]]  # for every end: (start, score) of each piece that ends there
SegmentChoices = list[tuple[list[int], list[float]]]  # for every end: starts, and their cumulative probabilities


@tokenizers.register("unigram")
class Unigram(SentencePieceTokenizer):
    """Subwords by a unigram language model; with alpha, training sees random splits of a text."""

    kind = "unigram"
    corpus_format = "text"

    def __init__(
        self,
        *,
        size: PositiveInt = 8000,
        alpha: Annotated[float, Field(ge=0.0)] = 0.0,
        byte_fallback: bool = True,
        character_coverage: Annotated[float, Field(ge=0.98, le=1.0)] = 1.0,
    ) -> None:
        super().__init__(size=size, byte_fallback=byte_fallback, character_coverage=character_coverage)
        self.alpha, self.is_stochastic = alpha, alpha > 0

    def corpus_lines(self, counts: Counter[str]) -> Iterable[str]:
        """Every word about as often as it occurs, shuffled: the trainer's time is quadratic in a run of equal words.

        (4,000 times one word and then others took 4 s; shuffled, 0.03 s. Trained on counts, its pieces are worse.)
        """
        total = counts.total()
        share = min(1.0, MAX_TRAINING_WORDS / total)
        words: list[str] = []
        for word, n in counts.items():
            words.extend([word] * max(1, round(share * min(n, total - n + 1))))  # no word outweighs all others
        random.Random(0).shuffle(words)
        return words

    def sample_word(self, word: str, rng: np.random.Generator) -> list[str]:
        """A random split of a word, by backward sampling; choices for short words are cached."""
        pieces: list[str] = []
        choices = self._cached_choices(word) if len(word) <= MAX_CACHED_LENGTH else self._choices(word)
        end = len(word)
        while end > 0:
            starts, cumulative = choices[end]
            # A single choice takes no random number; the last probability may be a rounding error below 1.
            start = starts[min(bisect(cumulative, rng.random()), len(starts) - 1)] if len(starts) > 1 else starts[0]
            pieces.append(word[start:end])
            end = start
        return pieces[::-1]

    def _load_model(
        self, model: bytes, extra_symbols: Sequence[str], byte_fallback: bool, added: Sequence[str] = ()
    ) -> None:
        super()._load_model(model, extra_symbols, byte_fallback, added)
        self._cached_choices = lru_cache(maxsize=1 << 14)(self._choices)

    def _choices(self, word: str) -> SegmentChoices:
        return forward_filter(build_lattice(word, self.scores, self.max_piece_length), self.alpha)


def build_lattice(word: str, scores: Mapping[str, float], max_piece_length: int) -> Lattice:
    """For every end in a word the pieces that end there, as (start, score); a character without a piece scores 0."""
    lattice: Lattice = [[] for _ in range(len(word) + 1)]
    for end in range(1, len(word) + 1):
        for start in range(max(0, end - max_piece_length), end):
            score = scores.get(word[start:end], 0.0 if start == end - 1 else None)
            if score is not None:
                lattice[end].append((start, score))
    return lattice


def forward_filter(lattice: Lattice, alpha: float) -> SegmentChoices:
    """For every end the possible starts of the last piece, with their cumulative probabilities."""
    F = [0.0]
    choices: SegmentChoices = [([], [])]
    for pieces in lattice[1:]:
        terms = [F[start] + alpha * score for start, score in pieces]
        top = max(terms)
        weights = [math.exp(term - top) for term in terms]
        total = sum(weights)
        F.append(top + math.log(total))
        choices.append(([start for start, _ in pieces], [share / total for share in accumulate(weights)]))
    return choices
