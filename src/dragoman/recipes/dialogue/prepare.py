"""Everyday dialogues: from the last three utterances to the next one.

    u₁ | u₂ | u₃ → u₄

    test     every response of the test dialogues
    unseen   without dialogues that occur in train word for word, and without responses to the same utterances (three,
             or fewer at a dialogue's beginning) as some response there, whatever it says

What is left out of unseen is not validated on in dev either.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from dragoman.recipes import tables

Pair = tuple[str, str]

CONTEXT = 3  # utterances
TURN = " | "  # between utterances; the data has none of these


def prepare(sets: Mapping[str, Path], part: str, folder: Path) -> None:
    train, dev, test = (list(tables.rows(sets["dailydialog"] / f"{split}.txt")) for split in ("train", "dev", "test"))
    known_dialogues, known_contexts = {tuple(dialogue) for dialogue in train}, {context for context, _ in pairs(train)}

    def unseen(dialogues: Iterable[Sequence[str]]) -> Iterator[Pair]:
        new = pairs(dialogue for dialogue in dialogues if tuple(dialogue) not in known_dialogues)
        return (pair for pair in new if pair[0] not in known_contexts)

    tables.write(folder / "train.tsv", pairs(train))
    tables.write(folder / "valid.tsv", unseen(dev))
    tables.write(folder / "test.tsv", pairs(test))
    tables.write(folder / "unseen.tsv", unseen(test))


def pairs(dialogues: Iterable[Sequence[str]]) -> Iterator[Pair]:
    """Every utterance but a dialogue's first, with those before it."""
    for dialogue in dialogues:
        for i in range(1, len(dialogue)):
            yield TURN.join(dialogue[max(0, i - CONTEXT) : i]), dialogue[i]


def baselines(folder: Path, part: str) -> dict[str, list[str]]:
    """What is said most often, whatever came before; and what was said last, said again."""
    said: dict[str, int] = {}
    for _, response in tables.rows(folder / "train.tsv", 2):
        said[response] = said.get(response, 0) + 1
    usual = max(said, key=lambda response: said[response])
    contexts = [row[0] for row in tables.rows(folder / "unseen.tsv", 2)]
    return {f"always '{usual}'": [usual] * len(contexts), "an echo": [text.split(TURN)[-1] for text in contexts]}


# -- made-up data ------------------------------------------------------------------------------------------------------

DRINKS, PLACES = ("tea", "coffee", "juice", "cocoa"), ("garden", "kitchen", "office", "café")
SAID = (
    ("Would you like some {drink} ?", "Yes , please . {Drink} is what I like best ."),
    ("Where shall we have it ?", "In the {place} , if you don't mind ."),
    ("Isn't it cold in the {place} today ?", "A little . Let's stay here , then ."),
    ("Do you take sugar ?", "No , thanks . Just {drink} ."),
)


def example(sets: Mapping[str, Path], rng: random.Random) -> None:
    made = {split: [_dialogue(rng) for _ in range(n)] for split, n in (("train", 40), ("dev", 8), ("test", 8))}
    made["test"].append(made["train"][0])  # as in the set: some occur again
    for split, dialogues in made.items():
        tables.write_set(sets["dailydialog"] / f"{split}.txt.gz", dialogues)


def _dialogue(rng: random.Random) -> list[str]:
    drink, place = rng.choice(DRINKS), rng.choice(PLACES)
    turns = rng.sample(SAID, rng.randint(1, len(SAID)))
    words = {"drink": drink, "Drink": drink.capitalize(), "place": place}
    return [text.format(**words) for turn in turns for text in turn]
