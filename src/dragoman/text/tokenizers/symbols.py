"""Tokens that are separated by spaces in the text, such as phonemes.

    "D R AE1 G" → D R AE1 G

Decoding restores a text with single spaces and none at its ends. A symbol that was not learned is <unk>.
"""

from __future__ import annotations

from collections.abc import Sequence

from dragoman.core.registry import PositiveInt
from dragoman.text.tokenizers import tokenizers
from dragoman.text.vocabulary import LookupTokenizer


@tokenizers.register("symbols")
class Symbols(LookupTokenizer):
    """Whole symbols separated by spaces, such as phonemes."""

    kind = "symbols"

    def __init__(self, *, min_count: PositiveInt = 1) -> None:
        super().__init__(min_count=min_count)

    def split(self, text: str) -> list[str]:
        return text.split()

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(str(part) for part in self.vocabulary.surface_parts(ids))
