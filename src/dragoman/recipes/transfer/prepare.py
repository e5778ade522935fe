"""German → English with few pairs, and French → English with all, to learn English from.

parent.tsv    French → English, without English sentences of the German validation and test pairs
train.tsv     the first 2,000 or 10,000 of the shuffled German pairs
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path

from dragoman.recipes import tables
from dragoman.recipes.translation import prepare as translation

COUNTS = {"2k": 2_000, "10k": 10_000}


def prepare(data_sets: Mapping[str, Path], part: str, folder: Path) -> None:
    """Write the child's pairs, a part of the training pairs shuffled with a fixed seed, and the parent's."""
    translation.prepare(data_sets, "tatoeba-de", folder)
    child = list(tables.read_rows(folder / "train.tsv", 2))
    random.Random(1).shuffle(child)
    tables.write_rows(folder / "train.tsv", child[: COUNTS[part]])
    held_out = {row[1] for name in ("valid", "test") for row in tables.read_rows(folder / f"{name}.tsv", 2)}
    for split, name in (("train", "parent.tsv"), ("dev", "parent.valid.tsv")):
        pairs = translation.read_pairs(data_sets["tatoeba-fra-eng"], split, is_swapped=True)
        tables.write_rows(folder / name, (pair for pair in pairs if pair[1] not in held_out))


def make_example(data_sets: Mapping[str, Path], rng: random.Random) -> None:
    """Write example data for both languages."""
    for part in ("tatoeba-fr", "tatoeba-de"):
        translation.make_example_set(data_sets, part, rng)
