"""One token for each byte of the text in UTF-8: 256 of them, nothing to learn, nothing unknown.

    "té" → t <0xC3> <0xA9>

Decoding restores every text exactly. Bytes of a model's output that are not UTF-8 become U+FFFD.
"""

from __future__ import annotations

from collections.abc import Sequence

from dragoman.text.normalization import replace_surrogates
from dragoman.text.tokenizers import tokenizers
from dragoman.text.vocabulary import LookupTokenizer


@tokenizers.register("bytes")
class Bytes(LookupTokenizer):
    """One token for each byte of the text in UTF-8; nothing is ever unknown."""

    kind = "bytes"

    def __init__(self) -> None:
        super().__init__(byte_fallback=True)

    def split(self, text: str) -> list[str]:
        return []  # no token is learned or unknown

    def encode(self, text: str) -> list[int]:
        return self.vocabulary.fallback_ids(replace_surrogates(text))

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Printable ASCII as itself, a space as ␣, any other byte by its number."""
        return [self._show(id) for id in ids]

    def _show(self, id: int) -> str:
        byte = self.vocabulary.id_to_byte(id)
        if byte is None or not 0x20 <= byte < 0x7F:
            return self.vocabulary.name(id)
        return "␣" if byte == 0x20 else chr(byte)
