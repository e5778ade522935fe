"""Notice a list of words that was cut from a sorted one: no word begins with m … z, letters that are frequent inside.

A model learns how words begin from their beginnings alone, so that such a list teaches less than as many words drawn
from all of it. Letters that end the alphabet of beginnings (or start it) and are missing there count, at least
MIN_LETTERS of them: some letters begin no word in any list (Turkish ğ, Russian ы), but hardly so many in a row.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter

MIN_LETTERS = 4
MIN_EXPECTED = 20.0  # words that would begin with each, if letters were as frequent there as inside
MAX_WORD = 30  # characters; longer sources are no words
_NO_WORD = re.compile(r"[\s\d/_]")  # names of files and ids have these


class WordBeginnings:
    """Counts the letters at the beginning of words, and those inside."""

    def __init__(self) -> None:
        self.initials: Counter[str] = Counter()
        self.inner: Counter[str] = Counter()

    def add(self, text: str) -> None:
        """Count a source, if it is a word."""
        if len(text) <= MAX_WORD and not _NO_WORD.search(text):
            self.initials[text[:1].lower()] += 1
            self.inner.update(text[1:].lower())

    @property
    def missing(self) -> list[str]:
        """The frequent letters that no word begins with, and that follow (or precede) all with which some do."""
        begins = [letter for letter in map(_base, self.initials) if letter]
        if not begins:
            return []
        words, inner = self.initials.total(), Counter[str]()
        for letter, count in self.inner.items():
            inner[_base(letter)] += count
        total = sum(count for letter, count in inner.items() if letter)
        frequent = [c for c, n in inner.items() if c and words * n >= MIN_EXPECTED * total]
        after, before = (
            sorted(c for c in frequent if c > max(begins)),
            sorted(c for c in frequent if c < min(begins)),
        )
        found = max(after, before, key=len)
        return found if len(found) >= MIN_LETTERS else []


def _base(letter: str) -> str:
    """A letter without its accents; nothing for what is no letter of an alphabet with capitals."""
    base = unicodedata.normalize("NFD", letter)[:1]
    return base if base.upper() != base else ""


def describe_missing(missing: list[str]) -> str:
    """What is wrong with a list without words that begin with these letters, and what to do."""
    shown = ", ".join(missing[:8]) + (", …" if len(missing) > 8 else "")
    return (
        f"no source begins with {shown}, though these letters are frequent inside the sources: this looks like one end "
        "of a sorted list, from which no model learns how the other words begin. Add some of those"
    )
