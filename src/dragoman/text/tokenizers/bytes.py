"""One token for each byte of the text in UTF-8: 256 of them, nothing to learn, nothing unknown.

    "té" → t <0xC3> <0xA9>

Every text comes back exactly. Bytes that a model made up and that are not UTF-8 read as U+FFFD.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dragoman.text.normalization import well_formed
from dragoman.text.tokenizers import tokenizers
from dragoman.text.vocabulary import Lookup, Vocabulary


@tokenizers.register("bytes")
class Bytes(Lookup):
    """One token for each byte of the text in UTF-8; nothing is ever unknown."""

    kind = "bytes"

    def __init__(self) -> None:
        super().__init__(byte_fallback=True)

    def learn(self, lines: Iterable[str], extra: Sequence[str] = ()) -> None:
        self.vocabulary = Vocabulary((), list(dict.fromkeys(extra)), byte_fallback=True)

    def encode(self, text: str) -> list[int]:
        return self.vocabulary.spell(well_formed(text))

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [self._show(id) for id in ids]

    def _show(self, id: int) -> str:
        """Printable ASCII as itself, a space so that it can be seen, any other byte by its number."""
        byte = self.vocabulary.byte(id)
        if byte is None or not 0x20 <= byte < 0x7F:
            return self.vocabulary.name(id)
        return "␣" if byte == 0x20 else chr(byte)
