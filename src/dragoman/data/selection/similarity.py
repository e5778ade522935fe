"""Find texts that are nearly the same: inflections of one word, and sentences with a few edits between them.

    words       share a stem of p characters, |a| ≤ |b|:   p ≥ 4,  p ≥ ⅔|a|,  p ≥ 0.55|b|,  |a| − p ≤ 2,  |b| − p ≤ 4
                or an ending, by stricter limits (languages that inflect in front); the strength is 2p / (|a| + |b|)
    sentences   Levenshtein similarity ≥ 0.85, which is the strength

Candidates come from three orders of the texts, so that the time grows like n log n: neighbors in alphabetical order (a
common beginning), neighbors in the alphabetical order of the reversed texts (a common end), and for sentences equal
bands of MinHash signatures of character n-grams (Broder 1997), which finds changes at both ends:

    P(two texts become candidates) = 1 − (1 − J^r)^b      J Jaccard similarity, r rows in a band, b bands

Nothing depends on the order in which texts are given: they are sorted first.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rapidfuzz import process
from rapidfuzz.distance import Levenshtein, Postfix, Prefix

Ints = NDArray[np.int64]
TagSide = Literal["start", "end"]

# -- texts in a form to compare ----------------------------------------------------------------------------------------

ACCENTS = re.compile("[\u0300-\u036f]")  # of Latin, Greek and Cyrillic; the vowel signs of other scripts stay
# ASCII's, and what other languages add; not \W, which has the vowel signs of Indic scripts
PUNCTUATION = re.compile(f"[{re.escape(string.punctuation)}¡¿«»„“”‚‘’…–—、。・「」『』！？，：；（）।]+")
# A grammatical tag: N;PL, V.PTCP;PRS, NOM(2,SG), PST, [PST], pos=V,tense=PST.
TAG = re.compile(r"[\[<{(]?[A-Z0-9][A-Z0-9;:.,|/+*{}()<>\[\]-]*|\S+=\S*")
FILE_NAME = re.compile(r"\S+\.[A-Za-z][A-Za-z0-9]{1,4}")
DIGIT = re.compile(r"\d")


def fold_text(text: str) -> str:
    """A text without case, accents, punctuation and extra spaces; letters with spaces between them are a word."""
    folded = text.casefold()
    if not folded.isascii():
        folded = ACCENTS.sub("", unicodedata.normalize("NFD", folded))
    words = PUNCTUATION.sub("", folded).split()
    if not words:
        return " ".join(text.split())
    is_spelled = len(words) > 1 and all(len(word) == 1 for word in words)
    return "".join(words) if is_spelled else " ".join(words)


def find_tag_side(text: str) -> TagSide | None:
    """Where a text of words and grammatical tags has its tags: `walk V;PST` at the end; None for other texts."""
    words = text.split()
    if len(words) < 2:
        return None
    first, last = (TAG.fullmatch(word) is not None for word in (words[0], words[-1]))
    if first == last or len(words[-1] if last else words[0]) < 2:
        return None
    return "end" if last else "start"


def drop_tags(text: str, side: TagSide) -> str:
    """A text without the grammatical tags at one of its ends: `walk V;PST` → `walk`. One word is always left."""
    words = text.split() if side == "end" else text.split()[::-1]
    while len(words) > 1 and TAG.fullmatch(words[-1]):
        words.pop()
    return " ".join(words if side == "end" else words[::-1])


def is_file_name(text: str) -> bool:
    """Whether a text looks like the name of a file (a source that is an image or a sound)."""
    return FILE_NAME.fullmatch(text) is not None


# -- pairs of similar texts --------------------------------------------------------------------------------------------

MAX_WORD = 24  # characters, and at most two words: a word; longer texts are sentences
MIN_STEM, MIN_ENDING = 4, 6
STEM_SHARE, LONG_STEM_SHARE = 2 / 3, 0.55  # of the shorter and of the longer word
ENDING_SHARE = 0.75  # of the longer word
SHORT_REST, LONG_REST = 2, 4  # characters after the stem: walk-ed, walk-ing
NEAR = 0.85  # Levenshtein similarity of sentences
WORD_WINDOW, SENTENCE_WINDOW = 24, 4  # neighbors in a sorted order that are compared
MAX_COMPARED = 2_000  # characters of a sentence that are compared


class Links(NamedTuple):
    """Pairs of similar texts, by their rows, and how similar each pair is, from 0 to 1."""

    left: Ints
    right: Ints
    strength: NDArray[np.float64]


def join_links(links: Sequence[Links]) -> Links:
    """Several collections of links as one."""
    none = np.zeros(0, np.int64)
    return Links(*(np.concatenate(side) for side in zip((none, none, np.zeros(0)), *links, strict=True)))


def is_word(text: str) -> bool:
    """Whether a folded text is a word, or two."""
    return len(text) <= MAX_WORD and text.count(" ") < 2


def find_similar(texts: Sequence[str]) -> Links:
    """The links between similar texts, which are folded, distinct and sorted."""
    if len(texts) < 2:
        return join_links([])
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    word = np.fromiter(map(is_word, texts), bool, len(texts))
    inflects = word & np.fromiter((DIGIT.search(text) is None for text in texts), bool, len(texts))
    forward = np.arange(len(texts))
    backward = np.array(sorted(range(len(texts)), key=lambda row: texts[row][::-1]), np.int64)
    found: list[Links] = []
    candidates: list[tuple[Ints, Ints]] = []
    for order, scorer, is_related in ((forward, Prefix, _share_stem), (backward, Postfix, _share_ending)):
        for lag, shared in _shared_with_neighbors(texts, order, scorer.similarity):
            left, right = order[: len(order) - lag], order[lag:]
            a, b = lengths[left], lengths[right]
            both = inflects[left] & inflects[right] & is_related(shared, np.minimum(a, b), np.maximum(a, b))
            found.append(Links(left[both], right[both], (2 * shared / (a + b))[both]))
            if lag <= SENTENCE_WINDOW:
                near = ~(word[left] & word[right]) & (2 * shared >= np.maximum(a, b))
                candidates.append((left[near], right[near]))
    sentences = np.flatnonzero(~word)
    candidates += [(sentences[a], sentences[b]) for a, b in _share_bands([texts[row] for row in sentences.tolist()])]
    found += _verify(texts, lengths, candidates)
    return join_links(found)


def _share_stem(shared: Ints, shorter: Ints, longer: Ints) -> NDArray[np.bool_]:
    is_stem = (shared >= MIN_STEM) & (shared >= STEM_SHARE * shorter) & (shared >= LONG_STEM_SHARE * longer)
    return is_stem & (shorter - shared <= SHORT_REST) & (longer - shared <= LONG_REST)


def _share_ending(shared: Ints, shorter: Ints, longer: Ints) -> NDArray[np.bool_]:
    return (shared >= MIN_ENDING) & (shared >= ENDING_SHARE * longer)


def _shared_with_neighbors(
    texts: Sequence[str], order: Ints, similarity: Callable[..., Any]
) -> Iterator[tuple[int, Ints]]:
    """lag → for each position i of a sorted order, the characters that its text shares with that of i + lag.

    In sorted texts, shared(i, i + lag) = min over the neighbors between them.
    """
    in_order = [texts[row] for row in order.tolist()]
    adjacent = process.cpdist(in_order[:-1], in_order[1:], scorer=similarity, dtype=np.int64)
    shared = adjacent
    for lag in range(1, min(WORD_WINDOW, len(in_order) - 1) + 1):
        if lag > 1:
            shared = np.minimum(shared[:-1], adjacent[lag - 1 :])
        yield lag, shared


def _verify(texts: Sequence[str], lengths: Ints, candidates: Sequence[tuple[Ints, Ints]]) -> Iterator[Links]:
    """The candidates whose Levenshtein similarity is at least NEAR, each once."""
    left, right = (np.concatenate(side) for side in zip(*candidates, strict=True))
    a, b = np.minimum(left, right), np.maximum(left, right)
    possible = np.minimum(lengths[a], lengths[b]) >= NEAR * np.maximum(lengths[a], lengths[b])
    a, b = np.unique(np.stack([a[possible], b[possible]]), axis=1)
    for start in range(0, len(a), CHUNK):
        rows_a, rows_b = a[start : start + CHUNK], b[start : start + CHUNK]
        sides = [[texts[row][:MAX_COMPARED] for row in rows.tolist()] for rows in (rows_a, rows_b)]
        strength = process.cpdist(*sides, scorer=Levenshtein.normalized_similarity, score_cutoff=NEAR, dtype=np.float64)
        near = strength >= NEAR
        yield Links(rows_a[near], rows_b[near], strength[near])


# -- MinHash -----------------------------------------------------------------------------------------------------------

BANDS = 12
CHUNK = 50_000  # texts, or candidates, at a time: bounds the memory
BUCKET_WINDOW = 3  # neighbors in a bucket that are compared
HASH_BASE = np.uint64(0x9E3779B97F4A7C15)


def _share_bands(texts: Sequence[str]) -> Iterator[tuple[Ints, Ints]]:
    """Candidates: rows of texts that share all hashes of a band with a neighbor in its bucket."""
    if len(texts) < 2:
        return
    # The more texts, the longer a band, so that few texts share one by chance; the longer the texts, the longer n.
    rows = min(max(len(str(len(texts))) - 1, 2), 6)
    mean = sum(map(len, texts)) / len(texts)
    n = 3 if mean <= 80 else 5 if mean <= 400 else 8
    bands = np.concatenate(
        [_minhash_bands(texts[start : start + CHUNK], n, rows) for start in range(0, len(texts), CHUNK)], axis=1
    )
    for band in bands:  # (N,)
        order = np.argsort(band, kind="stable")
        values = band[order]
        for lag in range(1, min(BUCKET_WINDOW, len(values) - 1) + 1):
            same = values[lag:] == values[:-lag]
            yield order[:-lag][same], order[lag:][same]


def _minhash_bands(texts: Sequence[str], n: int, rows: int) -> NDArray[np.uint64]:
    """(BANDS, N): one hash for each band of each text's MinHash signature of character n-grams."""
    # Every text ends with n - 1 blanks, so that each has an n-gram and none crosses into the next text.
    padded = "".join(text[:MAX_COMPARED] + " " * (n - 1) for text in texts) + " " * (n - 1)
    codes = np.frombuffer(padded.encode("utf-32-le"), np.uint32).astype(np.uint64)
    starts = np.cumsum([0] + [len(text[:MAX_COMPARED]) + n - 1 for text in texts])[:-1]
    total = len(codes) - (n - 1)
    grams = np.zeros(total, np.uint64)
    for i in range(n):
        grams = grams * HASH_BASE + codes[i : i + total]
    grams = _mix(grams)
    generator = np.random.default_rng(1)
    factors = generator.integers(1, 2**63, (BANDS, rows), dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    bands = np.zeros((BANDS, len(texts)), np.uint64)
    for band, band_factors in enumerate(factors):
        for factor in band_factors:
            minima = np.minimum.reduceat(grams * factor, starts)
            bands[band] = _mix(bands[band] * HASH_BASE + minima)
    return bands


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Spread the bits of 64-bit hashes (the finalizer of splitmix64)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
