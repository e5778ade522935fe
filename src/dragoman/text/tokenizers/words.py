"""Whole words and single punctuation marks; "▁" marks a space, or the beginning of the text, before a token.

    "Hello, world!" → ▁Hello , ▁world !

A word is a run of letters, digits, "_" and the marks that combine with them; anything else is a
token by itself. Decoding restores a text with single spaces, none at its ends, and "▁" (U+2581) as
a space; in lower case with `lowercase`. A word that was not learned is <unk>, or its UTF-8 bytes
with byte_fallback.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby

from dragoman.core.registry import PositiveInt
from dragoman.text.tokenizers import tokenizers
from dragoman.text.vocabulary import SPACE_MARKER, UNK_SURFACE, LookupTokenizer


@tokenizers.register("words")
class Words(LookupTokenizer):
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
        return [
            token for chunk in text.replace(SPACE_MARKER, " ").split() for token in split_chunk(SPACE_MARKER + chunk)
        ]

    def fallback_ids(self, token: str) -> list[int]:
        """The ids of a word that is not in the vocabulary: its UTF-8 bytes or <unk>."""
        return self.vocabulary.fallback_ids(token.replace(SPACE_MARKER, " "))  # a space is one byte, the marker three

    def decode(self, ids: Sequence[int]) -> str:
        # An unknown token is most often a word, with a space before it.
        text = self.vocabulary.decode(ids, SPACE_MARKER + UNK_SURFACE)
        return text.replace(SPACE_MARKER, " ").removeprefix(" ")


@lru_cache(maxsize=1 << 15)  # most of a text is the same few words
def split_chunk(chunk: str) -> tuple[str, ...]:
    """Split a chunk without spaces into words and punctuation; its leading marker stays with the first."""
    tokens: list[str] = []
    for in_word, run in groupby(chunk[1:], is_word_character):
        characters = list(run)
        tokens.extend(["".join(characters)] if in_word else characters)
    return (chunk[0] + tokens[0], *tokens[1:])


def is_word_character(character: str) -> bool:
    """Whether words consist of such characters."""
    # Python counts combining marks as no letters, but Hindi vowels and decomposed accents are such marks.
    return character.isalnum() or character == "_" or unicodedata.category(character).startswith("M")
