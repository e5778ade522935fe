"""Pairs of sentences, made up by sentences.py with the labels that logic gives them: nothing to download.

all dogs move > some old poodles move → entailment

test           pairs that training does not have
combinations   pairs that say some verb of some noun which training never says of it
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Mapping
from itertools import islice
from pathlib import Path

from dragoman.recipes import tables
from dragoman.recipes.entailment import sentences
from dragoman.recipes.entailment.sentences import NEUTRAL, NOUNS, VERBS, Sentence

Pair = tuple[Sentence, Sentence, str]

SIZES = (36_000, 1_200)  # pairs to learn from, and for each test
FEW = (99, 21)  # with --example
# Every eighth noun with a verb, in a pattern that leaves each of the words in most of its combinations.
KEPT = frozenset((noun, verb) for i, noun in enumerate(NOUNS) for j, verb in enumerate(VERBS) if (3 * i + j) % 8 == 0)


def prepare(sets: Mapping[str, Path], part: str, folder: Path) -> None:
    many, few = FEW if "example" in sets else SIZES
    train = list(islice(sentences.pairs(random.Random(1), KEPT), many))
    known = {source(pair) for pair in train}
    write(folder, "train", train)
    write(folder, "valid", fresh(few, 2, known, KEPT))
    write_grouped(folder, "test", fresh(few, 3, known, KEPT))
    write_grouped(folder, "combinations", fresh(few, 4, known, ()))


def source(pair: Pair) -> str:
    return f"{pair[0]} > {pair[1]}"


def new(pair: Pair) -> bool:
    return any((one.kind.word, one.does.word) in KEPT for one in pair[:2])


def fresh(count: int, seed: int, known: Collection[str], banned: Collection[tuple[str, str]]) -> list[Pair]:
    """Pairs that training does not have; where nothing is banned, those that it could not have."""
    every = (pair for pair in sentences.pairs(random.Random(seed), banned) if source(pair) not in known)
    return list(islice((pair for pair in every if banned or new(pair)), count))


def write(folder: Path, name: str, every: Iterable[Pair]) -> None:
    tables.write(folder / f"{name}.tsv", ((source(pair), pair[2]) for pair in every))


def write_grouped(folder: Path, name: str, every: list[Pair]) -> None:
    """With the quantifiers of the two sentences as the group of each line."""
    write(folder, name, every)
    words = (["-".join(one.quantifier.replace(" ", "_") for one in pair[:2])] for pair in every)
    tables.write(folder / f"{name}.groups", words)


def baselines(folder: Path, part: str) -> dict[str, list[str]]:
    """The most frequent label of pairs with the same quantifiers, whatever the rest says."""
    counts: dict[str, dict[str, int]] = {}
    for text, label in tables.rows(folder / "train.tsv", 2):
        labels = counts.setdefault(form(text), {})
        labels[label] = labels.get(label, 0) + 1
    usual = {key: max(labels, key=lambda label: labels[label]) for key, labels in counts.items()}
    return {"quantifiers alone": [usual.get(form(row[0]), NEUTRAL) for row in tables.rows(folder / "test.tsv", 2)]}


def form(text: str) -> str:
    """The first words of both sentences, and which of them are negated."""
    return " ".join(f"{one.split()[0]} {'do not' in one}" for one in text.split(" > "))


def example(sets: Mapping[str, Path], rng: random.Random) -> None:
    """There is no data set to be like."""
