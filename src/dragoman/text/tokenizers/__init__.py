"""Text → ids → text, one file for each kind; the folder is the registry.

Every vocabulary begins with <pad> <s> </s> <unk> (ids 0 to 3), then the extra symbols (language tags) in the order
given, then what was learned. No special symbol is ever found in text: a text that spells "</s>" is four characters like
any others.

    tokenizer = tokenizers.build(Part("bpe", {"size": 8000}))     # options only
    tokenizer.learn(lines, extra=["<to:de>"])                     # once, from the training texts
    tokenizer.state() → files …  tokenizer.restore(files)         # plain bytes; no pickle

`encode` is a function of the text alone. `sample` draws another split of the same text for subword regularization, from
the generator it is given and nothing else, so that a resumed run sees the very same splits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from dragoman.core.registry import Registry

if TYPE_CHECKING:
    import numpy as np


class Tokenizer(Protocol):
    """What every tokenizer can do. It never adds <s> or </s>; whoever batches does."""

    def learn(self, lines: Iterable[str], extra: Sequence[str] = ()) -> None: ...

    def encode(self, text: str) -> list[int]: ...

    def sample(self, text: str, rng: np.random.Generator) -> list[int]: ...

    def unknown_words(self, text: str) -> list[str]:
        """What of a text becomes <unk>, in order, for a model that copies; [] where that is not whole words."""
        ...

    def decode(self, ids: Sequence[int]) -> str: ...

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The tokens as a person would like to see them, one for each id (specials by their name)."""
        ...

    def id(self, symbol: str) -> int | None:
        """The id of a special or extra symbol such as <to:de>."""
        ...

    def __len__(self) -> int: ...

    @property
    def extra(self) -> Sequence[str]:
        """The extra symbols it was learned with."""
        ...

    @property
    def samples(self) -> bool:
        """Whether `sample` may differ from `encode`."""
        ...

    def state(self) -> dict[str, bytes]:
        """Everything learned, as files by name (JSON as UTF-8, a sentencepiece model as it is)."""
        ...

    def restore(self, files: dict[str, bytes]) -> None: ...


tokenizers: Registry[Tokenizer] = Registry("tokenizer", __name__)
