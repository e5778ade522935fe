"""A tokenizer.json of Hugging Face's tokenizers library, as BART, T5, NLLB and Whisper have it; the library runs it.

Byte-level BPE is among what it does: every text can be spelled, and pieces are letters that stand for bytes.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from dragoman.core.errors import MissingExtra, ModelError
from dragoman.text.frozen_tokenizer import FrozenTokenizer
from dragoman.text.tokenizers import tokenizers
from dragoman.text.vocabulary import SPACE_MARKER, UNK_SURFACE

CHARSMAP = re.compile(rb'"precompiled_charsmap"\s*:\s*"([^"]*)"')
SECOND = "\N{ZERO WIDTH SPACE}"  # after the name of a second token that is written like another


def check_charsmaps(model: bytes) -> None:
    """ValueError if a normalizer of sentencepiece's claims more than it has: the library would abort the process."""
    for match in CHARSMAP.finditer(model):
        try:
            data = base64.b64decode(match[1], validate=True)
        except ValueError:
            raise ValueError("its precompiled_charsmap is no base64") from None
        if int.from_bytes(data[:4], "little") > len(data) - 4:
            raise ValueError("its precompiled_charsmap is cut off")


@contextmanager
def library_errors() -> Iterator[None]:
    """What the library raises as ModelError: nothing narrower than Exception, and its panics are not even that."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError):
        raise
    except BaseException as error:
        reason = (str(error).splitlines() or [""])[0][:100]
        raise ModelError(f"the tokenizer of this imported model fails ({reason}); import the model again") from None


@tokenizers.register("huggingface")
class HuggingFace(FrozenTokenizer):
    """Subwords by the tokenizer.json of an imported model; needs the package tokenizers, and cannot be learned."""

    kind = "huggingface"
    model_file = "huggingface.json"

    def split(self, text: str) -> list[str]:
        with library_errors():
            pieces: list[str] = self._tokenizer.encode(text, add_special_tokens=False).tokens
        return pieces

    def join(self, pieces: Sequence[str]) -> str:
        words: list[str] = []  # runs of the file's pieces, and between them words that were added to the vocabulary
        run: list[str] = []
        for piece in pieces:
            known = piece.rstrip(SECOND)
            if piece == UNK_SURFACE or self._tokenizer.token_to_id(known) is not None:
                run.append(known)
                continue
            words += [*([self._join_run(run)] if run else []), known.removeprefix(SPACE_MARKER)]
            run = []
        if run:
            text = self._join_run(run)
            words.append(text.removeprefix(" ") if words else text)
        return " ".join(words)

    def _join_run(self, pieces: list[str]) -> str:
        decoder = self._tokenizer.decoder
        with library_errors():
            text: str = " ".join(pieces) if decoder is None else decoder.decode(pieces)
        return text

    def open_model(self, model: bytes) -> None:
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise MissingExtra("tokenizers", "interop", "the tokenizer of this imported model") from None
        check_charsmaps(model)
        try:
            with library_errors():
                tokenizer = Tokenizer.from_buffer(model)
        except ModelError:
            raise ValueError("it is no tokenizer.json that the library tokenizers can read") from None
        tokenizer.encode_special_tokens = True  # a text like </s> is letters
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
