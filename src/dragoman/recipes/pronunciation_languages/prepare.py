"""Words of many languages to IPA phones: two shared tasks, each with entry model for all its languages.

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
VALID_SIZE = (
    100  # of each language, so that each counts alike in choosing the checkpoint; the small ones of 2021 have no more
)


class Word(NamedTuple):
    """A word with its phones and its language."""

    word: str
    phones: str
    language: str
    size: str = ""  # of what there is of its language: high, medium, low


def prepare(data_sets: Mapping[str, Path], part: str, folder: Path) -> None:
    """Write the words of the shared task of year `part` with phones and language; test.groups has the languages."""
    read = read_2020 if part == "2020" else read_2021
    data_set = data_sets[f"sigmorphon{part}-g2p"]
    train, dev, test = (list(read(data_set, split)) for split in ("train", "dev", "test"))
    tables.write_rows(folder / "train.tsv", map(to_row, repeat_small_languages(train)))
    tables.write_rows(folder / "valid.tsv", (to_row(entry) for entry in sample_languages(dev, VALID_SIZE)))
    tables.write_rows(folder / "test.tsv", map(to_row, test))
    tables.write_rows(
        folder / "test.groups", ([f"{entry.size}/{entry.language}" if entry.size else entry.language] for entry in test)
    )


def repeat_small_languages(words: Sequence[Word]) -> Iterator[Word]:
    """Yield all words once, then those of small languages again, REPEATED times in total."""
    for repeat in range(max(REPEATED.values())):
        yield from (entry for entry in words if repeat < REPEATED.get(entry.size, 1))


def to_row(entry: Word) -> tuple[str, str, str]:
    """The word, its phones in Unicode form NFD, and its language."""
    return entry.word, unicodedata.normalize("NFD", entry.phones), entry.language


def read_2020(data_set: Path, split: str) -> Iterator[Word]:
    """The words of a split of the 2020 task."""
    for language, word, phones in tables.read_rows(data_set / f"{split}.tsv", num_columns=3):
        yield Word(word, phones, language)


def read_2021(data_set: Path, split: str) -> Iterator[Word]:
    """The words of a split of the 2021 task, with the size of their language."""
    for size in REPEATED:
        tests = sorted((data_set / size).glob("*_test.tsv*"))  # a training file may have been gzipped, a test file too
        if not tests:
            raise DataError("there is no file LANGUAGE_test.tsv here; --data must name the whole set", data_set / size)
        for language in (test.name.split("_test.tsv")[0] for test in tests):
            for word, phones in tables.read_rows(data_set / size / f"{language}_{split}.tsv", num_columns=2):
                yield Word(word, phones, language, size)


def sample_languages(words: Sequence[Word], count: int) -> Iterator[Word]:
    """Yield at most `count` words of each language, sampled with a fixed seed."""
    for language in sorted({entry.language for entry in words}):
        every = [entry for entry in words if entry.language == language]
        yield from random.Random(1).sample(every, min(count, len(every)))


# -- generated example data --------------------------------------------------------------------------------------------

# Invented spellings: letters with an accent, a syllable of Hangul, kana with a voicing mark.
SPELLINGS = {
    "alp": {"pá": "p aː", "le": "l ɛ", "nó": "n oː", "ši": "ʃ ɪ"},
    "bet": {"노": "n o", "미": "m i", "달": "d a l", "국": "k u k̚"},
    "gam": {"か": "k a", "が": "ɡ a", "も": "m o", "り": "ɾ i"},
}


def make_example(data_sets: Mapping[str, Path], rng: random.Random) -> None:
    """Write words of invented spellings for both tasks: three languages in each split."""
    every = {language: _generate_words(spelling, rng) for language, spelling in SPELLINGS.items()}
    splits = {"train": slice(0, 24), "dev": slice(24, 28), "test": slice(28, 32)}
    for split, some in splits.items():
        rows = [(language, *pair) for language, pairs in every.items() for pair in pairs[some]]
        tables.write_data_set(data_sets["sigmorphon2020-g2p"] / f"{split}.tsv.gz", rows)
        for size, (language, pairs) in zip(REPEATED, every.items(), strict=True):
            gzipped = ".gz" if size != "low" and split == "train" else ""
            name = f"{size}/{language}_{split}.tsv{gzipped}"
            tables.write_data_set(data_sets["sigmorphon2021-g2p"] / name, pairs[some])


def _generate_words(spelling: Mapping[str, str], rng: random.Random) -> list[tuple[str, str]]:
    """All words of three of these syllables with their phones, shuffled; about a quarter contains a space."""
    words_and_phones = []
    for a in spelling:
        for b in spelling:
            for c in spelling:
                gap = rng.choice(("", "", "", " "))
                words_and_phones.append((f"{a}{b}{gap}{c}", " ".join((spelling[a], spelling[b], spelling[c]))))
    rng.shuffle(words_and_phones)
    return words_and_phones
