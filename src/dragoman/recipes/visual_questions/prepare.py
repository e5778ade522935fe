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
from dragoman.data.samples.synthetic import SplitName
from dragoman.recipes import tables

PICTURES: dict[SplitName, int] = {"train": 2000, "valid": 100, "test": 250}  # with 4 questions each, in tests 2
SEED = 1


def prepare(data_sets: Mapping[str, Path], part: str, folder: Path) -> None:
    """Generate pictures; write (question, picture, answer), and test.groups; ignores data sets and `part`."""
    scenes.write_dataset(folder, "questions", PICTURES, SEED)
    for side in PICTURES:
        path = folder / f"{side}.tsv"
        tables.write_rows(path, [(q, f"{scenes.ARCHIVE_NAME}/{name}", a) for q, name, a in tables.read_rows(path, 3)])
    groups = [question.split()[1] for question, *_ in tables.read_rows(folder / "test.tsv", 3)]
    files.write_file(folder / "test.groups", "".join(f"{word}\n" for word in groups).encode())


def make_example(data_sets: Mapping[str, Path], rng: random.Random) -> None:
    """Do nothing: `prepare` generates the data itself; the arguments are ignored."""


def baseline_outputs(folder: Path, part: str) -> dict[str, list[str]]:
    """For each test question, its most frequent training answer, whatever the picture; `part` is ignored."""
    answers: dict[str, Counter[str]] = {}
    for question, _, answer in tables.read_rows(folder / "train.tsv", 3):
        answers.setdefault(question, Counter())[answer] += 1
    questions = [question for question, *_ in tables.read_rows(folder / "test.tsv", 3)]
    return {"without looking": [answers[question].most_common(1)[0][0] for question in questions]}
