"""Stories with questions, made up by stories.py: nothing to download, and the same for everyone.

    test           stories that training does not have, of the same kind
    combinations   stories in which someone is in a room where training never had that person

Each line of a test has a group: the kind of its question.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Mapping
from itertools import islice
from pathlib import Path

from dragoman.recipes import tables
from dragoman.recipes.question_answering import stories
from dragoman.recipes.question_answering.stories import PEOPLE, ROOMS, Item

SIZES = (100_000, 1_000)  # stories to learn from, and for each test
FEW = (100, 20)  # with --example
# One room for each person, kept for the test of combinations.
KEPT = frozenset((person, ROOMS[i % len(ROOMS)]) for i, person in enumerate(PEOPLE))


def prepare(sets: Mapping[str, Path], part: str, folder: Path) -> None:
    many, few = FEW if "example" in sets else SIZES
    train = list(islice(stories.items(random.Random(1), KEPT), many))
    known = {one.text for one in train}
    write(folder / "train.tsv", train)
    write(folder / "valid.tsv", fresh(few, 2, known, KEPT))
    write_grouped(folder, "test", fresh(few, 3, known, KEPT))
    write_grouped(folder, "combinations", fresh(few, 4, known, ()))


def fresh(count: int, seed: int, known: Collection[str], banned: Collection[stories.Combination]) -> list[Item]:
    """Items that training does not have; where nothing is banned, those that training could not have."""
    every = (one for one in stories.items(random.Random(seed), banned) if one.text not in known)
    return list(islice((one for one in every if banned or one.met & KEPT), count))


def write(path: Path, every: Iterable[Item]) -> None:
    tables.write(path, ((one.text, one.answer) for one in every))


def write_grouped(folder: Path, name: str, every: list[Item]) -> None:
    write(folder / f"{name}.tsv", every)
    tables.write(folder / f"{name}.groups", ([one.kind] for one in every))


def baselines(folder: Path, part: str) -> dict[str, list[str]]:
    """The most frequent answer to a question that begins with the same word."""
    counts: dict[str, dict[str, int]] = {}
    for text, answer in tables.rows(folder / "train.tsv", 2):
        answers = counts.setdefault(first(text), {})
        answers[answer] = answers.get(answer, 0) + 1
    usual = {word: max(answers, key=lambda text: answers[text]) for word, answers in counts.items()}
    return {"most frequent answer": [usual.get(first(row[0]), "") for row in tables.rows(folder / "test.tsv", 2)]}


def first(text: str) -> str:
    """The word that a question begins with: the story before it ends with a period."""
    return text.rpartition(". ")[2].split()[0]


def example(sets: Mapping[str, Path], rng: random.Random) -> None:
    """There is no data set to be like."""
