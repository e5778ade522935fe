"""CMUdict: English words and how they are said, in ARPAbet, without stress.

    train.tsv.gz             word, phones                        a line for each pronunciation
    dev.tsv.gz, test.tsv.gz  word, phones, phones, …             a line for each word, with all that is accepted

Stress is left out (AH0 → AH), as the published figures have it. Pronunciations that differ in stress alone become one.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path

from dragoman.recipes import tables


def prepare(data_sets: Mapping[str, Path], part: str, folder: Path) -> None:
    """Write words with phones without stress; valid and test have all pronunciations of a word; ignores `part`."""
    data_set = data_sets["cmudict"]
    train = ((word, remove_stress(phones)) for word, phones in tables.read_rows(data_set / "train.tsv", num_columns=2))
    tables.write_rows(folder / "train.tsv", dict.fromkeys(train))
    for name, file in {"valid": "dev", "test": "test"}.items():
        rows = tables.read_rows(data_set / f"{file}.tsv", 2)
        tables.write_rows(
            folder / f"{name}.tsv",
            ([word, *dict.fromkeys(map(remove_stress, pronunciations))] for word, *pronunciations in rows),
        )


def remove_stress(phones: str) -> str:
    """ARPAbet phones without the digits of stress."""
    return " ".join(phone.rstrip("012") for phone in phones.split())


# -- generated example data --------------------------------------------------------------------------------------------

ONSETS = {"b": "B", "d": "D", "k": "K", "l": "L", "m": "M", "sh": "SH", "t": "T", "z": "Z"}
VOWELS = {"a": "AA", "ee": "IY", "i": "IH", "o": "OW", "u": "UW"}


def make_example(data_sets: Mapping[str, Path], rng: random.Random) -> None:
    """Write random words of two or three syllables with their phones and their forms in 's, some with two variants."""
    stems = dict.fromkeys(tuple(_draw_syllable(rng) for _ in range(rng.choice((2, 3)))) for _ in range(60))
    words: list[list[str]] = []
    for stem in stems:
        word, phones = "".join(letters for letters, _ in stem), " ".join(sounds for _, sounds in stem)
        other = [phones.replace("AA", "AE")] if "AA" in phones else []
        words += [[word, phones, *other], [f"{word}'s", *(f"{variant} Z" for variant in (phones, *other))]]
    held = [words[i : i + 10] for i in (0, 10)]
    for name, rows in {"dev": held[0], "test": held[1]}.items():
        tables.write_data_set(data_sets["cmudict"] / f"{name}.tsv.gz", rows)
    tables.write_data_set(
        data_sets["cmudict"] / "train.tsv.gz",
        ([word, phones] for word, *pronunciations in words[20:] for phones in pronunciations),
    )


def _draw_syllable(rng: random.Random) -> tuple[str, str]:
    """A random syllable: its letters, and its phones with a random stress digit."""
    (onset, first), (vowel, second) = rng.choice(list(ONSETS.items())), rng.choice(list(VOWELS.items()))
    return onset + vowel, f"{first} {second}{rng.choice('012')}"
