"""The sentencepiece model of an imported model, whose normalization and pieces stay as they are.

Its own ids are not used: many programs number the pieces otherwise (Marian by a vocabulary file, fairseq by one more).
"""

from __future__ import annotations

from collections.abc import Sequence

from dragoman.text.frozen_tokenizer import FrozenTokenizer
from dragoman.text.tokenizers import tokenizers
from dragoman.text.vocabulary import SPACE_MARKER


@tokenizers.register("sentencepiece")
class SentencePiece(FrozenTokenizer):
    """Subwords by the sentencepiece model of an imported model; it cannot be learned."""

    kind = "sentencepiece"
    model_file = "tokenizer.model"

    def split(self, text: str) -> list[str]:
        pieces: list[str] = self._processor.encode(text, out_type=str)
        return pieces

    def join(self, pieces: Sequence[str]) -> str:
        text: str = self._processor.decode_pieces(list(pieces))
        return text.replace(SPACE_MARKER, " ").removeprefix(" ")  # of pieces that the file lacks, "▁" would be left

    def open_model(self, model: bytes) -> None:
        import sentencepiece

        processor = sentencepiece.SentencePieceProcessor()
        try:
            processor.LoadFromSerializedProto(model)
        except RuntimeError:
            raise ValueError("it is no sentencepiece model") from None
        self._processor = processor
