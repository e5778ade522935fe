"""Byte-pair encoding step by step (Sennrich et al. 2016): which pairs merge, in which order, and how a word is split.

A word is its characters and </w>. In every step the most frequent pair of neighbors becomes one symbol:

    l o w </w> ×5   l o w e r </w> ×2   n e w e s t </w> ×6   w i d e s t </w> ×3
    (e, s) 9 times, (es, t) 9, (est, </w>) 9, (l, o) 7, …

Of equally frequent pairs, the one seen first merges. The vocabulary is the characters, the space
between words, </w>, and the merged symbols. This is for teaching; models are trained with
text/tokenizers/bpe.py. `explain_split` shows how any tokenizer splits a text.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from dragoman.text.sentencepiece_model import split_words
from dragoman.text.tokenizers import Tokenizer
from dragoman.text.tokenizers.bpe import BPE
from dragoman.text.tokenizers.unigram import Unigram

END_OF_WORD = "</w>"
SPACE = " "

Pair = tuple[str, str]


class Merge(NamedTuple):
    """A learned merge, and the vocabulary size and compression after it."""

    pair: Pair
    times: int  # how often the pair occurred
    size: int  # symbols in the vocabulary after the merge
    ratio: float  # compression: characters of all words over symbols of all words

    @property
    def symbol(self) -> str:
        """The new symbol: the two of the pair joined."""
        return "".join(self.pair)


class SplitStep(NamedTuple):
    """The symbols of a word after a merge; the first step, without a pair, is its characters."""

    symbols: list[str]
    pair: Pair | None = None
    number: int = 0  # of the merge in the order of learning, from 1


def count_words(lines: Iterable[str]) -> Counter[str]:
    """Count the words of some texts, in the order of their first occurrence."""
    return Counter(word for line in lines for word in line.split())


def initial_symbols(counts: Iterable[str]) -> list[str]:
    """The vocabulary before any merge: the distinct characters of the words, the space and </w>."""
    return [*dict.fromkeys("".join(counts)), SPACE, END_OF_WORD]


def learn_merges(
    counts: Mapping[str, int], *, merges: int | None = None, size: int | None = None, ratio: float | None = None
) -> list[Merge]:
    """Learn merges from word counts until a limit is reached (number, vocabulary size, compression) or none is left."""
    corpus = _Corpus(counts)
    symbols = set(initial_symbols(counts))
    characters, learned = corpus.length, list[Merge]()
    while (
        (merges is None or len(learned) < merges)
        and (size is None or len(symbols) < size)
        and (ratio is None or not learned or learned[-1].ratio < ratio)
        and (pair := corpus.most_frequent_pair()) is not None
    ):
        times = corpus.counts[pair]
        corpus.merge(pair)
        symbols.add("".join(pair))
        learned.append(Merge(pair, times, len(symbols), characters / corpus.length))
    return learned


class _Corpus:
    """Words as symbols, with an index from pairs to words: a merge visits only the words that contain it."""

    def __init__(self, counts: Mapping[str, int]) -> None:
        self.words = [split_characters(word) for word in counts]
        self.times = list(counts.values())
        self.length = sum(n * len(word) for n, word in zip(self.times, self.words, strict=True))
        self.counts: Counter[Pair] = Counter()
        self.word_ids: defaultdict[Pair, set[int]] = defaultdict(set)
        for i in range(len(self.words)):
            self._add_pairs(i)

    def most_frequent_pair(self) -> Pair | None:
        """The most frequent pair; of equals the one seen first; None if every word is one symbol."""
        most = max(self.counts.values(), default=0)
        equals = [pair for pair, n in self.counts.items() if n == most]
        return min(equals, key=self._first_position, default=None)

    def merge(self, pair: Pair) -> None:
        for i in tuple(self.word_ids[pair]):
            self._remove_pairs(i)
            before, self.words[i] = len(self.words[i]), merge_pair(self.words[i], pair)
            self.length -= self.times[i] * (before - len(self.words[i]))
            self._add_pairs(i)

    def _first_position(self, pair: Pair) -> tuple[int, int]:
        word = min(self.word_ids[pair])
        return word, list(pairwise(self.words[word])).index(pair)

    def _add_pairs(self, i: int) -> None:
        for pair in pairwise(self.words[i]):
            self.counts[pair] += self.times[i]
            self.word_ids[pair].add(i)

    def _remove_pairs(self, i: int) -> None:
        for pair in pairwise(self.words[i]):
            self.counts[pair] -= self.times[i]
            self.word_ids[pair].discard(i)
            if not self.word_ids[pair]:
                del self.counts[pair], self.word_ids[pair]


def split_characters(word: str) -> list[str]:
    """The symbols of a word before any merge: its characters and </w>."""
    return [*word, END_OF_WORD]


def merge_pair(symbols: Sequence[str], pair: Pair) -> list[str]:
    """The symbols with every occurrence of a pair joined, from left to right."""
    joined: list[str] = []
    i = 0
    while i < len(symbols):
        matches = tuple(symbols[i : i + 2]) == pair
        joined.append("".join(pair) if matches else symbols[i])
        i += 2 if matches else 1
    return joined


def trace_split(word: str, merges: Iterable[Merge]) -> list[SplitStep]:
    """Split a word by learned merges: one step for each merge that changes it, the characters first."""
    steps = [SplitStep(split_characters(word))]
    for number, merge in enumerate(merges, 1):
        symbols = merge_pair(steps[-1].symbols, merge.pair)
        if len(symbols) < len(steps[-1].symbols):
            steps.append(SplitStep(symbols, merge.pair, number))
    return steps


def bracket_symbols(symbols: Iterable[str]) -> str:
    """Join symbols to one word, merged ones in angle brackets: new<es>t. A </w> of its own is left out."""
    return "".join(symbol if len(symbol) == 1 else f"<{symbol}>" for symbol in symbols if symbol != END_OF_WORD)


class Explanation(NamedTuple):
    """How a tokenizer splits a text; for BPE with the merges, for unigram with the log-probability of each piece."""

    text: str
    pieces: list[str]
    steps: list[SplitStep] | None = None
    scores: list[float | None] | None = None  # None for bytes and unknown characters


def explain_split(tokenizer: Tokenizer, text: str) -> Explanation:
    """How a tokenizer splits a text: its pieces, for BPE with the merges, for unigram with scores."""
    ids = tokenizer.encode(text)
    pieces = tokenizer.pieces(ids)
    if isinstance(tokenizer, BPE):
        steps = replay_merges("".join(split_words(text)), tokenizer.scores)
        if tokenizer.piece_ids(steps[-1].symbols) != ids:
            raise RuntimeError(f"the merges of {text!r} do not give the pieces of the tokenizer")
        return Explanation(text, pieces, steps=steps)
    if isinstance(tokenizer, Unigram):
        return Explanation(text, pieces, scores=[tokenizer.scores.get(piece) for piece in pieces])
    return Explanation(text, pieces)


def replay_merges(text: str, scores: Mapping[str, float]) -> list[SplitStep]:
    """Apply a sentencepiece model's merges, scored 0, −1, −2, … as learned: the best first, the leftmost of equals."""
    steps = [SplitStep(list(text))]
    while True:
        symbols = steps[-1].symbols
        pairs = [(-scores[a + b], i) for i, (a, b) in enumerate(pairwise(symbols)) if a + b in scores]
        if not pairs:
            return steps
        score, i = min(pairs)
        pair = symbols[i], symbols[i + 1]
        steps.append(SplitStep([*symbols[:i], "".join(pair), *symbols[i + 2 :]], pair, 1 + round(score)))
