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


def prepare(data_sets: Mapping[str, Path], part: str, folder: Path) -> None:
    """Write the four splits, and for gen a .groups file with each line's kind of generalization; `part` is ignored."""
    for theirs, ours in FILES.items():
        rows = list(tables.read_rows(data_sets["cogs"] / f"{theirs}.tsv", num_columns=3))
        tables.write_rows(folder / f"{ours}.tsv", (row[:2] for row in rows))
        if theirs == "gen":
            tables.write_rows(folder / f"{ours}.groups", (row[2:3] for row in rows))


# -- generated example data --------------------------------------------------------------------------------------------

THINGS = ("goat", "lamp", "baker", "pilot", "stone")
VERBS = {"saw": "see", "found": "find", "moved": "move", "washed": "wash"}
NAMES = ("Ida", "Otto", "Nell", "Hugo")


def make_example(data_sets: Mapping[str, Path], rng: random.Random) -> None:
    """Write sentences with their logical forms for all splits; gen has nouns that the others lack."""
    counts = {"train": 80, "dev": 8, "test": 8}
    for name, count in counts.items():
        rows = [generate_statement(rng, THINGS[:3], NAMES, "in_distribution") for _ in range(count)]
        tables.write_data_set(data_sets["cogs"] / f"{name}.tsv.gz", rows)
    kinds = ("obj_to_subj_common", "obj_to_subj_proper")
    rows = [generate_statement(rng, THINGS[3:], NAMES, kind) for kind in kinds for _ in range(4)]
    tables.write_data_set(data_sets["cogs"] / "gen.tsv.gz", rows)


def generate_statement(
    rng: random.Random, things: Sequence[str], names: Sequence[str], kind: str
) -> tuple[str, str, str]:
    """A random sentence "NAME VERB the/a THING .", its logical form in COGS notation, and `kind` unchanged."""
    name, thing, (verb_form, verb) = rng.choice(names), rng.choice(things), rng.choice(sorted(VERBS.items()))
    roles = f"{verb} . agent ( x _ 1 , {name} ) AND {verb} . theme ( x _ 1 , x _ 3 )"
    if rng.random() < 0.5:
        return f"{name} {verb_form} the {thing} .", f"* {thing} ( x _ 3 ) ; {roles}", kind
    return f"{name} {verb_form} a {thing} .", f"{roles} AND {thing} ( x _ 3 )", kind
