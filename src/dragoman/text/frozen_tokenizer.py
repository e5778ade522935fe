"""Tokenizers of imported models: the other program's file splits a text, and our vocabulary has its pieces' ids.

    "a dog" ─the file's own rules→ ▁a ▁dog ─vocabulary→ ids

Text never gives the id of a special or extra symbol, also where it is spelled like one. Nothing can be learned: a new
model takes such a tokenizer by `tokenizer.load` or `training.start_from`.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from dragoman.core.errors import DataError, ModelError
from dragoman.core.types import UNK
from dragoman.text.normalization import replace_surrogates
from dragoman.text.vocabulary import SPACE_MARKER, TOKENIZER_FILE, TokenizerFile, Vocabulary, encode_added_words

if TYPE_CHECKING:
    import numpy as np


class FrozenTokenizer:
    """A tokenizer with the file of another program; subclasses split texts into pieces, and join pieces to texts."""

    kind: str
    model_file: str  # its name in a model folder
    is_stochastic = False
    byte_fallback = False  # bytes are pieces like others here

    def __init__(self) -> None:
        self.model = b""
        self.vocabulary = Vocabulary(())

    def split(self, text: str) -> list[str]:
        """The pieces of a text; one that the vocabulary lacks becomes <unk>."""
        raise NotImplementedError

    def join(self, pieces: Sequence[str]) -> str:
        """The text of pieces; ⁇ among them stays as it is."""
        raise NotImplementedError

    def open_model(self, model: bytes) -> None:
        """Make the file ready to split texts; ValueError if it is damaged."""
        raise NotImplementedError

    def load(
        self, model: bytes, tokens: Sequence[str], extra_symbols: Sequence[str], added: Sequence[str] = ()
    ) -> None:
        """Take a file, and the names of the vocabulary's tokens in the order of their ids, after the extra symbols."""
        vocabulary = Vocabulary(tokens, extra_symbols, added=added)
        self.open_model(model)
        self.vocabulary, self.model = vocabulary, model

    def extend(self, tokens: Iterable[str], tags: Iterable[str]) -> None:
        """Add whole words and language tags at the end of the vocabulary."""
        self.vocabulary = self.vocabulary.extended([*(SPACE_MARKER + word for word in tokens), *tags])

    def encode(self, text: str) -> list[int]:
        return encode_added_words(replace_surrogates(text), self.vocabulary, self._encode_pieces)

    def _encode_pieces(self, text: str) -> list[int]:
        token_id = self.vocabulary.token_id
        ids = [token_id(piece) for piece in self.split(text)]
        return [UNK if id is None else id for id in ids]

    def sample(self, text: str, rng: np.random.Generator) -> list[int]:
        """The ids of a text: there is one split, and the generator is not used."""
        return self.encode(text)

    def unknown_words(self, text: str) -> list[str]:
        """[], whatever the text: subwords cover nearly all text, and what they do not cover is no word."""
        return []

    def decode(self, ids: Sequence[int]) -> str:
        """Ids → text; special and extra symbols are left out, and <unk> becomes ⁇."""
        return self.join([str(part) for part in self.vocabulary.surface_parts(ids)])

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [self.vocabulary.name(id) for id in ids]

    def learn(self, lines: Iterable[str], extra_symbols: Sequence[str] = ()) -> None:
        self.learn_from_counts(Counter(), extra_symbols)

    def learning_units(self, text: str) -> Sequence[str]:
        return ()

    def learn_from_counts(self, counts: Counter[str], extra_symbols: Sequence[str] = ()) -> None:
        raise DataError(
            f"a tokenizer '{self.kind}' comes with an imported model and cannot be learned; name that model in "
            "training.start_from or tokenizer.load, or choose another tokenizer, such as bpe"
        )

    def __len__(self) -> int:
        return len(self.vocabulary)

    def to_files(self) -> dict[str, bytes]:
        """tokenizer.json with the names of the tokens, and the other program's file with its SHA-256 in it."""
        digest = hashlib.sha256(self.model).hexdigest()
        extra, tokens, added = map(
            tuple, (self.vocabulary.extra_symbols, self.vocabulary.tokens, self.vocabulary.added)
        )
        learned = TokenizerFile(kind=self.kind, extra=extra, tokens=tokens, added=added, sha256=digest)
        return {TOKENIZER_FILE: learned.to_bytes(), self.model_file: self.model}

    def restore(self, files: dict[str, bytes]) -> None:
        learned = TokenizerFile.parse(files, self.kind)
        if self.model_file not in files:
            raise ModelError(f"{self.model_file} of the {self.kind} tokenizer is missing; copy the model folder again")
        if hashlib.sha256(files[self.model_file]).hexdigest() != learned.sha256:
            raise ModelError(
                f"{self.model_file} is not the file that {TOKENIZER_FILE} was written with; copy the model folder again"
            )
        try:
            self.load(files[self.model_file], learned.tokens, learned.extra, learned.added)
        except ValueError as error:
            raise ModelError(f"{self.model_file} is damaged ({error}); copy the model folder again") from None

    def __getstate__(self) -> dict[str, object]:
        """Pickle the file as bytes; what is made of it is made again."""
        return {key: value for key, value in self.__dict__.items() if not key.startswith("_")}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        if self.model:
            self.open_model(self.model)
