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
from dragoman.recipes.question_answering.stories import PEOPLE, ROOMS, StoryItem

SIZES = (100_000, 1_000)  # stories to learn from, and for each test
EXAMPLE_SIZES = (100, 20)  # with --example
# One room for each person, kept for the test of combinations.
HELD_OUT = frozenset((person, ROOMS[i % len(ROOMS)]) for i, person in enumerate(PEOPLE))


def prepare(data_sets: Mapping[str, Path], part: str, folder: Path) -> None:
    """Generate the stories of training, validation and both tests, fewer with an "example" set; ignores `part`."""
    many, few = EXAMPLE_SIZES if "example" in data_sets else SIZES
    train = list(islice(stories.generate_items(random.Random(1), HELD_OUT), many))
    known = {one.text for one in train}
    write_items(folder / "train.tsv", train)
    write_items(folder / "valid.tsv", draw_unseen(few, 2, known, HELD_OUT))
    write_grouped(folder, "test", draw_unseen(few, 3, known, HELD_OUT))
    write_grouped(folder, "combinations", draw_unseen(few, 4, known, ()))


def draw_unseen(
    count: int, seed: int, known: Collection[str], banned: Collection[stories.Combination]
) -> list[StoryItem]:
    """Draw `count` items that are not in `known`; if nothing is banned, only items with a held-out combination."""
    every = (one for one in stories.generate_items(random.Random(seed), banned) if one.text not in known)
    return list(islice((one for one in every if banned or one.visits & HELD_OUT), count))


def write_items(path: Path, every: Iterable[StoryItem]) -> None:
    """Write the text (story and question) and the answer of each item."""
    tables.write_rows(path, ((one.text, one.answer) for one in every))


def write_grouped(folder: Path, name: str, every: list[StoryItem]) -> None:
    """Write items to NAME.tsv, and the kind of each question as its group to NAME.groups."""
    write_items(folder / f"{name}.tsv", every)
    tables.write_rows(folder / f"{name}.groups", ([one.kind] for one in every))


def baseline_outputs(folder: Path, part: str) -> dict[str, list[str]]:
    """For each test question, the most frequent training answer to its first word; `part` is ignored."""
    counts: dict[str, dict[str, int]] = {}
    for text, answer in tables.read_rows(folder / "train.tsv", 2):
        answers = counts.setdefault(question_word(text), {})
        answers[answer] = answers.get(answer, 0) + 1
    most_frequent = {word: max(answers, key=lambda text: answers[text]) for word, answers in counts.items()}
    return {
        "most frequent answer": [
            most_frequent.get(question_word(row[0]), "") for row in tables.read_rows(folder / "test.tsv", 2)
        ]
    }


def question_word(text: str) -> str:
    """The first word of the question that follows the story: the text after the last ". "."""
    return text.rpartition(". ")[2].split()[0]


def make_example(data_sets: Mapping[str, Path], rng: random.Random) -> None:
    """Do nothing: `prepare` generates the data itself; the arguments are ignored."""
