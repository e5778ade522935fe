"""Texts for a language model: the English side of Tatoeba's French and English pairs, each sentence once.

The set's splits share no sentence, on either side.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from itertools import product
from pathlib import Path

from dragoman.recipes import tables


def prepare(data_sets: Mapping[str, Path], part: str, folder: Path) -> None:
    """Write the distinct English sentences of each split, one on a line; `part` is ignored."""
    for split, name in (("train", "train"), ("dev", "valid"), ("test", "test")):
        english = dict.fromkeys(row[0] for row in tables.read_rows(data_sets["tatoeba-fra-eng"] / f"{split}.tsv", 2))
        tables.write_rows(folder / f"{name}.tsv", ([text] for text in english))


WHO = (("I", "Je"), ("You", "Tu"), ("Tom", "Tom"), ("The cat", "Le chat"), ("My aunt", "Ma tante"))
DOES = (("sang", "chanta"), ("slept", "dormit"), ("laughed", "rit"), ("came back", "revint"), ("ate", "mangea"))
WHEN = (("", ""), (" today", " aujourd'hui"), (" at night", " la nuit"), (" again", " encore"))
ENDS = ((".", "."), ("!", " !"))


def make_example(data_sets: Mapping[str, Path], rng: random.Random) -> None:
    """Write 150 pairs of English and French sentences of a small grammar, divided into train, dev and test."""
    pairs = [
        (f"{who[0]} {does[0]}{when[0]}{end[0]}", f"{who[1]} {does[1]}{when[1]}{end[1]}")
        for who, does, when, end in product(WHO, DOES, WHEN, ENDS)
    ]
    rng.shuffle(pairs)
    for name, some in (("train.tsv.gz", pairs[:120]), ("dev.tsv", pairs[120:135]), ("test.tsv", pairs[135:150])):
        tables.write_data_set(data_sets["tatoeba-fra-eng"] / name, some)
