"""The lattice against brute force and sentencepiece, and sampling against the probabilities that define it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.text.sentencepiece_model import split_words
from dragoman.text.tokenizers import unigram
from dragoman.text.tokenizers.unigram import MAX_CACHED_LENGTH, Unigram, build_lattice

WORDS = ["low", "lower", "lowest", "newer", "wider", "new", "slower", "banana", "bananas"]
WORDS += ["naïve", "café", "東京都", "東京", "the", "other", "mothers"]
CORPUS = [f"{a}  {b} {a}{b}" for a in WORDS for b in WORDS]
TEXT = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"])),
    st.text("lowernaïb 東京 ▁"),
    st.lists(st.sampled_from(WORDS)).map("".join),
)


def learned(**options: object) -> Unigram:
    tokenizer = Unigram(**options)
    tokenizer.learn(CORPUS)
    return tokenizer


LEARNED = {byte_fallback: learned(size=380, byte_fallback=byte_fallback) for byte_fallback in (True, False)}


def splits(word: str) -> Iterator[list[str]]:
    """All ways to cut a word."""
    if not word:
        yield []
    for i in range(1, len(word) + 1):
        for rest in splits(word[i:]):
            yield [word[:i], *rest]


def score(split: list[str], scores: dict[str, float]) -> float:
    """Σ log p of a split; an unknown character is in every split, a longer unknown piece in none."""
    return sum(scores.get(piece, -20.0 if len(piece) == 1 else -math.inf) for piece in split)


def viterbi(word: str, tokenizer: Unigram) -> list[str]:
    best: list[tuple[float, list[str]]] = [(0.0, [])]
    for end, pieces in enumerate(build_lattice(word, tokenizer.scores, tokenizer.max_piece_length)[1:], 1):
        total, start = max((best[start][0] + score, start) for start, score in pieces)
        best.append((total, [*best[start][1], word[start:end]]))
    return best[-1][1]


def test_edges_are_the_pieces_of_the_word_and_unknown_characters() -> None:
    scores = {"a": -1.0, "ab": -2.0, "bc": -3.0, "long": -4.0}
    assert build_lattice("abc", scores, 4) == [[], [(0, -1.0)], [(0, -2.0), (1, 0.0)], [(1, -3.0), (2, 0.0)]]
    assert build_lattice("long", scores, 4)[-1] == [(0, -4.0), (3, 0.0)]


@pytest.mark.parametrize("byte_fallback", [True, False])
@given(text=TEXT)
@settings(deadline=None, max_examples=150)
def test_the_best_path_scores_as_sentencepieces_split(byte_fallback: bool, text: str) -> None:
    tokenizer = LEARNED[byte_fallback]
    pieces = [piece for word in split_words(text) for piece in viterbi(word, tokenizer)]
    if tokenizer.piece_ids(pieces) != tokenizer.encode(text):  # then the two must be equally good
        theirs = [tokenizer.scores.get(piece, 0.0) for piece in tokenizer.pieces(tokenizer.encode(text))]
        assert sum(tokenizer.scores.get(piece, 0.0) for piece in pieces) == pytest.approx(sum(theirs), rel=1e-5)
    assert [len(word) for word in split_words(text)] == [
        sum(map(len, viterbi(word, tokenizer))) for word in split_words(text)
    ]


@pytest.mark.parametrize("alpha", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("word", ["▁lower", "▁lowж"])
def test_splits_are_sampled_with_their_probability(alpha: float, word: str) -> None:
    tokenizer, draws, rng = learned(size=380, alpha=alpha), 4000, np.random.default_rng(0)
    weights = {tuple(split): math.exp(alpha * score(split, tokenizer.scores)) for split in splits(word)}
    drawn = Counter(tuple(tokenizer.sample_word(word, rng)) for _ in range(draws))
    assert len(drawn) > 1
    for split, weight in weights.items():
        p = weight / sum(weights.values())
        assert abs(drawn[split] / draws - p) <= 5 * (p * (1 - p) / draws) ** 0.5 + 1 / draws, split


def test_a_large_alpha_draws_the_best_split() -> None:
    tokenizer, rng = learned(size=380, alpha=200.0), np.random.default_rng(0)
    for word in WORDS:
        drawn = tokenizer.sample_word("▁" + word, rng)
        best = max(score(split, tokenizer.scores) for split in splits("▁" + word))
        assert score(drawn, tokenizer.scores) == pytest.approx(best, abs=0.2)


@given(text=TEXT, seed=st.integers(0, 1000))
@settings(deadline=None, max_examples=100)
def test_a_sampled_split_decodes_to_the_text(text: str, seed: int) -> None:
    tokenizer = SAMPLING
    assert tokenizer.decode(tokenizer.sample(text, np.random.default_rng(seed))) == text.replace("▁", " ")


SAMPLING = learned(size=380, alpha=0.1)


def test_the_corpus_holds_every_word_as_often_as_it_was_counted() -> None:
    assert Counter(Unigram().corpus_lines(Counter(a=3, b=2, c=1))) == {"a": 3, "b": 2, "c": 1}


def test_a_word_that_outweighs_all_others_is_held_back() -> None:
    assert Counter(Unigram().corpus_lines(Counter(a=1000, b=4, c=1))) == {"a": 6, "b": 4, "c": 1}


def test_of_too_many_words_each_has_its_share_and_none_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unigram, "MAX_TRAINING_WORDS", 100)
    assert Counter(Unigram().corpus_lines(Counter(a=500, b=480, c=20))) == {"a": 50, "b": 48, "c": 2}
    assert Counter(Unigram().corpus_lines(Counter(a=5000, b=5000, c=1)))["c"] == 1


def test_remembering_a_word_changes_no_draw() -> None:
    fresh = learned(size=380, alpha=0.1)
    long = "slower" * MAX_CACHED_LENGTH
    for text in ("lower newer", long):
        SAMPLING.sample(text, np.random.default_rng(5))
        again = SAMPLING.sample(text, np.random.default_rng(6))
        assert again == fresh.sample(text, np.random.default_rng(6))
