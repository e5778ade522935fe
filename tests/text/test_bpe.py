"""Merging by hand, against sentencepiece, and with dropout against the paper's loop and its probabilities."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.text.sentencepiece_model import split_words
from dragoman.text.tokenizers.bpe import BPE, apply_merges

CORPUS = [
    "low lower lowest newer wider new slower",
    "aaaa aaa aa a banana bananas",
    "naïve café 東京都 東京 and the other  mothers",
] * 3


def learned(**options: object) -> BPE:
    tokenizer = BPE(**options)
    tokenizer.learn(CORPUS)
    return tokenizer


LEARNED = {byte_fallback: learned(size=420, byte_fallback=byte_fallback) for byte_fallback in (True, False)}
TEXT = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"])),
    st.text("lowernaïb 東京 ▁"),
    st.lists(st.sampled_from(" ".join(CORPUS).split())).map("".join),
)


def test_neighbors_join_in_the_order_of_their_score() -> None:
    scores = {"lo": -0.0, "er": -1.0, "low": -2.0, "▁low": -3.0, "wer": -4.0}
    assert apply_merges("▁lower", scores) == ["▁low", "er"]
    assert apply_merges("▁lower", scores | {"ow": 1.0, "ower": 0.5}) == ["▁", "l", "ower"]


def test_the_leftmost_of_equals_joins_first() -> None:
    assert apply_merges("aaaaa", {"aa": 0.0}) == ["aa", "aa", "a"]
    assert apply_merges("aaaaa", {"aa": 0.0, "aaaa": -1.0}) == ["aaaa", "a"]


@pytest.mark.parametrize("byte_fallback", [True, False])
@given(text=TEXT)
@settings(deadline=None, max_examples=150)
def test_without_dropout_merging_equals_sentencepiece(byte_fallback: bool, text: str) -> None:
    tokenizer = LEARNED[byte_fallback]
    pieces = [piece for word in split_words(text) for piece in apply_merges(word, tokenizer.scores)]
    assert tokenizer.piece_ids(pieces) == tokenizer.encode(text)


def test_a_dropout_too_small_to_happen_equals_encode() -> None:
    tokenizer = learned(size=420, dropout=1e-300)
    for line in CORPUS:
        assert tokenizer.sample(line, np.random.default_rng(0)) == tokenizer.encode(line)


def paper(word: str, scores: dict[str, float], dropout: float, rng: np.random.Generator) -> list[str]:
    """Provilkov et al., Algorithm 1, word for word: all merges, some dropped, the best of the rest, again."""
    split = list(word)
    while True:
        merges = [(-scores[a + b], i) for i, (a, b) in enumerate(pairwise(split)) if a + b in scores]
        merges = [merge for merge in merges if rng.random() >= dropout]
        if not merges:
            return split
        _, i = min(merges)
        split[i : i + 2] = [split[i] + split[i + 1]]


@pytest.mark.parametrize("dropout", [0.1, 0.5, 0.9])
@pytest.mark.parametrize(
    "scores",
    [
        {"ab": 0.0, "bc": -1.0, "abc": -2.0, "cd": -3.0, "abcd": -4.0, "bcd": -5.0},
        {"ab": 0.0, "cd": -1.0},  # a merge that was dropped has a new chance after the other
    ],
)
def test_dropout_has_the_distribution_of_the_papers_loop(dropout: float, scores: dict[str, float]) -> None:
    draws, rng = 4000, np.random.default_rng(0)
    ours = Counter(tuple(apply_merges("abcd", scores, dropout, rng)) for _ in range(draws))
    theirs = Counter(tuple(paper("abcd", scores, dropout, rng)) for _ in range(draws))
    for split in set(ours) | set(theirs):
        p = (ours[split] + theirs[split]) / (2 * draws)
        # five standard deviations of the difference of two shares
        assert abs(ours[split] - theirs[split]) / draws < 5 * (2 * p * (1 - p) / draws) ** 0.5, split


def test_one_possible_merge_is_dropped_with_the_dropout_probability() -> None:
    rng, draws, p = np.random.default_rng(0), 4000, 0.3
    dropped = sum(apply_merges("ab", {"ab": 0.0}, p, rng) == ["a", "b"] for _ in range(draws))
    assert abs(dropped / draws - p) < 5 * (p * (1 - p) / draws) ** 0.5


@given(text=TEXT, seed=st.integers(0, 1000))
@settings(deadline=None, max_examples=100)
def test_a_sampled_split_decodes_to_the_text(text: str, seed: int) -> None:
    tokenizer = LEARNED[True]
    pieces = [
        piece
        for word in split_words(text)
        for piece in apply_merges(word, tokenizer.scores, 0.5, np.random.default_rng(seed))
    ]
    assert tokenizer.decode(tokenizer.piece_ids(pieces)) == text.replace("▁", " ")


def test_a_very_long_word_is_merged_in_good_time() -> None:
    assert (
        "".join(apply_merges("ab" * 20_000, {"ab": 0.0, "abab": -1.0}, 0.1, np.random.default_rng(0))) == "ab" * 20_000
    )
