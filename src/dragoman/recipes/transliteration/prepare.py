"""A word in another script: romanized Hindi and Telugu into their own, names in Latin letters into Arabic and Katakana.

    dakshina-translit          LANG.{train,dev,test}.tsv[.gz]      native word, romanization, annotators who gave it
    wikidata-names-translit    SCRIPT.{train,dev,test}.tsv.gz      name, target characters with spaces, persons so named

    → romanized word, native word; valid.tsv and test.tsv: every native word that has this romanization there

The counts are no weights: every test item counts once, so every training line does too. They order what is accepted,
the most attested first.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from pathlib import Path

from dragoman.recipes import tables

DAKSHINA = {"hindi": "hi", "telugu": "te"}
SPLITS = {"train": "train", "valid": "dev", "test": "test"}


def prepare(data_sets: Mapping[str, Path], part: str, folder: Path) -> None:
    """Write romanized and native words of `part`; valid and test have every native word of a romanization."""
    for name, split in SPLITS.items():
        pairs = list(
            read_dakshina(data_sets, part, split) if part in DAKSHINA else read_wikidata(data_sets, part, split)
        )
        if split == "train":
            tables.write_rows(folder / "train.tsv", pairs)
            continue
        accepted: dict[str, list[str]] = {}
        for romanized, native in pairs:
            accepted.setdefault(romanized, []).append(native)
        tables.write_rows(folder / f"{name}.tsv", ([romanized, *natives] for romanized, natives in accepted.items()))


def read_dakshina(data_sets: Mapping[str, Path], part: str, split: str) -> Iterator[tuple[str, str]]:
    """Yield (romanized, native) words of a Dakshina split, the most attested first."""
    rows = tables.read_rows(data_sets["dakshina-translit"] / f"{DAKSHINA[part]}.{split}.tsv", num_columns=3)
    for native, romanized, _ in sorted(rows, key=lambda row: -row.integer(2)):
        yield romanized, native


def read_wikidata(data_sets: Mapping[str, Path], part: str, split: str) -> Iterator[tuple[str, str]]:
    """Yield (Latin, native) names of a Wikidata split without spaces, the most frequent first."""
    rows = tables.read_rows(data_sets["wikidata-names-translit"] / f"{part}.{split}.tsv", num_columns=3)
    for name, target, _ in sorted(rows, key=lambda row: -row.integer(2)):
        yield name, target.replace(" ", "")


# -- generated example data --------------------------------------------------------------------------------------------

SYLLABLES = {
    "hi": {"ka": "का", "ki": "की", "ma": "मा", "mo": "मो", "ra": "रा", "lu": "लू", "ta": "ता", "pe": "पे"},
    "te": {"ka": "కా", "ki": "కీ", "ma": "మా", "mo": "మో", "ra": "రా", "lu": "లూ", "ta": "తా", "pe": "పే"},
    "arabic": {"ka": "كا", "ki": "كي", "ma": "ما", "mo": "مو", "ra": "را", "lu": "لو", "ta": "تا", "fé": "في"},
    "katakana": {"ka": "カ", "ki": "キ", "ma": "マ", "mo": "モ", "ra": "ラ", "lu": "ル", "ta": "タ", "pé": "ペ"},
}


def make_example(data_sets: Mapping[str, Path], rng: random.Random) -> None:
    """Write random words of three syllables for each script; Dakshina's files also have shortened romanizations."""
    for script, table in SYLLABLES.items():
        words = dict.fromkeys(tuple(rng.choices(list(table), k=3)) for _ in range(120))
        every = [("".join(word), "".join(table[s] for s in word), str(rng.randint(1, 9))) for word in words]
        cuts = {"train": every[20:], "dev": every[:10], "test": every[10:20]}
        for split, rows in cuts.items():
            if script in DAKSHINA.values():
                swapped = [(native, latin, count) for latin, native, count in rows]
                swapped += [(native, latin[:-1], "1") for latin, native, _ in rows[::2]]
                name = f"{script}.{split}.tsv" + (".gz" if split == "train" else "")
                tables.write_data_set(data_sets["dakshina-translit"] / name, swapped)
            else:
                swapped = [(latin, " ".join(native), count) for latin, native, count in rows]
                tables.write_data_set(data_sets["wikidata-names-translit"] / f"{script}.{split}.tsv.gz", swapped)
