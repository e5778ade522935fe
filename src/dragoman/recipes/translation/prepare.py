"""Five sets of pairs, of 5,000 to 165,000: each part is one set, in the direction that its figures are given for.

    menyo20k     English → Yoruba              mafand    English → Nigerian Pidgin
    tatoeba-de   German → English              tanaka    English → Japanese, words with spaces between them
    tatoeba-fr   French → English

The sets bring their own splits. A training pair whose source is also a test source is left out.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from dragoman.recipes import tables

Pair = tuple[str, str]

# The set of each part, and whether its second column is the source.
SETS = {
    "menyo20k": ("menyo20k-en-yo", False),
    "mafand": ("mafand-en-pcm", False),
    "tatoeba-de": ("tatoeba-deu-eng", True),
    "tatoeba-fr": ("tatoeba-fra-eng", True),
    "tanaka": ("tanaka-enja", False),
}


def prepare(data_sets: Mapping[str, Path], part: str, folder: Path) -> None:
    """Write the pairs of the data set of `part`; training pairs whose source is in the test are left out."""
    name, is_swapped = SETS[part]
    pairs = {split: list(read_pairs(data_sets[name], split, is_swapped)) for split in ("train", "dev", "test")}
    test_sources = {source for source, _ in pairs["test"]}
    tables.write_rows(folder / "train.tsv", (pair for pair in pairs["train"] if pair[0] not in test_sources))
    tables.write_rows(folder / "valid.tsv", pairs["dev"])
    tables.write_rows(folder / "test.tsv", pairs["test"])


def read_pairs(data_set: Path, split: str, is_swapped: bool) -> Iterator[Pair]:
    """Yield (source, target) of a split: English and Japanese line by line from two files, else from one TSV."""
    if (data_set / f"{split}.en").exists() or (data_set / f"{split}.en.gz").exists():
        return tables.read_parallel(data_set / f"{split}.en", data_set / f"{split}.ja")
    rows = tables.read_rows(data_set / f"{split}.tsv", 2)
    return ((row[1], row[0]) if is_swapped else (row[0], row[1]) for row in rows)


def baseline_outputs(folder: Path, part: str) -> dict[str, list[str]]:
    """For the part "mafand" the test sources unchanged; no baseline ({}) for other parts."""
    if part != "mafand":
        return {}
    return {"the source as it is": [row[0] for row in tables.read_rows(folder / "test.tsv", 2)]}


# -- generated example data --------------------------------------------------------------------------------------------

# Subjects, verbs and objects, and how a sentence is put together of them.
WORDS: dict[str, tuple[str, Sequence[Pair], Sequence[Pair], Sequence[Pair]]] = {
    "menyo20k": (
        "{0} {1} {2}.",
        [("The boy", "Ọmọkùnrin náà"), ("The woman", "Obìnrin náà"), ("Our friend", "Ọ̀rẹ́ wa")],
        [("bought", "ra"), ("saw", "rí"), ("wants", "fẹ́")],
        [("water", "omi"), ("a house", "ilé"), ("yams", "iṣu"), ("two books", "ìwé méjì")],
    ),
    "mafand": (
        "{0} {1} {2}.",
        [("The boy", "Di boy"), ("The governor", "Di governor"), ("Our friend", "Our padi")],
        [("bought", "buy"), ("saw", "see"), ("wants", "dey want")],
        [("water", "wota"), ("a house", "one house"), ("yams", "yam"), ("two books", "two book")],
    ),
    "tatoeba-de": (
        "{0} {1} {2}.",
        [("The boy", "Der Junge"), ("The woman", "Die Frau"), ("Our friend", "Unser Freund")],
        [("buys", "kauft"), ("sees", "sieht"), ("draws", "zeichnet")],
        [("water", "Wasser"), ("a house", "ein Haus"), ("apples", "Äpfel"), ("two books", "zwei Bücher")],
    ),
    "tatoeba-fr": (
        "{0} {1} {2}.",
        [("The boy", "Le garçon"), ("The woman", "La femme"), ("Our friend", "Notre ami")],
        [("buys", "achète"), ("sees", "voit"), ("draws", "dessine")],
        [("water", "de l'eau"), ("a house", "une maison"), ("apples", "des pommes"), ("two books", "deux livres")],
    ),
    "tanaka": (
        "{0} は {2} を {1} 。",
        [("the boy", "少年"), ("the woman", "女 の 人"), ("our friend", "友達")],
        [("bought", "買 っ た"), ("saw", "見 た"), ("drew", "描 い た")],
        [("water", "水"), ("a house", "家"), ("apples", "りんご"), ("two books", "本")],
    ),
}


def make_example(data_sets: Mapping[str, Path], rng: random.Random) -> None:
    """Write example data for every part of this recipe."""
    for part in SETS:
        make_example_set(data_sets, part, rng)


def make_example_set(data_sets: Mapping[str, Path], part: str, rng: random.Random) -> None:
    """Write the data set of one part with generated sentences; no pair is in two splits."""
    data_set, pairs = data_sets[SETS[part][0]], _generate_sentences(part)
    rng.shuffle(pairs)
    for split, some in (("train", pairs[:100]), ("dev", pairs[100:112]), ("test", pairs[112:124])):
        packed = "" if split != "train" and part in ("tatoeba-de", "tatoeba-fr", "tanaka") else ".gz"
        if part == "tanaka":
            for ending, column in (("en", 0), ("ja", 1)):
                tables.write_data_set(data_set / f"{split}.{ending}{packed}", ([pair[column]] for pair in some))
        else:
            tables.write_data_set(data_set / f"{split}.tsv{packed}", some)


def _generate_sentences(part: str) -> list[Pair]:
    """All pairs of two short sentences in a part's two languages, English first."""
    order, subjects, verbs, objects = WORDS[part]
    end = " ." if part == "tanaka" else "."
    one = [
        (f"{subject[0]} {verb[0]} {thing[0]}{end}", order.format(subject[1], verb[1], thing[1]))
        for subject in subjects
        for verb in verbs
        for thing in objects
    ]
    return [(f"{a[0]} {b[0]}", f"{a[1]} {b[1]}") for a in one for b in one[:5] if a != b]
