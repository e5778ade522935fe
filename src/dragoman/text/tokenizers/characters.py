"""One token for each Unicode character.

    "naïve té" → n a ï v e ␣ t é

Spaces are characters like any others, so decoding restores every text of known characters exactly.
A character that was not learned is <unk>, or its UTF-8 bytes with byte_fallback.
"""

from __future__ import annotations

from collections.abc import Sequence

from dragoman.core.registry import PositiveInt
from dragoman.text.tokenizers import tokenizers
from dragoman.text.vocabulary import LookupTokenizer


@tokenizers.register("characters")
class Characters(LookupTokenizer):
    """One token for each Unicode character, spaces included."""

    kind = "characters"

    def __init__(self, *, min_count: PositiveInt = 1, byte_fallback: bool = False) -> None:
        super().__init__(min_count=min_count, byte_fallback=byte_fallback)

    def split(self, text: str) -> list[str]:
        return list(text)

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return ["␣" if piece == " " else piece for piece in super().pieces(ids)]
