"""One token for each Unicode character.

    "naïve té"        → n a ï v e ␣ t é
    "walk V;NOM(3)"   → w a l k [V] [NOM] [3]          with features, for sources

Spaces are characters like any others, so decoding restores every text of known characters exactly.
A character that was not learned is <unk>, or its UTF-8 bytes with byte_fallback.

With `features`, a word that is a bundle of grammatical features, as UniMorph (N;ACC(PL)) or Universal Dependencies
(Case=Nom|Number=Sing) write them, becomes its features. They stand in brackets, since V is a letter, too; the signs
between them are left out, so that a bundle that was never seen consists of features that were. Such a text does not
come back exactly: the option is for sources.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from dragoman.core.registry import PositiveInt
from dragoman.text.tokenizers import tokenizers
from dragoman.text.vocabulary import LookupTokenizer

_FEATURE = r"[A-Z0-9][\w.+/{}(),:*-]*"
FEATURE_BUNDLE = re.compile(rf"{_FEATURE}(?:;{_FEATURE})+|[A-Z]\w*=[\w,]+(?:\|[A-Z]\w*=[\w,]+)*")
_FEATURES = re.compile(r"[^;|(),]+")


@tokenizers.register("characters")
class Characters(LookupTokenizer):
    """One token for each Unicode character, spaces included."""

    kind = "characters"

    def __init__(self, *, min_count: PositiveInt = 1, byte_fallback: bool = False, features: bool = False) -> None:
        super().__init__(min_count=min_count, byte_fallback=byte_fallback)
        self.features = features

    def split(self, text: str) -> list[str]:
        if not self.features or (";" not in text and "=" not in text):
            return list(text)
        tokens: list[str] = []
        for i, word in enumerate(text.split(" ")):
            if FEATURE_BUNDLE.fullmatch(word):
                tokens += [f"[{feature}]" for feature in _FEATURES.findall(word)]
            else:
                tokens += [*([" "] if i else []), *word]
        return tokens

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return ["␣" if piece == " " else piece for piece in super().pieces(ids)]
