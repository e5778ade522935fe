"""Find pairs that are better left out, by named rules.

    blank        a side without text
    length       a side shorter or longer than the limits, in words (in characters where there are no spaces)
    ratio        a length ratio far from the usual one: misaligned, or half of a sentence
    identical    both sides are the same text; not applied where that is a tenth of the pairs or more: the task is so
    characters   control characters, characters of no meaning (U+FFFD, private use), text decoded twice (Ã¤ for ä)
    script       a side whose letters are of a script that hardly any other text of its language has
    language     a side that resembles the texts of the other language: swapped, or not translated

A pair counts for the first rule that finds it. What is usual is estimated from the pairs themselves, for each pair of
languages (`source_lang`, `target_lang`); with fewer than MIN_ESTIMATED of them, the last three rules find nothing.

For `language`, each side has a model of its character trigrams, p(c₃ | c₁c₂) with add-one smoothing, and a text is
foreign if the other side's model gives it a log-probability that is higher by max(15, ½ per character) nats.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dragoman.core.errors import UserError, did_you_mean
from dragoman.core.types import Example
from dragoman.data.quality.diagnosis import COMMON_ISSUE_SHARE, find_outliers
from dragoman.data.selection.similarity import is_file_name
from dragoman.text.normalization import normalize
from dragoman.text.scripts import main_script

MIN_ESTIMATED = 100  # pairs of the same languages from which it is estimated what is usual
RARE_SCRIPT = 0.01  # of the texts of a side: a script that fewer have is out of place
SAMPLE = 20_000  # pairs from which the language models are estimated
MIN_CHARACTERS = 20  # of a text whose language is judged
MIN_EVIDENCE, MIN_CHARACTER_EVIDENCE = 15.0, 0.5  # in nats, of a text and of each of its characters
BAD_CHARACTERS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufffd\ue000-\uf8ff\ufdd0-\ufdef\ufffe\uffff]")
# The UTF-8 bytes of accented letters and of curly quotes, read as Latin-1 or Windows-1252.
DECODED_TWICE = re.compile("[ÃÂ][\x80-\xbf€‚ƒ„…†‡ˆ‰Š‹ŒŽ‘’“”•–—˜™š›œžŸ]|â€[\x80-\xbf“”˜™¦œž]")
SPACED = 0.5  # of the texts of a side have a space: its length is counted in words


@dataclass(frozen=True)
class LengthRange:
    """The fewest and the most words of a side; without limits, any length."""

    min_length: int = 1
    max_length: float = math.inf


@dataclass(frozen=True)
class UnusablePairs:
    """The rows to leave out, in file order, with the rule that found each; and notes on rules that did not apply."""

    rows: dict[int, str]
    notes: tuple[str, ...] = ()

    def counts(self) -> Counter[str]:
        """How many pairs each rule found."""
        return Counter(self.rows.values())


def find_unusable(
    examples: Sequence[Example], rules: Sequence[str] = (), limits: LengthRange = LengthRange()
) -> UnusablePairs:
    """Apply rules, by default all, to pairs or to texts alone."""
    for name in rules:
        if name not in RULES:
            raise UserError(f"there is no rule '{name}'{did_you_mean(name, RULES)} (there is {', '.join(RULES)})")
    if not any(example.source for example in examples):  # texts alone
        examples = [replace(example, source=example.target or "", target=None) for example in examples]
    found: dict[int, str] = {}
    notes = []
    is_media = sum(is_file_name(example.source) for example in examples) > len(examples) / 2
    for name, rule in RULES.items():
        if rules and name not in rules:
            continue
        if is_media and name in ("ratio", "script", "language"):
            continue  # the names of files say nothing
        rows = list(rule(examples, limits))
        if name == "identical" and len(rows) >= COMMON_ISSUE_SHARE * max(len(examples), 1) and name not in rules:
            share = f"{len(rows) / len(examples):.0%}"
            notes.append(f"identical: {share} of the pairs have two equal sides, which the task seems to imply; kept")
            continue
        for row in rows:
            found.setdefault(row, name)
    return UnusablePairs(dict(sorted(found.items())), tuple(notes))


def _blank(examples: Sequence[Example], limits: LengthRange) -> Iterator[int]:
    for row, example in enumerate(examples):
        if not all(text.strip() for text in _sides(example)):
            yield row


def _length(examples: Sequence[Example], limits: LengthRange) -> Iterator[int]:
    sources, targets = [example.source for example in examples], [example.target or "" for example in examples]
    with_spaces = [sum(" " in text for text in side) > SPACED * len(side) for side in (sources, targets)]
    for row, example in enumerate(examples):
        for text, has_spaces in zip(_sides(example), with_spaces, strict=False):
            length = len(text.split()) if has_spaces else len(text.strip())
            if text.strip() and not limits.min_length <= length <= limits.max_length:
                yield row
                break


def _ratio(examples: Sequence[Example], limits: LengthRange) -> Iterator[int]:
    for rows in _by_languages(examples):
        rows = [row for row in rows if examples[row].source and examples[row].target]
        if len(rows) >= MIN_ESTIMATED:
            ratios = [math.log((1 + len(examples[row].target or "")) / (1 + len(examples[row].source))) for row in rows]
            yield from (rows[i] for i in find_outliers(np.array(ratios))[1].tolist())


def _identical(examples: Sequence[Example], limits: LengthRange) -> Iterator[int]:
    for row, example in enumerate(examples):
        if example.target is not None and example.source and _plain(example.source) == _plain(example.target):
            yield row


def _characters(examples: Sequence[Example], limits: LengthRange) -> Iterator[int]:
    for row, example in enumerate(examples):
        if any(BAD_CHARACTERS.search(text) or DECODED_TWICE.search(text) for text in _sides(example)):
            yield row


def _script(examples: Sequence[Example], limits: LengthRange) -> Iterator[int]:
    for rows in _by_languages(examples):
        for side in ("source", "target"):
            scripts = {row: main_script(getattr(examples[row], side) or "") for row in rows}
            counts = Counter(script for script in scripts.values() if script)
            usual = {script for script, n in counts.items() if n >= RARE_SCRIPT * counts.total()}
            if counts.total() >= MIN_ESTIMATED:
                yield from (row for row, script in scripts.items() if script and script not in usual)


def _language(examples: Sequence[Example], limits: LengthRange) -> Iterator[int]:
    for rows in _by_languages(examples):
        rows = [row for row in rows if examples[row].source and examples[row].target]
        if len(rows) < MIN_ESTIMATED:
            continue
        step = max(len(rows) // SAMPLE, 1)
        source = TrigramModel([examples[row].source for row in rows[::step]])
        target = TrigramModel([examples[row].target or "" for row in rows[::step]])
        for row in rows:
            example = examples[row]
            if source.is_foreign(example.source, target) or target.is_foreign(example.target or "", source):
                yield row


class TrigramModel:
    """p(c₃ | c₁c₂) of the characters of some texts, with add-one smoothing."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.trigrams: Counter[str] = Counter()
        self.bigrams: Counter[str] = Counter()
        for text in map(_padded, texts):
            self.trigrams.update(text[i : i + 3] for i in range(len(text) - 2))
            self.bigrams.update(text[i : i + 2] for i in range(len(text) - 2))
        self.alphabet = len({trigram[2] for trigram in self.trigrams}) + 1

    def log_prob(self, text: str) -> float:
        """The log-probability of a text."""
        text = _padded(text)
        return sum(
            math.log((self.trigrams[text[i : i + 3]] + 1) / (self.bigrams[text[i : i + 2]] + self.alphabet))
            for i in range(len(text) - 2)
        )

    def is_foreign(self, text: str, other: TrigramModel) -> bool:
        """Whether a text is much likelier under another model."""
        least = max(MIN_EVIDENCE, MIN_CHARACTER_EVIDENCE * len(text))
        return len(text) >= MIN_CHARACTERS and other.log_prob(text) - self.log_prob(text) >= least


def _padded(text: str) -> str:
    return f"  {text.casefold()} "


RULES: dict[str, Callable[[Sequence[Example], LengthRange], Iterator[int]]] = {
    "blank": _blank,
    "length": _length,
    "ratio": _ratio,
    "identical": _identical,
    "characters": _characters,
    "script": _script,
    "language": _language,
}


def _sides(example: Example) -> tuple[str, ...]:
    """The texts of an example: both sides, or the one that a text alone has."""
    if example.target is None:
        return (example.source,)
    return (example.source, example.target)


def _by_languages(examples: Sequence[Example]) -> Iterator[list[int]]:
    """The rows of each pair of languages."""
    rows: dict[tuple[str | None, str | None], list[int]] = {}
    for row, example in enumerate(examples):
        rows.setdefault((example.source_lang, example.target_lang), []).append(row)
    yield from rows.values()


def _plain(text: str) -> str:
    return " ".join(normalize(text, "nfc").split())
