"""Pictures of two things, and questions about them; drawn here (data/samples/scenes.py), the same at every run.

    pictures.zip                         SIDE/NUMBER.png
    train.tsv, valid.tsv, test.tsv       what color is the square ? ⇥ pictures.zip/train/7.png ⇥ red
    test.groups                          what is asked for: color or shape

Every test question is about a thing whose shape, color and corner never come together in training.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from dragoman.core import files
from dragoman.data.samples import scenes
from dragoman.recipes import tables

PICTURES: dict[scenes.Side, int] = {"train": 2000, "valid": 100, "test": 250}  # with 4 questions each, in tests 2
SEED = 1


def prepare(sets: Mapping[str, Path], part: str, folder: Path) -> None:
    scenes.write(folder, "questions", PICTURES, SEED)
    for side in PICTURES:
        path = folder / f"{side}.tsv"
        tables.write(path, [(q, f"{scenes.ARCHIVE}/{name}", a) for q, name, a in tables.rows(path, 3)])
    asked = [question.split()[1] for question, *_ in tables.rows(folder / "test.tsv", 3)]
    files.write(folder / "test.groups", "".join(f"{word}\n" for word in asked).encode())


def example(sets: Mapping[str, Path], rng: random.Random) -> None:
    """There is no data set to be like."""


def baselines(folder: Path, part: str) -> dict[str, list[str]]:
    """The most frequent answer to each question, for those who do not look."""
    answers: dict[str, Counter[str]] = {}
    for question, _, answer in tables.rows(folder / "train.tsv", 3):
        answers.setdefault(question, Counter())[answer] += 1
    asked = [question for question, *_ in tables.rows(folder / "test.tsv", 3)]
    return {"without looking": [answers[question].most_common(1)[0][0] for question in asked]}
