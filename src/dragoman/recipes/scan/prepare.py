"""SCAN: commands such as "jump twice" and the actions they ask for; three splits, each with models of its own."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path

from dragoman.recipes import tables

HELD_OUT = 500  # of the training commands, to choose by


def prepare(sets: Mapping[str, Path], part: str, folder: Path) -> None:
    train = list(tables.rows(sets["scan"] / f"{part}.train.tsv", 2))
    random.Random(1).shuffle(train)
    chosen = {row[0] for row in train[:HELD_OUT]}  # a command that recurs stays on one side
    tables.write(folder / "train.tsv", (row for row in train if row[0] not in chosen or len(train) < 10 * HELD_OUT))
    tables.write(folder / "valid.tsv", (row for row in train if row[0] in chosen))
    tables.write(folder / "test.tsv", tables.rows(sets["scan"] / f"{part}.test.tsv", 2))


def example(sets: Mapping[str, Path], rng: random.Random) -> None:
    verbs, times = {"walk": "I_WALK", "run": "I_RUN", "jump": "I_JUMP"}, {"": 1, " twice": 2, " thrice": 3}
    pairs = [(verb + often, " ".join([act] * n)) for verb, act in verbs.items() for often, n in times.items()]
    for part in ("simple", "addprim_jump", "length"):
        tables.write_set(sets["scan"] / f"{part}.train.tsv.gz", rng.choices(pairs, k=100))
        tables.write_set(sets["scan"] / f"{part}.test.tsv.gz", rng.choices(pairs, k=10))
