"""A tokenizer.json of Hugging Face's tokenizers library, as BART, T5, NLLB and Whisper have it; the library runs it.

Byte-level BPE is among what it does: every text can be spelled, and pieces are letters that stand for bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

from dragoman.core.errors import MissingExtra
from dragoman.text.frozen_tokenizer import FrozenTokenizer
from dragoman.text.tokenizers import tokenizers
from dragoman.text.vocabulary import SPACE_MARKER, UNK_SURFACE

SECOND = "\N{ZERO WIDTH SPACE}"  # after the name of a second token that is written like another


@tokenizers.register("huggingface")
class HuggingFace(FrozenTokenizer):
    """Subwords by the tokenizer.json of an imported model; needs the package tokenizers, and cannot be learned."""

    kind = "huggingface"
    model_file = "huggingface.json"

    def split(self, text: str) -> list[str]:
        pieces: list[str] = self._tokenizer.encode(text, add_special_tokens=False).tokens
        return pieces

    def join(self, pieces: Sequence[str]) -> str:
        parts: list[str] = []
        for piece in pieces:
            known = piece.rstrip(SECOND)
            if piece != UNK_SURFACE and self._tokenizer.token_to_id(known) is None:  # a word that was added, or none
                known = (" " if parts else "") + known.removeprefix(SPACE_MARKER)
            parts.append(known)
        decoder = self._tokenizer.decoder
        text: str = " ".join(parts) if decoder is None else decoder.decode(parts)
        return text

    def open_model(self, model: bytes) -> None:
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise MissingExtra("tokenizers", "interop", "the tokenizer of this imported model") from None
        try:
            self._tokenizer = Tokenizer.from_buffer(model)
        except Exception:  # the library raises nothing narrower
            raise ValueError("it is no tokenizer.json that the library tokenizers can read") from None
        self._tokenizer.encode_special_tokens = True  # a text like </s> is letters
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
