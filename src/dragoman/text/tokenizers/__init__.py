"""Tokenizers, text ↔ ids: one file for each kind; the folder is the registry.

Every vocabulary begins with <pad> <s> </s> <unk> (ids 0 to 3), then the extra symbols (language
tags), then the learned tokens. Text never contains a special symbol: "</s>" in a text is four
characters like any others.

    tokenizer = tokenizers.build(Part("bpe", {"size": 8000}))     # options only
    tokenizer.learn(lines, ["<to:de>"])                           # once, from the training texts
    tokenizer.to_files() → files …  tokenizer.restore(files)      # plain bytes; no pickle

`encode` depends on the text alone. `sample` draws a random split of the text for subword
regularization. It depends on the generator and nothing else, so that a resumed run sees the same
splits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from dragoman.core.registry import Registry

if TYPE_CHECKING:
    import numpy as np


class Tokenizer(Protocol):
    """The interface of all tokenizers. They never add <s> or </s>; the codec does."""

    def learn(self, lines: Iterable[str], extra_symbols: Sequence[str] = ()) -> None:
        """Learn the vocabulary from training texts; extra symbols get ids of their own."""
        ...

    def learning_units(self, text: str) -> Sequence[str]:
        """The units of a text that learning counts: characters, words, …."""
        ...

    def learn_from_counts(self, counts: Counter[str], extra_symbols: Sequence[str] = ()) -> None:
        """Learn the vocabulary from the counts of all learning units, for callers that count on their own."""
        ...

    def encode(self, text: str) -> list[int]:
        """Text → ids."""
        ...

    def sample(self, text: str, rng: np.random.Generator) -> list[int]:
        """Text → ids of a random split."""
        ...

    def unknown_words(self, text: str) -> list[str]:
        """The words of a text that become <unk>, in order, for copy slots; [] for tokenizers of subwords."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Ids → text."""
        ...

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The token of each id, for display; special symbols by name."""
        ...

    def symbol_id(self, symbol: str) -> int | None:
        """The id of a special or extra symbol such as <to:de>; None if there is none."""
        ...

    def __len__(self) -> int: ...

    @property
    def extra_symbols(self) -> Sequence[str]:
        """The extra symbols of the vocabulary."""
        ...

    @property
    def is_stochastic(self) -> bool:
        """Whether `sample` may differ from `encode`."""
        ...

    def to_files(self) -> dict[str, bytes]:
        """What was learned, as files by name: JSON in UTF-8, and a sentencepiece model."""
        ...

    def restore(self, files: dict[str, bytes]) -> None:
        """Load what `to_files` saved."""
        ...


tokenizers: Registry[Tokenizer] = Registry("tokenizer", __name__)
