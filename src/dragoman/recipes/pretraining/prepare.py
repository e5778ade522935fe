"""The low-resource pairs of the recipe `translation`, and the same texts without what belongs together.

texts.tsv     every source and every target of train.tsv, one on a line, in no order
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from pathlib import Path

from dragoman.recipes import tables
from dragoman.recipes.translation import prepare as translation

PARTS = ("mafand", "menyo20k")


def prepare(sets: Mapping[str, Path], part: str, folder: Path) -> None:
    translation.prepare(sets, part, folder)
    for pairs, texts in (("train.tsv", "texts.tsv"), ("valid.tsv", "texts.valid.tsv")):
        tables.write(folder / texts, ([text] for text in unpaired(folder / pairs)))


def unpaired(path: Path) -> Iterator[str]:
    """Both sides of a file's pairs, shuffled, each text once."""
    texts = sorted({text for row in tables.rows(path, 2) for text in row})
    random.Random(1).shuffle(texts)
    yield from texts


def example(sets: Mapping[str, Path], rng: random.Random) -> None:
    for part in PARTS:
        translation.write_example(sets, part, rng)
