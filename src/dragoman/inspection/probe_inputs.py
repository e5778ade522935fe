"""What a model is probed with: sources made of its own vocabulary, and files of minimal pairs and neutral sources.

    whole pieces   tokens v with encode(decode(v)) = v: words or characters that are a text by themselves
    ordinary       3 to 12 whole pieces in a row; no sense, but nothing unknown
    degenerate     a word or syllable over and over (ag ag ag …) · punctuation alone · one very long word;
                   two of a kind beside each other, so that their outputs can be compared

What is drawn is drawn from the tokenizers' fingerprint: the same model is always probed with the same sources.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dragoman.core.errors import DataError, UserError
from dragoman.core.types import SPECIALS, UNK, Example
from dragoman.data.lines import Line, read_lines
from dragoman.text.codec import Codec
from dragoman.text.tokenizers import Tokenizer

SHORTEST, LONGEST = 3, 12  # pieces of an ordinary source
TIMES = 20  # that a word is said in a repeated source
LONG_WORD = 40  # pieces of a very long word
REPEATED, WORDS = 8, 4  # couples of repeated sources and of long words
PUNCTUATION = (
    (". . . . . . . . . .", "? ! ? ! ? ! ? ! ? !"),
    ("!!!!!!!!!!!!", "------------"),
    (", , , , , , , , , ,", "; : ; : ; : ; : ; :"),
    ("............", "(((((())))))"),
)
HOLE = "{}"
PRONOUNS = "he/him/his/himself,she/her/hers/herself,~they/them/their/theirs/themselves"


class Swap(NamedTuple):
    """Two sources that differ in one word, and what their outputs must hold ("": anything goes)."""

    a: str
    b: str
    in_a: str = ""
    in_b: str = ""


class Neutral(NamedTuple):
    """A source that leaves a gender open, and the profession or name it is about."""

    source: str
    item: str


# -- from the vocabulary -----------------------------------------------------------------------------------------------


def pieces(source: Tokenizer) -> list[int]:
    """The ids of whole pieces, words before other signs; of all that is visible where only parts of words are."""
    texts = {id: source.decode([id]) for id in range(len(SPECIALS) + len(source.extra), len(source))}
    visible = [id for id, text in texts.items() if text.strip() and text.isprintable() and "\ufffd" not in text]
    whole = [id for id in visible if source.encode(texts[id]) == [id]]
    return [id for id in whole if texts[id].isalnum()] or whole or visible or [UNK]


def ordinary(codec: Codec, count: int) -> list[str]:
    """Sources of whole pieces in random order."""
    rng, ids = _generator(codec), pieces(codec.source)
    return [_draw(codec.source, ids, int(rng.integers(SHORTEST, LONGEST + 1)), rng) for _ in range(count)]


def degenerate(codec: Codec) -> list[str]:
    """Sources that say nothing; 2k and 2k + 1 are of a kind."""
    rng, source = _generator(codec), codec.source
    ids = pieces(source)
    found: list[str] = []
    for k in range(REPEATED):
        found += [repeated(source, _draw(source, ids, 1 + k % 2, rng)) for _ in range(2)]
    for couple in PUNCTUATION:
        found += couple
    for _ in range(2 * WORDS):
        found.append("".join(source.decode([int(id)]).strip() for id in rng.choice(ids, LONG_WORD)))
    return found


def repeated(source: Tokenizer, word: str) -> str:
    """ag → ag ag ag …, or agagag … where the model knows no space."""
    spaced = " ".join([word] * TIMES)
    return word * TIMES if UNK in source.encode(spaced) else spaced


def _draw(source: Tokenizer, ids: Sequence[int], count: int, rng: np.random.Generator) -> str:
    return source.decode(rng.choice(ids, count).tolist()).strip()


def _generator(codec: Codec) -> np.random.Generator:
    return np.random.default_rng(int(codec.fingerprint[:16], 16))


# -- from a caller -----------------------------------------------------------------------------------------------------


def checked_swaps(given: Sequence[Sequence[str]]) -> list[Swap]:
    for swap in given:
        if len(swap) not in (2, 4) or not (swap[0].strip() and swap[1].strip()) or swap[0] == swap[1]:
            raise UserError(f"a pair is two different sources, and maybe a part of each output, not {list(swap)}")
    return [Swap(*swap) for swap in given]


def checked_neutral(given: Sequence[Sequence[str]]) -> list[Neutral]:
    for neutral in given:
        if len(neutral) != 2 or not all(text.strip() for text in neutral):
            raise UserError(f"a neutral source is a source and the item it is about, not {list(neutral)}")
    return [Neutral(*neutral) for neutral in given]


def chosen(
    codec: Codec,
    sources: Sequence[str | Example] | None,
    count: int,
    source_lang: str | None,
    target_lang: str | None,
) -> list[Example]:
    """The first of the sources given, or as many made ones."""
    if count < 1:
        raise UserError(f"count is {count}; probe with at least 1 source")
    given = ordinary(codec, count) if sources is None else sources[:count]
    examples, languages = tagged(given, source_lang, target_lang), ", ".join(codec.languages)
    if not examples:
        raise UserError("there is no source to probe with that is not blank; give some, or none to have them made")
    if languages and any(example.target_lang is None for example in examples):
        raise UserError(f"the model speaks {languages}; say which one to ask for, as target_lang (--target-lang)")
    return examples


def tagged(sources: Sequence[str | Example], source_lang: str | None, target_lang: str | None) -> list[Example]:
    """The sources that are not blank, with the languages given where they have none of their own."""
    examples = [source if isinstance(source, Example) else Example(source) for source in sources]
    return [
        replace(e, source_lang=e.source_lang or source_lang, target_lang=e.target_lang or target_lang)
        for e in examples
        if e.source.strip()
    ]


class Pronoun(NamedTuple):
    """One column of the table: all forms of a pronoun, and whether it tells a gender."""

    forms: tuple[str, ...]
    gendered: bool = True


def parse_pronouns(text: str) -> list[Pronoun]:
    """`he/him/his,she/her,~they/them`: commas between pronouns, slashes between forms, ~ before one without gender."""
    found = []
    for group in text.split(","):
        forms = tuple(form.strip() for form in group.strip().removeprefix("~").split("/"))
        if not all(forms):
            raise UserError(f"pronouns: '{text}' has an empty form; write them as in {PRONOUNS}")
        found.append(Pronoun(forms, not group.strip().startswith("~")))
    return found


# -- from files --------------------------------------------------------------------------------------------------------


def read_swaps(path: str | Path) -> list[Swap]:
    """Minimal pairs: `a TAB b`, or `a TAB b TAB part of a's output TAB part of b's output`."""
    found = []
    for line in _filled(path):
        fields = [field.strip() for field in line.text.split("\t")]
        if len(fields) not in (2, 4) or not (fields[0] and fields[1]):
            text = f"found {len(fields)} columns{_blank(fields[:2])}; write two sources with a tab between them, and"
            raise DataError(f"{text} where outputs are known a part of each in two more columns", path, line.number)
        if fields[0] == fields[1]:
            raise DataError("both sources are the same; the two of a pair differ in one word", path, line.number)
        found.append(Swap(*fields))
    return found


def read_neutral(path: str | Path, items: str | Path | None = None) -> list[Neutral]:
    """Neutral sources: `source TAB item`; with a file of items, templates that every item is put into at {}."""
    if items is not None:
        names = [line.text.strip() for line in _filled(items)]
        return [Neutral(t.replace(HOLE, name), name) for t in _templates(path) for name in names]
    found = []
    for line in _filled(path):
        fields = [field.strip() for field in line.text.split("\t")]
        if len(fields) != 2 or not all(fields):
            text = f"found {len(fields)} columns{_blank(fields)}; write a source, a tab and the item it is about, or"
            raise DataError(f"{text} templates with {HOLE} and the items in a file of their own", path, line.number)
        found.append(Neutral(fields[0].replace(HOLE, fields[1]), fields[1]))
    return found


def _templates(path: str | Path) -> list[str]:
    found = []
    for line in _filled(path):
        if HOLE not in line.text:
            raise DataError(f"found no {HOLE} to put the items in; write it where the item belongs", path, line.number)
        found.append(line.text.strip())
    return found


def _filled(path: str | Path) -> Iterator[Line]:
    """The lines that are not blank; a file without any is an error."""
    empty = True
    for line in read_lines(path):
        if line.text.strip():
            empty = False
            yield line
    if empty:
        raise DataError("the file has no line to probe with; write one source or pair on each line", path)


def _blank(fields: Sequence[str]) -> str:
    return "" if all(fields) else ", one of them blank"
