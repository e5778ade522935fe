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
EXAMPLE_SIZES = (99, 21)  # with --example
# Every eighth noun with a verb, in a pattern that leaves each of the words in most of its combinations.
HELD_OUT = frozenset(
    (noun, verb) for i, noun in enumerate(NOUNS) for j, verb in enumerate(VERBS) if (3 * i + j) % 8 == 0
)


def prepare(data_sets: Mapping[str, Path], part: str, folder: Path) -> None:
    """Generate the pairs of training, validation and both tests, fewer with an "example" set; ignores `part`."""
    many, few = EXAMPLE_SIZES if "example" in data_sets else SIZES
    train = list(islice(sentences.generate_pairs(random.Random(1), HELD_OUT), many))
    known = {format_source(pair) for pair in train}
    write_pairs(folder, "train", train)
    write_pairs(folder, "valid", draw_unseen(few, 2, known, HELD_OUT))
    write_grouped(folder, "test", draw_unseen(few, 3, known, HELD_OUT))
    write_grouped(folder, "combinations", draw_unseen(few, 4, known, ()))


def format_source(pair: Pair) -> str:
    """Join both sentences as one source text: "first > second"."""
    return f"{pair[0]} > {pair[1]}"


def has_held_out_combination(pair: Pair) -> bool:
    """Whether a sentence of the pair has a noun and a verb that training never combines."""
    return any((one.subject.word, one.predicate.word) in HELD_OUT for one in pair[:2])


def draw_unseen(count: int, seed: int, known: Collection[str], banned: Collection[tuple[str, str]]) -> list[Pair]:
    """Draw `count` pairs that are not in `known`; if nothing is banned, only pairs with a held-out combination."""
    every = (pair for pair in sentences.generate_pairs(random.Random(seed), banned) if format_source(pair) not in known)
    return list(islice((pair for pair in every if banned or has_held_out_combination(pair)), count))


def write_pairs(folder: Path, name: str, every: Iterable[Pair]) -> None:
    """Write the source text and the label of each pair to NAME.tsv."""
    tables.write_rows(folder / f"{name}.tsv", ((format_source(pair), pair[2]) for pair in every))


def write_grouped(folder: Path, name: str, every: list[Pair]) -> None:
    """Write pairs to NAME.tsv, and the quantifiers of both sentences as each line's group to NAME.groups."""
    write_pairs(folder, name, every)
    words = (["-".join(one.quantifier.replace(" ", "_") for one in pair[:2])] for pair in every)
    tables.write_rows(folder / f"{name}.groups", words)


def baseline_outputs(folder: Path, part: str) -> dict[str, list[str]]:
    """For each test pair, the most frequent training label of its quantifier pattern; `part` is ignored."""
    counts: dict[str, dict[str, int]] = {}
    for text, label in tables.read_rows(folder / "train.tsv", 2):
        labels = counts.setdefault(quantifier_pattern(text), {})
        labels[label] = labels.get(label, 0) + 1
    usual = {key: max(labels, key=lambda label: labels[label]) for key, labels in counts.items()}
    return {
        "quantifiers alone": [
            usual.get(quantifier_pattern(row[0]), NEUTRAL) for row in tables.read_rows(folder / "test.tsv", 2)
        ]
    }


def quantifier_pattern(text: str) -> str:
    """The first word of each sentence of a source text, and whether the sentence has "do not"."""
    return " ".join(f"{one.split()[0]} {'do not' in one}" for one in text.split(" > "))


def make_example(data_sets: Mapping[str, Path], rng: random.Random) -> None:
    """Do nothing: `prepare` generates the data itself; the arguments are ignored."""
