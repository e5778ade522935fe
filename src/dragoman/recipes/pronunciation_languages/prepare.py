"""Words of many languages to IPA phones: two shared tasks, each with one model for all its languages.

    2020   {train,dev,test}.tsv.gz                        language, word, phones
    2021   {high,medium,low}/LANG_{train,dev,test}.tsv    word, phones

    → word, phones, language          test.groups: the language of each line; in 2021 with its size before it, low/ady

Phones are written decomposed (NFD), as `data.normalization: nfd` has the model say them. What the tasks distribute is
composed (NFC) throughout, and no two composed texts decompose alike, so every score is that of the composed texts.

The two sets share words, so they are never pooled: a model of one has seen nothing of the other.
"""

from __future__ import annotations

import random
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from dragoman.core.errors import DataError
from dragoman.recipes import tables

# How often a line is seen in an epoch, where languages have 33,000, 8,000 and 800 lines. In proportion to the root of
# the size it would be 1, 2 and 6.5.
REPEATED = {"high": 1, "medium": 2, "low": 8}
VALID = 100  # of each language, so that each has the same say in which checkpoint is best; 2021's low ones have no more


class Word(NamedTuple):
    """A word with its phones and its language."""

    word: str
    phones: str
    language: str
    size: str = ""  # of what there is of its language: high, medium, low


def prepare(sets: Mapping[str, Path], part: str, folder: Path) -> None:
    read = of_2020 if part == "2020" else of_2021
    place = sets[f"sigmorphon{part}-g2p"]
    train, dev, test = (list(read(place, split)) for split in ("train", "dev", "test"))
    tables.write(folder / "train.tsv", map(row, repeated(train)))
    tables.write(folder / "valid.tsv", (row(one) for one in first_of_each(dev, VALID)))
    tables.write(folder / "test.tsv", map(row, test))
    tables.write(folder / "test.groups", ([f"{one.size}/{one.language}" if one.size else one.language] for one in test))


def repeated(words: Sequence[Word]) -> Iterator[Word]:
    """Every word once before any comes again: the data doctor looks at the first 200,000 lines."""
    for turn in range(max(REPEATED.values())):
        yield from (one for one in words if turn < REPEATED.get(one.size, 1))


def row(one: Word) -> tuple[str, str, str]:
    return one.word, unicodedata.normalize("NFD", one.phones), one.language


def of_2020(place: Path, split: str) -> Iterator[Word]:
    for language, word, phones in tables.rows(place / f"{split}.tsv", exactly=3):
        yield Word(word, phones, language)


def of_2021(place: Path, split: str) -> Iterator[Word]:
    for size in REPEATED:
        tests = sorted((place / size).glob("*_test.tsv*"))  # a training file may have been gzipped, a test file too
        if not tests:
            raise DataError("there is no file LANGUAGE_test.tsv here; --data must name the whole set", place / size)
        for language in (test.name.split("_test.tsv")[0] for test in tests):
            for word, phones in tables.rows(place / size / f"{language}_{split}.tsv", exactly=2):
                yield Word(word, phones, language, size)


def first_of_each(words: Sequence[Word], count: int) -> Iterator[Word]:
    """So many of each language, drawn."""
    for language in sorted({one.language for one in words}):
        every = [one for one in words if one.language == language]
        yield from random.Random(1).sample(every, min(count, len(every)))


# -- made-up data ------------------------------------------------------------------------------------------------------

# Invented spellings: letters with an accent, a syllable of Hangul, kana with a voicing mark.
SPELLINGS = {
    "alp": {"pá": "p aː", "le": "l ɛ", "nó": "n oː", "ši": "ʃ ɪ"},
    "bet": {"노": "n o", "미": "m i", "달": "d a l", "국": "k u k̚"},
    "gam": {"か": "k a", "が": "ɡ a", "も": "m o", "り": "ɾ i"},
}


def example(sets: Mapping[str, Path], rng: random.Random) -> None:
    every = {language: _words(spelling, rng) for language, spelling in SPELLINGS.items()}
    splits = {"train": slice(0, 24), "dev": slice(24, 28), "test": slice(28, 32)}
    for split, some in splits.items():
        rows = [(language, *pair) for language, pairs in every.items() for pair in pairs[some]]
        tables.write_set(sets["sigmorphon2020-g2p"] / f"{split}.tsv.gz", rows)
        for size, (language, pairs) in zip(REPEATED, every.items(), strict=True):
            gzipped = ".gz" if size != "low" and split == "train" else ""
            name = f"{size}/{language}_{split}.tsv{gzipped}"
            tables.write_set(sets["sigmorphon2021-g2p"] / name, pairs[some])


def _words(spelling: Mapping[str, str], rng: random.Random) -> list[tuple[str, str]]:
    """All words of three of these syllables, shuffled; some written in two parts."""
    found = []
    for a in spelling:
        for b in spelling:
            for c in spelling:
                gap = rng.choice(("", "", "", " "))
                found.append((f"{a}{b}{gap}{c}", " ".join((spelling[a], spelling[b], spelling[c]))))
    rng.shuffle(found)
    return found
