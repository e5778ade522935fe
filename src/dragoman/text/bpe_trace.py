"""Byte-pair encoding to watch (Sennrich et al. 2016): which pairs merge, in which order, and how a word is split.

A word is its characters and </w>; again and again, the most frequent pair of neighbors becomes one symbol:

    l o w </w> ×5   l o w e r </w> ×2   n e w e s t </w> ×6   w i d e s t </w> ×3
    (e, s) 9 times, (es, t) 9, (est, </w>) 9, (l, o) 7, …

Of pairs that are equally frequent, the one seen first merges. The vocabulary is the characters, the space between
words, </w>, and what merges add. For teaching: the tokenizer that models are trained with is text/tokenizers/bpe.py,
and `explain` shows how that one, or any other, splits a text.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from dragoman.text.sentencepiece_model import words
from dragoman.text.tokenizers import Tokenizer
from dragoman.text.tokenizers.bpe import BPE
from dragoman.text.tokenizers.unigram import Unigram

END = "</w>"
SPACE = " "

Pair = tuple[str, str]


class Merge(NamedTuple):
    """A pair that became one symbol, and what was reached with it."""

    pair: Pair
    times: int  # how often the pair stood in the words
    size: int  # symbols in the vocabulary now
    ratio: float  # symbols that the words had as characters, over those they have now

    @property
    def symbol(self) -> str:
        return "".join(self.pair)


class Step(NamedTuple):
    """How a word is split after a merge; the first step, of no pair, is its characters."""

    symbols: list[str]
    pair: Pair | None = None
    number: int = 0  # the place of the merge in the order of learning, from 1


# -- learning ----------------------------------------------------------------------------------------------------------


def count(lines: Iterable[str]) -> Counter[str]:
    """How often each word occurs, in the order in which they were seen first."""
    return Counter(word for line in lines for word in line.split())


def alphabet(counts: Iterable[str]) -> list[str]:
    """The symbols of some words before any merge: twelve for low, lower, newest, widest."""
    return [*dict.fromkeys("".join(counts)), SPACE, END]


def learn(
    counts: Mapping[str, int], *, merges: int | None = None, size: int | None = None, ratio: float | None = None
) -> list[Merge]:
    """The merges of counted words in order, until there are so many, or the vocabulary or the ratio is reached.

    Without any of these limits, until every word is one symbol.
    """
    corpus = _Corpus(counts)
    symbols = set(alphabet(counts))
    longest, found = corpus.length, list[Merge]()
    while (
        (merges is None or len(found) < merges)
        and (size is None or len(symbols) < size)
        and (ratio is None or not found or found[-1].ratio < ratio)
        and (pair := corpus.best()) is not None
    ):
        times = corpus.counts[pair]
        corpus.merge(pair)
        symbols.add("".join(pair))
        found.append(Merge(pair, times, len(symbols), longest / corpus.length))
    return found


class _Corpus:
    """Words as symbols, and where every pair of neighbors stands: a merge looks only at the words that have it."""

    def __init__(self, counts: Mapping[str, int]) -> None:
        self.words = [spell(word) for word in counts]
        self.times = list(counts.values())
        self.length = sum(n * len(word) for n, word in zip(self.times, self.words, strict=True))
        self.counts: Counter[Pair] = Counter()
        self.places: defaultdict[Pair, set[int]] = defaultdict(set)
        for i in range(len(self.words)):
            self._enter(i)

    def best(self) -> Pair | None:
        """The most frequent pair, of equals the one seen first."""
        most = max(self.counts.values(), default=0)
        equals = [pair for pair, n in self.counts.items() if n == most]
        return min(equals, key=self._first, default=None)

    def merge(self, pair: Pair) -> None:
        for i in tuple(self.places[pair]):
            self._leave(i)
            before, self.words[i] = len(self.words[i]), merged(self.words[i], pair)
            self.length -= self.times[i] * (before - len(self.words[i]))
            self._enter(i)

    def _first(self, pair: Pair) -> tuple[int, int]:
        """The first word that has a pair, and where."""
        word = min(self.places[pair])
        return word, list(pairwise(self.words[word])).index(pair)

    def _enter(self, i: int) -> None:
        for pair in pairwise(self.words[i]):
            self.counts[pair] += self.times[i]
            self.places[pair].add(i)

    def _leave(self, i: int) -> None:
        for pair in pairwise(self.words[i]):
            self.counts[pair] -= self.times[i]
            self.places[pair].discard(i)
            if not self.places[pair]:
                del self.counts[pair], self.places[pair]


# -- splitting ---------------------------------------------------------------------------------------------------------


def spell(word: str) -> list[str]:
    """The symbols of a word before any merge."""
    return [*word, END]


def merged(symbols: Sequence[str], pair: Pair) -> list[str]:
    """The symbols with every such pair joined, from left to right."""
    joined: list[str] = []
    i = 0
    while i < len(symbols):
        here = tuple(symbols[i : i + 2]) == pair
        joined.append("".join(pair) if here else symbols[i])
        i += 2 if here else 1
    return joined


def split(word: str, merges: Iterable[Merge]) -> list[Step]:
    """A word from its characters to its final symbols, one step for each merge that changes it."""
    steps = [Step(spell(word))]
    for number, merge in enumerate(merges, 1):
        symbols = merged(steps[-1].symbols, merge.pair)
        if len(symbols) < len(steps[-1].symbols):
            steps.append(Step(symbols, merge.pair, number))
    return steps


def reading(text: str, merges: Sequence[Merge]) -> str:
    """A text with what was merged in angle brackets: low lower new<es>t wid<es>t."""
    return " ".join(bracketed(split(word, merges)[-1].symbols) for word in text.split())


def bracketed(symbols: Iterable[str]) -> str:
    """Symbols as one word; a </w> of its own is not shown, since the word ends there anyhow."""
    return "".join(symbol if len(symbol) == 1 else f"<{symbol}>" for symbol in symbols if symbol != END)


# -- a tokenizer that was learned --------------------------------------------------------------------------------------


class Explanation(NamedTuple):
    """How a tokenizer splits a text; BPE has the merges that led there, unigram the log-probability of each piece."""

    text: str
    pieces: list[str]
    steps: list[Step] | None = None
    scores: list[float | None] | None = None  # None for a byte or an unknown character, which have no probability


def explain(tokenizer: Tokenizer, text: str) -> Explanation:
    """The pieces of a text, and why they are these."""
    ids = tokenizer.encode(text)
    pieces = tokenizer.pieces(ids)
    if isinstance(tokenizer, BPE):
        steps = replay("".join(words(text)), tokenizer.scores)
        if tokenizer.spell(steps[-1].symbols) != ids:
            raise RuntimeError(f"the merges of {text!r} do not lead to the pieces that the tokenizer gives")
        return Explanation(text, pieces, steps=steps)
    if isinstance(tokenizer, Unigram):
        return Explanation(text, pieces, scores=[tokenizer.scores.get(piece) for piece in pieces])
    return Explanation(text, pieces)


def replay(text: str, scores: Mapping[str, float]) -> list[Step]:
    """The merges of a sentencepiece model on a text, one at a time: the best-scored first, the leftmost of equals.

    Such a model scores its merges 0, −1, −2, … in the order of learning.
    """
    steps = [Step(list(text))]
    while True:
        symbols = steps[-1].symbols
        pairs = [(-scores[a + b], i) for i, (a, b) in enumerate(pairwise(symbols)) if a + b in scores]
        if not pairs:
            return steps
        score, i = min(pairs)
        pair = symbols[i], symbols[i + 1]
        steps.append(Step([*symbols[:i], "".join(pair), *symbols[i + 2 :]], pair, 1 + round(score)))
