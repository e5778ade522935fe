"""Whole words and single punctuation marks; "▁" says that a space (or the beginning of the text) came before.

    "Hello, world!" → ▁Hello , ▁world !

A word is a run of letters, digits, "_" and the marks that combine with them; anything else is a token by itself. A text
comes back with every run of whitespace as one space, none at its ends, and "▁" (U+2581) read as a space; in lower case
with `lowercase`. A word that was not learned is <unk>, or the bytes of its UTF-8 with byte_fallback.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby

from dragoman.core.registry import PositiveInt
from dragoman.text.tokenizers import tokenizers
from dragoman.text.vocabulary import MARK, UNKNOWN, Lookup, join


@tokenizers.register("words")
class Words(Lookup):
    """Whole words and single punctuation marks."""

    kind = "words"

    def __init__(
        self,
        *,
        size: PositiveInt | None = None,
        min_count: PositiveInt = 1,
        lowercase: bool = False,
        byte_fallback: bool = False,
    ) -> None:
        super().__init__(size=size, min_count=min_count, lowercase=lowercase, byte_fallback=byte_fallback)

    def split(self, text: str) -> list[str]:
        return [token for chunk in text.replace(MARK, " ").split() for token in split_chunk(MARK + chunk)]

    def unknown(self, token: str) -> list[int]:
        return self.vocabulary.spell(token.replace(MARK, " "))  # one byte where the mark has three

    def decode(self, ids: Sequence[int]) -> str:
        # An unknown token was most often a word, with a space before it.
        return join(self.vocabulary.parts(ids, MARK + UNKNOWN)).replace(MARK, " ").removeprefix(" ")


@lru_cache(maxsize=1 << 15)  # most of a text is the same few words
def split_chunk(chunk: str) -> tuple[str, ...]:
    """What stands between two spaces → words and punctuation; the leading mark stays with the first."""
    tokens: list[str] = []
    for in_word, run in groupby(chunk[1:], _belongs_to_word):
        characters = list(run)
        tokens.extend(["".join(characters)] if in_word else characters)
    return (chunk[0] + tokens[0], *tokens[1:])


def _belongs_to_word(character: str) -> bool:
    # Combining marks are no letters to Python, yet Hindi vowels and decomposed accents are written with them.
    return character.isalnum() or character == "_" or unicodedata.category(character).startswith("M")
