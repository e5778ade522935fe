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
SEPARATOR = " | "  # between utterances; the data has none of these


def prepare(data_sets: Mapping[str, Path], part: str, folder: Path) -> None:
    """Write contexts with responses; valid.tsv and unseen.tsv leave out what occurs in train; `part` is ignored."""
    train, dev, test = (
        list(tables.read_rows(data_sets["dailydialog"] / f"{split}.txt")) for split in ("train", "dev", "test")
    )
    known_dialogues, known_contexts = (
        {tuple(dialogue) for dialogue in train},
        {context for context, _ in make_pairs(train)},
    )

    def unseen(dialogues: Iterable[Sequence[str]]) -> Iterator[Pair]:
        """The pairs of dialogues that are not in train, without contexts that are in train."""
        new = make_pairs(dialogue for dialogue in dialogues if tuple(dialogue) not in known_dialogues)
        return (pair for pair in new if pair[0] not in known_contexts)

    tables.write_rows(folder / "train.tsv", make_pairs(train))
    tables.write_rows(folder / "valid.tsv", unseen(dev))
    tables.write_rows(folder / "test.tsv", make_pairs(test))
    tables.write_rows(folder / "unseen.tsv", unseen(test))


def make_pairs(dialogues: Iterable[Sequence[str]]) -> Iterator[Pair]:
    """Pair each utterance but a dialogue's first with the last CONTEXT utterances before it, joined as one text."""
    for dialogue in dialogues:
        for i in range(1, len(dialogue)):
            yield SEPARATOR.join(dialogue[max(0, i - CONTEXT) : i]), dialogue[i]


def baseline_outputs(folder: Path, part: str) -> dict[str, list[str]]:
    """For unseen.tsv, always the most frequent training response, and the last utterance again; `part` is ignored."""
    counts: dict[str, int] = {}
    for _, response in tables.read_rows(folder / "train.tsv", 2):
        counts[response] = counts.get(response, 0) + 1
    usual = max(counts, key=lambda response: counts[response])
    contexts = [row[0] for row in tables.read_rows(folder / "unseen.tsv", 2)]
    return {f"always '{usual}'": [usual] * len(contexts), "an echo": [text.split(SEPARATOR)[-1] for text in contexts]}


# -- generated example data --------------------------------------------------------------------------------------------

DRINKS, PLACES = ("tea", "coffee", "juice", "cocoa"), ("garden", "kitchen", "office", "café")
EXCHANGES = (
    ("Would you like some {drink} ?", "Yes , please . {Drink} is what I like best ."),
    ("Where shall we have it ?", "In the {place} , if you don't mind ."),
    ("Isn't it cold in the {place} today ?", "A little . Let's stay here , then ."),
    ("Do you take sugar ?", "No , thanks . Just {drink} ."),
)


def make_example(data_sets: Mapping[str, Path], rng: random.Random) -> None:
    """Write random short dialogues about drinks as train, dev and test; the test repeats one of train."""
    dialogues_by_split = {
        split: [_generate_dialogue(rng) for _ in range(n)] for split, n in (("train", 40), ("dev", 8), ("test", 8))
    }
    dialogues_by_split["test"].append(dialogues_by_split["train"][0])  # as in the set: some occur again
    for split, dialogues in dialogues_by_split.items():
        tables.write_data_set(data_sets["dailydialog"] / f"{split}.txt.gz", dialogues)


def _generate_dialogue(rng: random.Random) -> list[str]:
    """A random selection of exchanges about one drink and one place, as a list of utterances."""
    drink, place = rng.choice(DRINKS), rng.choice(PLACES)
    turns = rng.sample(EXCHANGES, rng.randint(1, len(EXCHANGES)))
    words = {"drink": drink, "Drink": drink.capitalize(), "place": place}
    return [text.format(**words) for turn in turns for text in turn]
