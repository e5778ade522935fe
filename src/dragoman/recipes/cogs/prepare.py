"""COGS: English sentences and their logical forms, with a test of 21 kinds of generalization.

    train, dev, test   sentences of one grammar            → train.tsv, valid.tsv, test.tsv
    gen                what that grammar never combined    → gen.tsv, and the kind of each line in gen.groups

"A hedgehog ate the cake" asks for `* cake ( x _ 4 ) ; hedgehog ( x _ 1 ) AND eat . agent ( x _ 2 , x _ 1 ) AND …`;
in training, "hedgehog" was never a subject. Tokens are what spaces separate, on both sides, as in the set.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

from dragoman.recipes import tables

FILES = {"train": "train", "dev": "valid", "test": "test", "gen": "gen"}


def prepare(sets: Mapping[str, Path], part: str, folder: Path) -> None:
    for theirs, ours in FILES.items():
        rows = list(tables.rows(sets["cogs"] / f"{theirs}.tsv", exactly=3))
        tables.write(folder / f"{ours}.tsv", (row[:2] for row in rows))
        if theirs == "gen":
            tables.write(folder / f"{ours}.groups", (row[2:3] for row in rows))


# -- made-up data ------------------------------------------------------------------------------------------------------

THINGS = ("goat", "lamp", "baker", "pilot", "stone")
DEEDS = {"saw": "see", "found": "find", "moved": "move", "washed": "wash"}
NAMES = ("Ida", "Otto", "Nell", "Hugo")


def example(sets: Mapping[str, Path], rng: random.Random) -> None:
    counts = {"train": 80, "dev": 8, "test": 8}
    for name, count in counts.items():
        rows = [statement(rng, THINGS[:3], NAMES, "in_distribution") for _ in range(count)]
        tables.write_set(sets["cogs"] / f"{name}.tsv.gz", rows)
    kinds = ("obj_to_subj_common", "obj_to_subj_proper")
    rows = [statement(rng, THINGS[3:], NAMES, kind) for kind in kinds for _ in range(4)]
    tables.write_set(sets["cogs"] / "gen.tsv.gz", rows)


def statement(rng: random.Random, things: Sequence[str], names: Sequence[str], kind: str) -> tuple[str, str, str]:
    """A sentence of five words with its form: the places of nouns and verbs are the numbers of the variables."""
    name, thing, (said, deed) = rng.choice(names), rng.choice(things), rng.choice(sorted(DEEDS.items()))
    roles = f"{deed} . agent ( x _ 1 , {name} ) AND {deed} . theme ( x _ 1 , x _ 3 )"
    if rng.random() < 0.5:
        return f"{name} {said} the {thing} .", f"* {thing} ( x _ 3 ) ; {roles}", kind
    return f"{name} {said} a {thing} .", f"{roles} AND {thing} ( x _ 3 )", kind
