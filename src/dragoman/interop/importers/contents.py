"""What every importer gives: a config, weights under our names, and a codec with the other program's vocabulary.

Our ids begin with <pad> <s> </s> <unk>, then come extra symbols (language tags and the like), then tokens in the other
program's order. A `VocabularyMap` says which of its ids each of ours is, and so which rows its tables become.

<s>, from which our decoders start, is the row of the other program's start symbol. If that symbol is </s> or <pad> too,
the row is there twice, and the second has such a bias that it takes no part in the softmax.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from dragoman.checkpoint.streaming import LazyTensor
from dragoman.core.errors import ModelError
from dragoman.core.types import BOS, PAD, SPECIALS, UNK
from dragoman.text.codec import Codec
from dragoman.text.tokenizers import Tokenizer

ABSENT_BIAS = -1e9  # of the output layer for a row that the other program does not have: exp of it is 0
Weights = dict[str, LazyTensor]


@dataclass
class Imported:
    """A model of another program, ready to be written as a model folder."""

    program: str  # and its class, as in "Hugging Face MarianMTModel"
    config: dict[str, Any]  # the sections tokenizer, data, model, generation
    weights: Weights
    codec: Codec
    license: str = ""
    limitations: list[str] = field(default_factory=list)  # what could not be carried over, a sentence each


@dataclass(frozen=True)
class VocabularyMap:
    """Another program's vocabulary in our order."""

    tokens: list[str]  # the names of our learned tokens
    extra_symbols: list[str]
    rows: list[int]  # the other program's id of each of ours
    repeats_start: bool  # <s> is the row of a symbol that has another id of ours, too
    repeated: tuple[int, ...] = ()  # our ids of further special symbols that are rows of others

    def pick(self, x: LazyTensor, factor: float = 1.0) -> LazyTensor:
        """A table (V, …) or a bias (V,) with its rows in our order; ModelError if it lacks some."""
        if not x.shape or x.shape[0] <= max(self.rows):
            raise ModelError(
                f"its sizes contradict each other: a table of the vocabulary is {tuple(x.shape)}, "
                f"and the tokenizer has {max(self.rows) + 1:,} tokens; copy the whole model"
            )

        def load() -> Tensor:
            picked = x.load().index_select(0, torch.tensor(self.rows))
            return picked if factor == 1.0 else picked.float() * factor

        return LazyTensor((len(self.rows), *x.shape[1:]), load)

    def output_bias(self, bias: LazyTensor | None) -> LazyTensor:
        """The bias of the output layer, zeros if there is none; a repeated <s> takes no part in the softmax."""
        own = None if bias is None else self.pick(bias)

        def load() -> Tensor:
            picked = torch.zeros(len(self.rows)) if own is None else own.load().float()
            for id in (*([BOS] if self.repeats_start else []), *self.repeated):
                picked[id] = ABSENT_BIAS
            return picked

        return LazyTensor((len(self.rows),), load)


def map_vocabulary(
    names: Sequence[str], *, pad: int, start: int, eos: int, unk: int, symbols: Mapping[int, str] | None = None
) -> VocabularyMap:
    """Arrange a vocabulary: `names` by the other program's ids, its special symbols, and our names of other symbols.

    `symbols` (language tags and control symbols) become extra symbols. Two special symbols may be the same one.
    """
    symbols = dict(symbols or {})
    specials = [pad, start, eos, unk]
    repeats_start = start in (pad, eos, unk) or start in symbols
    extra = {id: name for id, name in sorted(symbols.items()) if id not in (pad, eos, unk)}
    taken = {*specials, *extra} if not repeats_start else {pad, eos, unk, *extra}
    rest = [id for id in range(len(names)) if id not in taken]
    tokens: dict[str, None] = {}
    for id in rest:
        name = names[id]
        while name in tokens:  # a second token of a name is never found in a text, but may be generated
            name += "\N{ZERO WIDTH SPACE}"
        tokens[name] = None
    repeated = tuple(i for i, others in ((PAD, (eos, unk)), (UNK, (eos,))) if specials[i] in others)
    return VocabularyMap(list(tokens), list(extra.values()), [*specials, *extra, *rest], repeats_start, repeated)


def rename_specials(symbol: str) -> str:
    """The name of a control symbol of another program in our vocabularies: ours are taken."""
    return f"<{symbol.strip('<>')}:>" if symbol in SPECIALS else symbol


def load_tokenizer(tokenizer: Tokenizer, model: bytes, vocabulary: VocabularyMap) -> Tokenizer:
    """Give a frozen tokenizer its file and its vocabulary."""
    from dragoman.text.frozen_tokenizer import FrozenTokenizer

    assert isinstance(tokenizer, FrozenTokenizer)
    tokenizer.load(model, vocabulary.tokens, vocabulary.extra_symbols)
    return tokenizer


def rename(weights: Mapping[str, LazyTensor], names: Mapping[str, str]) -> Weights:
    """Weights under our names, from `names`: ours to theirs."""
    return {ours: weights[theirs] for ours, theirs in names.items()}


def scaled(x: LazyTensor, factor: float) -> LazyTensor:
    """A tensor times a number."""
    return x if factor == 1.0 else LazyTensor(x.shape, lambda: x.load().float() * factor)


def transformed(x: LazyTensor, f: Callable[[Tensor], Tensor]) -> LazyTensor:
    """A tensor after a function that is cheap in memory; its shape is found on the meta device."""
    shape = tuple(f(torch.empty(x.shape, device="meta")).shape)
    return LazyTensor(shape, lambda: f(x.load()))


def zeros(*shape: int) -> LazyTensor:
    """Zeros, for a bias that the other program leaves out."""
    return LazyTensor(shape, lambda: torch.zeros(shape))
