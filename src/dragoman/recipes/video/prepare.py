"""Clips of one thing that moves, with a sentence and a label; drawn by data/samples/scenes.py, always the same.

    pictures.zip                         SIDE/NUMBER/0.png, 1.png, …
    train.tsv, valid.tsv, test.tsv       pictures.zip/train/7 ⇥ a red square moves left ⇥ left

Every test clip shows a thing whose shape, color and direction never come together in training.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path

from dragoman.data.samples import scenes
from dragoman.data.samples.synthetic import SplitName
from dragoman.recipes import tables

CLIPS: dict[SplitName, int] = {"train": 1200, "valid": 60, "test": 240}  # of 4 to 6 frames
SEED, PIXELS = 7, 24  # not the seed of the clips that dropout was chosen with


def prepare(data_sets: Mapping[str, Path], part: str, folder: Path) -> None:
    """Generate clips, and write each split's clip paths with a sentence and a label; ignores data sets and `part`."""
    scenes.write_dataset(folder, "clips", CLIPS, SEED, PIXELS)
    for side in CLIPS:
        path = folder / f"{side}.tsv"
        tables.write_rows(path, [(f"{scenes.ARCHIVE_NAME}/{name}", *rest) for name, *rest in tables.read_rows(path, 3)])


def make_example(data_sets: Mapping[str, Path], rng: random.Random) -> None:
    """Do nothing: `prepare` generates the data itself; the arguments are ignored."""
