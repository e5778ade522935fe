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


def prepare(data_sets: Mapping[str, Path], part: str, folder: Path) -> None:
    """Write the pairs of a translation part, and the shuffled texts of both sides of train and valid, unpaired."""
    translation.prepare(data_sets, part, folder)
    for pairs, texts in (("train.tsv", "texts.tsv"), ("valid.tsv", "texts.valid.tsv")):
        tables.write_rows(folder / texts, ([text] for text in shuffled_texts(folder / pairs)))


def shuffled_texts(path: Path) -> Iterator[str]:
    """Yield the distinct texts of both sides of a file's pairs, shuffled with a fixed seed."""
    texts = sorted({text for row in tables.read_rows(path, 2) for text in row})
    random.Random(1).shuffle(texts)
    yield from texts


def make_example(data_sets: Mapping[str, Path], rng: random.Random) -> None:
    """Write example data for each of this recipe's translation parts."""
    for part in PARTS:
        translation.make_example_set(data_sets, part, rng)
