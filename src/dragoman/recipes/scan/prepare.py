"""SCAN: commands such as "jump twice" and the actions they ask for, divided in four ways.

    simple         at random: test commands are of the kinds seen in training
    addprim_jump   "jump" is seen alone, then asked for in all that was learned with other verbs
    length         training up to 22 actions, test from 24 to 48
    length26       the same commands with the line at 26, where Csordás et al. 2021 draw it

Nothing is held out to choose by: every system trains a fixed number of steps and its last weights count, as in the
papers. What is easy to hold out here looks like the training commands, and says nothing of the test.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from pathlib import Path

from dragoman.recipes import tables

MAX_TRAIN_ACTIONS = 26  # actions that a training pair of length26 may have
SPLITS = ("simple", "addprim_jump", "length")  # as the set's files are called


def prepare(data_sets: Mapping[str, Path], part: str, folder: Path) -> None:
    """Write the train and test pairs of the split `part`; length26 divides those of `length` again by actions."""
    every = {
        half: list(
            tables.read_rows(
                data_sets["scan"] / f"{'length' if part == 'length26' else part}.{half}.tsv", num_columns=2
            )
        )
        for half in ("train", "test")
    }
    if part == "length26":
        pairs = [*every["train"], *every["test"]]
        every = {
            "train": [row for row in pairs if len(row[1].split()) <= MAX_TRAIN_ACTIONS],
            "test": [row for row in pairs if len(row[1].split()) > MAX_TRAIN_ACTIONS],
        }
    for half, rows in every.items():
        tables.write_rows(folder / f"{half}.tsv", rows)


# -- generated example data --------------------------------------------------------------------------------------------


def make_example(data_sets: Mapping[str, Path], rng: random.Random) -> None:
    """Write 90 sampled commands with their actions, divided in the three ways of the data set."""
    pairs = {command: " ".join(actions) for command, actions in generate_commands()}
    sample = [(command, pairs[command]) for command in rng.sample(sorted(pairs), 90)]
    jumps = [pair for pair in sample if "jump" in pair[0]]
    lengths = sorted(sample, key=lambda pair: len(pair[1].split()))
    halves = {
        "simple": (sample[:80], sample[80:]),
        "addprim_jump": ([pair for pair in sample if pair not in jumps] + 20 * [("jump", "I_JUMP")], jumps[:10]),
        "length": (lengths[:80], lengths[80:]),
    }
    for split, (train, test) in halves.items():
        tables.write_data_set(data_sets["scan"] / f"{split}.train.tsv.gz", train)
        tables.write_data_set(data_sets["scan"] / f"{split}.test.tsv.gz", test)


def generate_commands() -> Iterator[tuple[str, list[str]]]:
    """Yield all pairs of phrases joined by "and", with their actions."""
    every = list(generate_phrases())
    for first, before in every:
        for second, after in every:
            yield f"{first} and {second}", [*before, *after]


def generate_phrases() -> Iterator[tuple[str, list[str]]]:
    """Yield each verb with each direction and number of repetitions, with their actions."""
    for verb in ("walk", "run", "jump"):
        once = {"": [f"I_{verb.upper()}"]} | {
            f" around {side}": [f"I_TURN_{side.upper()}", f"I_{verb.upper()}"] * 4 for side in ("left", "right")
        }
        for way, actions in once.items():
            for times, n in {"": 1, " twice": 2, " thrice": 3}.items():
                yield verb + way + times, actions * n
