"""CIDEr-D against a corpus worked by hand, and what its parts promise."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.core.registry import Part
from dragoman.evaluation.cider import cider_d, document_frequencies, item_score
from dragoman.evaluation.metrics import corpus_score, metrics

WORDS = st.lists(st.sampled_from(["a", "b", "c", "d", "e"]), max_size=8)
ITEMS = st.lists(st.tuples(WORDS, st.lists(WORDS, min_size=1, max_size=3)), min_size=1, max_size=5)


def said(text: str) -> list[str]:
    return text.split()


def test_a_corpus_worked_by_hand() -> None:
    """Two images. Of the first image two people say "a b" and "a c"; of the second one says "a d".

    In the references of both images is "a" alone: it weighs ln(2/2) = 0; all else is in those of one and weighs
    ln 2 =: L. Counts are 1 throughout, so that every n-gram weighs 0 or L.

    Candidate of the first: "a b b".
        n = 1   g(c) = {a: 0, b: 2L}                       r1: {a: 0, b: L}    r2: {a: 0, c: L}
                min(2L, L) · L / (2L · L) = 1/2            with r1, 0 with r2
        n = 2   g(c) = {a b: L, b b: L} (not in any reference: ln 2 − ln 1)
                r1: {a b: L}: L · L / (√2 L · L) = 1/√2    with r1, 0 with r2
        n = 3   "a b b" against nothing: 0                 n = 4   0
        lengths 3 and 2: e^(−1/72) for both references
        10 · e^(−1/72) · (1/2 + 1/√2) / 4 / 2
    Candidate of the second: "a d", said as its reference: (1 + 1 + 0 + 0) / 4 · 10 = 5
    """
    first, second = cider_d([said("a b b"), said("a d")], [[said("a b"), said("a c")], [said("a d")]])
    assert first == pytest.approx(10 * math.exp(-1 / 72) * (1 / 2 + 1 / math.sqrt(2)) / 8)
    assert second == pytest.approx(5)
    metric = metrics.build(Part("cider"))
    found = corpus_score(metric, ["A b, b!", "a d"], [["a b.", "A c."], ["a d"]])
    assert found == pytest.approx(100 * (first + second) / 2)


def plainly(c: list[str], r: list[str], every: list[list[list[str]]], n: int) -> float:
    """sim_n by looking at the definition one n-gram at a time."""

    def grams(words: list[str]) -> list[str]:
        return [" ".join(words[i : i + n]) for i in range(len(words) - n + 1)]

    def weight(words: list[str], w: str) -> float:
        items = sum(any(w in grams(reference) for reference in several) for several in every)
        return grams(words).count(w) * (math.log(len(every)) - math.log(max(1, items)))

    def size(words: list[str]) -> float:
        return math.sqrt(sum(weight(words, w) ** 2 for w in set(grams(words))))

    shared = set(grams(c)) & set(grams(r))
    both = sum(min(weight(c, w), weight(r, w)) * weight(r, w) for w in shared)
    return both / (size(c) * size(r)) * math.exp(-((len(c) - len(r)) ** 2) / 72) if size(c) * size(r) else 0.0


@given(items=ITEMS)
def test_scores_are_those_of_the_definition(items: list[tuple[list[str], list[list[str]]]]) -> None:
    candidates, references = [c for c, _ in items], [several for _, several in items]
    for c, several, found in zip(candidates, references, cider_d(candidates, references), strict=True):
        sims = [plainly(c, r, references, n) for r in several for n in (1, 2, 3, 4)]
        assert found == pytest.approx(10 * sum(sims) / len(sims), abs=1e-9)
        assert -1e-9 <= found <= 10 + 1e-9


def test_repeating_a_matching_word_does_not_raise_the_score() -> None:
    references = [[said("a dog runs on the beach")], [said("two men sit at a table")]]
    rarity = document_frequencies(references)
    best = item_score(said("a dog runs on the beach"), references[0], rarity)
    assert best == pytest.approx(10)
    assert item_score(["dog"] * 6, references[0], rarity) < 0.2 * best
    assert item_score(said("a dog runs on the beach beach beach beach"), references[0], rarity) < 0.9 * best


def test_ngrams_in_the_references_of_every_image_have_no_weight() -> None:
    same = [said("a man in a red shirt")]
    assert cider_d([same[0], same[0]], [same, same]) == [0, 0]
    assert cider_d([same[0]], [same]) == [0]  # alone, it is said of every image there is
