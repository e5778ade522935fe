"""The vocabularies of programs that read tokens: a sentencepiece model, or a list of tokens, for each side.

Such programs leave the split of a text into tokens to their callers. A list of single characters becomes our tokenizer
`characters`, another list `symbols`: tokens with spaces between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dragoman.checkpoint.streaming import LazyTensor
from dragoman.core.errors import ModelError
from dragoman.core.registry import Part
from dragoman.interop.importers import checkpoint_files
from dragoman.interop.importers.contents import VocabularyMap, load_tokenizer, transformed
from dragoman.text.codec import Codec, build_codec
from dragoman.text.normalization import replace_surrogates
from dragoman.text.tokenizers import Tokenizer
from dragoman.text.vocabulary import LookupTokenizer, Vocabulary


@dataclass(frozen=True)
class TokenList:
    """The tokens of one side by id, and the sentencepiece model that splits texts into them, if there is one."""

    names: list[str]
    kind: str  # of our tokenizer
    model: bytes = b""
    eos: int = -1  # of a sentencepiece model
    unk: int = -1

    def __post_init__(self) -> None:
        # JSON may spell half of a character, which no file of ours can hold.
        object.__setattr__(self, "names", [replace_surrogates(name) for name in self.names])

    def resized(self, size: int) -> TokenList:
        """As many tokens as a table has rows: cut off, or with numbered ones that no text has."""
        more = [f"<row:{i}>" for i in range(len(self.names), size)]
        return TokenList([*self.names[:size], *more], self.kind, self.model, self.eos, self.unk)


def read_sentencepiece(path: Path) -> TokenList:
    """A sentencepiece model's pieces in the order of its own ids; ModelError if it is damaged."""
    import sentencepiece

    data = checkpoint_files.read_bytes(path, checkpoint_files.MAX_MODEL_BYTES, needed_for="a vocabulary")
    processor = sentencepiece.SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(data)
    except RuntimeError:
        raise ModelError(f"{path}: is no sentencepiece model; copy it again") from None
    names = [processor.IdToPiece(i) for i in range(len(processor))]
    return TokenList(names, "sentencepiece", data, processor.eos_id(), processor.unk_id())


def read_text(path: Path) -> str:
    """A vocabulary file as text; ModelError if it is missing or not UTF-8."""
    try:
        return checkpoint_files.read_bytes(path, needed_for="a vocabulary").decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ModelError(f"{path}: is not UTF-8; copy the file again") from None


def plain_list(names: Sequence[str], tokens: Sequence[str]) -> TokenList:
    """A list of names, of which `tokens` are no special symbols; by them it is one of characters or of symbols."""
    is_characters = bool(tokens) and all(len(token) == 1 for token in tokens)
    return TokenList(list(names), "characters" if is_characters else "symbols")


def make_codec(
    source: tuple[TokenList, VocabularyMap], target: tuple[TokenList, VocabularyMap], source_template: str
) -> tuple[Codec, dict[str, Any]]:
    """The codec of two sides, joint if they are equal, and the section tokenizer of a config."""
    joint = source[0] == target[0] and source[1] == target[1]
    parts = Part(source[0].kind), Part(target[0].kind)
    codec = build_codec(*parts, joint, "none", source_template=source_template)
    for tokenizer, (tokens, vocabulary) in ((codec.source, source), (codec.target, target))[: 1 if joint else 2]:
        fill_tokenizer(tokenizer, tokens, vocabulary)
    sides = {"source": {"name": source[0].kind}, **({} if joint else {"target": {"name": target[0].kind}})}
    return codec, {**sides, "joint": joint, "source_template": source_template}


def fill_tokenizer(tokenizer: Tokenizer, tokens: TokenList, vocabulary: VocabularyMap) -> None:
    """Give a new tokenizer its vocabulary."""
    if tokens.model:
        load_tokenizer(tokenizer, tokens.model, vocabulary)
        return
    assert isinstance(tokenizer, LookupTokenizer)
    tokenizer.vocabulary = Vocabulary(vocabulary.tokens, vocabulary.extra_symbols)


def append_row(x: LazyTensor, value: float = 0.0) -> LazyTensor:
    """A table (V, D) or a bias (V,) with one more row, for a symbol that the other program does not have."""

    def append(x: Tensor) -> Tensor:
        return torch.cat([x.float(), x.new_full((1, *x.shape[1:]), value, dtype=torch.float)])

    return transformed(x, append)


def block_diagonal(first: LazyTensor, second: LazyTensor) -> LazyTensor:
    """Two matrices on a diagonal, zeros elsewhere."""
    (n, m), (k, j) = first.shape, second.shape

    def load() -> Tensor:
        return torch.cat([F.pad(first.load(), (0, j)), F.pad(second.load(), (m, 0))])

    return LazyTensor((n + k, m + j), load)


def concatenated(*parts: LazyTensor) -> LazyTensor:
    """Tensors one after the other along the first dimension."""
    rows = sum(part.shape[0] for part in parts)
    return LazyTensor((rows, *parts[0].shape[1:]), lambda: torch.cat([part.load() for part in parts]))
