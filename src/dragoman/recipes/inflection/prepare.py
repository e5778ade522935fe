"""A lemma and the features of a form → the form, in ten languages.

    LANG.{train,dev,test}.tsv[.gz]        lemma, features, form         walk ⇥ V;PRS;NOM(3,SG) ⇥ walks
    → source                              w a l k [V] [PRS] [NOM] [3] [SG]
      target, language                    w a l k s ⇥ eng               test.groups: the language of each line

Each character and each feature is a symbol, "␣" a space. The lemma comes first, so that its letters stand at the same
places however many features there are: after 250 steps of a small model on Turkish alone the loss was 1.24, and 1.40
with the features first. A feature inside another follows it: a bundle that was never seen (a third of Swahili's test)
is made of symbols that were. Characters are symbols on both sides alike: the tokenizer numbers those too rare to be
learned, and the model copies a kanji it never saw by its number.

The part `all` is one model for every language; a part with a language's name is that language alone.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from dragoman.recipes import tables

LANGUAGES = ("eng", "deu", "fra", "spa", "fin", "hun", "tur", "rus", "jap", "swa")
SPACE = "␣"
VALID = 200  # of each language, drawn: greedy decoding of 2,000 forms is soon done


def prepare(sets: Mapping[str, Path], part: str, folder: Path) -> None:
    place = sets["sigmorphon2023-inflection"]
    languages = LANGUAGES if part == "all" else (part,)
    tables.write(folder / "train.tsv", (row for language in languages for row in rows(place, language, "train")))
    tables.write(folder / "valid.tsv", (row for language in languages for row in some(place, language)))
    test = [row for language in languages for row in rows(place, language, "test")]
    tables.write(folder / "test.tsv", test)
    tables.write(folder / "test.groups", ([language] for *_, language in test))


def rows(place: Path, language: str, split: str) -> Iterator[tuple[str, str, str]]:
    """Source, target and language of each line."""
    for lemma, features, form in tables.rows(place / f"{language}.{split}.tsv", exactly=3):
        yield f"{spaced(lemma)} {symbols_of(features)}", spaced(form), language


def some(place: Path, language: str) -> list[tuple[str, str, str]]:
    every = list(rows(place, language, "dev"))
    return random.Random(1).sample(every, min(VALID, len(every)))


def symbols_of(features: str) -> str:
    """V;NOM(3,SG) → [V] [NOM] [3] [SG]: in brackets no feature can be taken for a letter."""
    return " ".join(f"[{feature}]" for feature in re.findall(r"[^;(),]+", features))


def spaced(text: str) -> str:
    return " ".join(SPACE if character == " " else character for character in text)


def baselines(folder: Path, part: str) -> dict[str, list[str]]:
    """The lemma as it is, which is what a form most often begins with."""
    sources = (source for source, *_ in tables.rows(folder / "test.tsv", 3))
    return {"the lemma itself": [" ".join(s for s in source.split() if not is_feature(s)) for source in sources]}


def is_feature(symbol: str) -> bool:
    return len(symbol) > 1


# -- made-up data ------------------------------------------------------------------------------------------------------

ENDINGS = {"V;PRS;NOM(1,SG)": "on", "V;PRS;NOM(3,PL)": "en ta", "N;ACC(PL;PSS(2,PL))": "ilu", "V.PTCP;PST": "u"}


def example(sets: Mapping[str, Path], rng: random.Random) -> None:
    """Invented lemmas, all forms of one on one side; an ending for each bundle of features."""
    for language in LANGUAGES:
        lemmas = dict.fromkeys("".join(rng.choices("bdfgklmnoprst", k=4)) + rng.choice("aei") for _ in range(12))
        forms = [(lemma, features, lemma[:-1] + ending) for lemma in lemmas for features, ending in ENDINGS.items()]
        splits = {"train": forms[8:], "dev": forms[:4], "test": forms[4:8]}
        for split, every in splits.items():
            name = f"{language}.{split}.tsv" + (".gz" if split == "train" else "")
            tables.write_set(sets["sigmorphon2023-inflection"] / name, every)
