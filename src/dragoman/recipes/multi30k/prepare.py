"""Multi30k: descriptions of pictures in English and their translations, as files of lines."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path

from dragoman.recipes import tables

FILES = {"train": "train", "valid": "val", "test": "test_2016_flickr"}


def prepare(data_sets: Mapping[str, Path], part: str, folder: Path) -> None:
    """Write the English to German pairs of Multi30k, lower-cased if `part` is "lower"."""
    write_pairs(data_sets["multi30k"], "en", "de", folder, lowercase=part == "lower")


def write_pairs(data: Path, source: str, target: str, folder: Path, lowercase: bool = False) -> None:
    """Write each split's pairs in the languages `source` and `target`, from two parallel files in `data`."""
    for name, file in FILES.items():
        pairs = tables.read_parallel(data / f"{file}.{source}", data / f"{file}.{target}")
        tables.write_rows(
            folder / f"{name}.tsv", ([text.lower() if lowercase else text for text in pair] for pair in pairs)
        )


def make_example(data_sets: Mapping[str, Path], rng: random.Random) -> None:
    """Write parallel files of four-word sentences in toy English and German; the Multi30k file names are used."""
    words = {"a": ("ein", "kein"), "dog": ("Hund",), "boat": ("Boot",), "runs": ("läuft",), "sleeps": ("schläft",)}
    for file, count in {"train": 100, "val": 10, "test_2016_flickr": 10}.items():
        english = [rng.choices(list(words), k=4) for _ in range(count)]
        german = [[rng.choice(words[word]) for word in line] for line in english]
        for language, side in {"en": english, "de": german}.items():
            end = ".gz" if file == "train" else ""
            tables.write_data_set(
                data_sets["multi30k"] / f"{file}.{language}{end}", ([" ".join(line) + "."] for line in side)
            )
