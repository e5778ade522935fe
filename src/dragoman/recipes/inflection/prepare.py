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
VALID_SIZE = 200  # of each language, sampled: decoding 2,000 forms takes little time


def prepare(data_sets: Mapping[str, Path], part: str, folder: Path) -> None:
    """Write pairs, and the languages of the test lines as groups, for the language `part`, or all if it is "all"."""
    data_set = data_sets["sigmorphon2023-inflection"]
    languages = LANGUAGES if part == "all" else (part,)
    tables.write_rows(
        folder / "train.tsv", (row for language in languages for row in read_examples(data_set, language, "train"))
    )
    tables.write_rows(folder / "valid.tsv", (row for language in languages for row in sample_valid(data_set, language)))
    test = [row for language in languages for row in read_examples(data_set, language, "test")]
    tables.write_rows(folder / "test.tsv", test)
    tables.write_rows(folder / "test.groups", ([language] for *_, language in test))


def read_examples(data_set: Path, language: str, split: str) -> Iterator[tuple[str, str, str]]:
    """Yield the source (lemma and features), the target form and the language of each line, split into symbols."""
    for lemma, features, form in tables.read_rows(data_set / f"{language}.{split}.tsv", num_columns=3):
        yield f"{split_characters(lemma)} {split_features(features)}", split_characters(form), language


def sample_valid(data_set: Path, language: str) -> list[tuple[str, str, str]]:
    """At most VALID_SIZE examples of the dev file, sampled with a fixed seed."""
    examples = list(read_examples(data_set, language, "dev"))
    return random.Random(1).sample(examples, min(VALID_SIZE, len(examples)))


def split_features(features: str) -> str:
    """V;NOM(3,SG) → [V] [NOM] [3] [SG]: in brackets no feature can be taken for a letter."""
    return " ".join(f"[{feature}]" for feature in re.findall(r"[^;(),]+", features))


def split_characters(text: str) -> str:
    """The characters of a text, with spaces between them."""
    return " ".join(SPACE if character == " " else character for character in text)


def baseline_outputs(folder: Path, part: str) -> dict[str, list[str]]:
    """The unchanged lemma of each test line, without the features; `part` is ignored."""
    sources = (source for source, *_ in tables.read_rows(folder / "test.tsv", 3))
    return {"the lemma itself": [" ".join(s for s in source.split() if not is_feature(s)) for source in sources]}


def is_feature(symbol: str) -> bool:
    """Whether a symbol is a feature in brackets, that is, longer than one character."""
    return len(symbol) > 1


# -- generated example data --------------------------------------------------------------------------------------------

ENDINGS = {"V;PRS;NOM(1,SG)": "on", "V;PRS;NOM(3,PL)": "en ta", "N;ACC(PL;PSS(2,PL))": "ilu", "V.PTCP;PST": "u"}


def make_example(data_sets: Mapping[str, Path], rng: random.Random) -> None:
    """Write invented lemmas with all their forms for each language, divided into train, dev and test."""
    for language in LANGUAGES:
        lemmas = dict.fromkeys("".join(rng.choices("bdfgklmnoprst", k=4)) + rng.choice("aei") for _ in range(12))
        forms = [(lemma, features, lemma[:-1] + ending) for lemma in lemmas for features, ending in ENDINGS.items()]
        splits = {"train": forms[8:], "dev": forms[:4], "test": forms[4:8]}
        for split, examples in splits.items():
            name = f"{language}.{split}.tsv" + (".gz" if split == "train" else "")
            tables.write_data_set(data_sets["sigmorphon2023-inflection"] / name, examples)
