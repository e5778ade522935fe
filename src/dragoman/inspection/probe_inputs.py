"""Inputs for failure probes: sources sampled from the vocabulary, and files of minimal pairs and neutral sources.

    whole pieces   tokens v with encode(decode(v)) = v: words or characters that are a text by themselves
    ordinary       3 to 12 whole pieces in random order; without meaning, but without <unk>
    degenerate     a word or syllable over and over (ag ag ag …) · punctuation alone · one very long word;
                   two of each kind beside each other, so that their outputs can be compared

The tokenizers' fingerprint seeds the sampling: the same model is always probed with the same sources.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from dragoman.core.errors import DataError, UserError
from dragoman.core.types import UNK, Example
from dragoman.data.lines import Line, read_lines
from dragoman.text.codec import Codec
from dragoman.text.tokenizers import Tokenizer

MIN_PIECES, MAX_PIECES = 3, 12  # of an ordinary source
REPETITIONS = 20  # of a word in a repeated source
LONG_WORD = 40  # pieces of a very long word
REPEATED_PAIRS, LONG_WORD_PAIRS = 8, 4
PUNCTUATION = (
    (". . . . . . . . . .", "? ! ? ! ? ! ? ! ? !"),
    ("!!!!!!!!!!!!", "------------"),
    (", , , , , , , , , ,", "; : ; : ; : ; : ; :"),
    ("............", "(((((())))))"),
)
MAX_TOKENS = MAX_PIECES + 4  # of an ordinary source, with </s>, tags, and a piece that is divided behind another one
DEGENERATE_TOKENS = 2 * (REPEATED_PAIRS * (2 * REPETITIONS + 4) + LONG_WORD_PAIRS * (2 * LONG_WORD + 4)) + 8 * 24
SLOT = "{}"
Row = TypeVar("Row", "MinimalPair", "NeutralSource")
PRONOUNS = "he/him/his/himself,she/her/hers/herself,~they/them/their/theirs/themselves"


class MinimalPair(NamedTuple):
    """Two sources that differ in one word, and what their outputs must contain ("": anything is right)."""

    a: str
    b: str
    expected_a: str = ""
    expected_b: str = ""


class NeutralSource(NamedTuple):
    """A source that leaves a gender open, and the profession or name it is about."""

    source: str
    item: str


# -- from the vocabulary -----------------------------------------------------------------------------------------------


def find_whole_pieces(source: Tokenizer) -> list[int]:
    """Return the ids of alphanumeric pieces that encode to themselves, else of others, else of printable ones."""
    texts = {id: source.decode([id]) for id in range(source.vocabulary.symbol_count, len(source))}
    printable = [id for id, text in texts.items() if text.strip() and text.isprintable() and "\ufffd" not in text]
    whole = [id for id in printable if source.encode(texts[id]) == [id]]
    return [id for id in whole if texts[id].isalnum()] or whole or printable or [UNK]


def sample_sources(codec: Codec, count: int) -> list[str]:
    """Sample `count` sources of random whole pieces; the seed depends on the codec."""
    rng, ids = _generator(codec), find_whole_pieces(codec.source)
    return [_sample_text(codec.source, ids, int(rng.integers(MIN_PIECES, MAX_PIECES + 1)), rng) for _ in range(count)]


def degenerate_sources(codec: Codec) -> list[str]:
    """Build sources without content: repeated words, punctuation, long words; sources 2k and 2k + 1 are of one kind."""
    rng, source = _generator(codec), codec.source
    ids = find_whole_pieces(source)
    texts: list[str] = []
    for k in range(REPEATED_PAIRS):
        texts += [repeat_word(source, _sample_text(source, ids, 1 + k % 2, rng)) for _ in range(2)]
    for pair in PUNCTUATION:
        texts += pair
    for _ in range(2 * LONG_WORD_PAIRS):
        texts.append("".join(source.decode([int(id)]).strip() for id in rng.choice(ids, LONG_WORD)))
    return texts


def repeat_word(source: Tokenizer, word: str) -> str:
    """Repeat a word REPETITIONS times, with spaces unless the vocabulary has none."""
    spaced = " ".join([word] * REPETITIONS)
    return word * REPETITIONS if UNK in source.encode(spaced) else spaced


def _sample_text(source: Tokenizer, ids: Sequence[int], count: int, rng: np.random.Generator) -> str:
    return source.decode(rng.choice(ids, count).tolist()).strip()


def _generator(codec: Codec) -> np.random.Generator:
    return np.random.default_rng(int(codec.fingerprint[:16], 16))


# -- from a caller -----------------------------------------------------------------------------------------------------


def parse_minimal_pairs(rows: Sequence[Sequence[str]]) -> list[MinimalPair]:
    """Turn rows (a, b) or (a, b, part of a's output, of b's) into minimal pairs; others raise UserError."""
    for row in rows:
        if len(row) not in (2, 4) or not (row[0].strip() and row[1].strip()) or row[0] == row[1]:
            raise UserError(
                f"found {str(list(row))[:100]}; a pair is two different sources, and optionally a part of each output"
            )
    return [MinimalPair(*row) for row in rows]


def parse_neutral_sources(rows: Sequence[Sequence[str]]) -> list[NeutralSource]:
    """Turn rows (source, item) into neutral sources; anything else raises UserError."""
    for row in rows:
        if len(row) != 2 or not all(text.strip() for text in row):
            raise UserError(f"found {str(list(row))[:100]}; a neutral source is a source and the item it is about")
    return [NeutralSource(*row) for row in rows]


def select_sources(
    codec: Codec,
    sources: Sequence[str | Example] | None,
    count: int,
    source_lang: str | None,
    target_lang: str | None,
) -> list[Example]:
    """Return the first `count` sources that are not blank, or sampled ones if `sources` is None, with languages."""
    if count < 1:
        raise UserError(f"count is {count}; probe with at least 1 source")
    texts = sample_sources(codec, count) if sources is None else sources[:count]
    examples, languages = with_languages(texts, source_lang, target_lang), ", ".join(codec.target_languages)
    if not examples:
        raise UserError("all sources are blank; give others, or none to sample them from the vocabulary")
    if languages and any(example.target_lang is None for example in examples):
        raise UserError(f"the model writes {languages}; choose one with target_lang (--target-lang)")
    return examples


def with_languages(sources: Sequence[str | Example], source_lang: str | None, target_lang: str | None) -> list[Example]:
    """Return the sources that are not blank, with these languages where they have none of their own."""
    examples = [source if isinstance(source, Example) else Example(source) for source in sources]
    return [
        replace(e, source_lang=e.source_lang or source_lang, target_lang=e.target_lang or target_lang)
        for e in examples
        if e.source.strip()
    ]


class Pronoun(NamedTuple):
    """All forms of a pronoun, and whether it has a gender."""

    forms: tuple[str, ...]
    gendered: bool = True


def parse_pronouns(text: str) -> list[Pronoun]:
    """Parse `he/him/his,she/her,~they/them`: ~ stands before a pronoun without gender."""
    pronouns = []
    for group in text.split(","):
        forms = tuple(form.strip() for form in group.strip().removeprefix("~").split("/"))
        if not all(forms):
            raise UserError(f"pronouns: '{text}' has an empty form; write them as in {PRONOUNS}")
        pronouns.append(Pronoun(forms, not group.strip().startswith("~")))
    return pronouns


# -- from files --------------------------------------------------------------------------------------------------------


def read_minimal_pairs(path: str | Path) -> list[MinimalPair]:
    """Read minimal pairs: `a TAB b`, or `a TAB b TAB part of a's output TAB part of b's output`."""
    return list(_parse_lines(path, parse_minimal_pairs, "write them in two or four columns, with tabs between them"))


def read_neutral_sources(path: str | Path, items: str | Path | None = None) -> list[NeutralSource]:
    """Read neutral sources: `source TAB item`; with a file of items, templates with {} in place of an item."""
    if items is None:
        remedy = f"write a tab between them, or templates with {SLOT} and the items in a file of their own"
        rows = _parse_lines(path, parse_neutral_sources, remedy)
        return [NeutralSource(source.replace(SLOT, item), item) for source, item in rows]
    names = [line.text.strip() for line in _read_filled_lines(items)]
    templates = list(_read_filled_lines(path))
    for line in templates:
        if SLOT not in line.text:
            raise DataError(f"found no {SLOT} to put the items in; write it where the item belongs", path, line.number)
    return [NeutralSource(line.text.strip().replace(SLOT, name), name) for line in templates for name in names]


def _parse_lines(path: str | Path, parse: Callable[[Sequence[Sequence[str]]], list[Row]], remedy: str) -> Iterator[Row]:
    for line in _read_filled_lines(path):
        try:
            yield from parse([[field.strip() for field in line.text.split("\t")]])
        except UserError as error:
            raise DataError(f"{error}; {remedy}", path, line.number) from None


def _read_filled_lines(path: str | Path) -> Iterator[Line]:
    empty = True
    for line in read_lines(path):
        if line.text.strip():
            empty = False
            yield line
    if empty:
        raise DataError("all lines are blank; write one source or pair on each line", path)
