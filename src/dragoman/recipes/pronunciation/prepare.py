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


def prepare(sets: Mapping[str, Path], part: str, folder: Path) -> None:
    place = sets["cmudict"]
    train = ((word, unstressed(phones)) for word, phones in tables.rows(place / "train.tsv", exactly=2))
    tables.write(folder / "train.tsv", dict.fromkeys(train))
    for name, file in {"valid": "dev", "test": "test"}.items():
        rows = tables.rows(place / f"{file}.tsv", 2)
        tables.write(folder / f"{name}.tsv", ([word, *dict.fromkeys(map(unstressed, said))] for word, *said in rows))


def unstressed(phones: str) -> str:
    return " ".join(phone.rstrip("012") for phone in phones.split())


# -- made-up data ------------------------------------------------------------------------------------------------------

ONSETS = {"b": "B", "d": "D", "k": "K", "l": "L", "m": "M", "sh": "SH", "t": "T", "z": "Z"}
VOWELS = {"a": "AA", "ee": "IY", "i": "IH", "o": "OW", "u": "UW"}


def example(sets: Mapping[str, Path], rng: random.Random) -> None:
    """Words of two or three invented syllables, each with its form in 's on the same side; some are said two ways."""
    stems = dict.fromkeys(tuple(_syllable(rng) for _ in range(rng.choice((2, 3)))) for _ in range(60))
    words: list[list[str]] = []
    for stem in stems:
        word, phones = "".join(letters for letters, _ in stem), " ".join(said for _, said in stem)
        other = [phones.replace("AA", "AE")] if "AA" in phones else []
        words += [[word, phones, *other], [f"{word}'s", *(f"{said} Z" for said in (phones, *other))]]
    held = [words[i : i + 10] for i in (0, 10)]
    for name, rows in {"dev": held[0], "test": held[1]}.items():
        tables.write_set(sets["cmudict"] / f"{name}.tsv.gz", rows)
    tables.write_set(
        sets["cmudict"] / "train.tsv.gz", ([word, phones] for word, *said in words[20:] for phones in said)
    )


def _syllable(rng: random.Random) -> tuple[str, str]:
    (onset, first), (vowel, second) = rng.choice(list(ONSETS.items())), rng.choice(list(VOWELS.items()))
    return onset + vowel, f"{first} {second}{rng.choice('012')}"
