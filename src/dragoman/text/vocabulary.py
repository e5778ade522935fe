"""Token ↔ id, and the tokenizers that are nothing but a way to split text and a look-up.

    id   0 … 3          <pad> <s> </s> <unk>
         4 …            the extra symbols (language tags), in the order given
         next 256       the bytes, where unknown tokens are spelled by their UTF-8 bytes ("byte fallback")
         the rest       the learned tokens, most frequent first, equals in order of their spelling

Text is looked up among the learned tokens alone. A text that spells "</s>" finds the learned token "</s>" if there is
one, with an id of its own, and never the special.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, ValidationError

from dragoman.core.errors import DataError, ModelError, PartError
from dragoman.core.types import SPECIALS, UNK
from dragoman.text.normalization import well_formed

if TYPE_CHECKING:
    import numpy as np

BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))
UNKNOWN = "\u2047"  # ⁇, what <unk> reads as in a text
MARK = "\u2581"  # ▁, a space before a word
FILE = "tokenizer.json"


class Vocabulary:
    """Ids of specials, extra symbols, bytes (if asked for) and learned tokens, in that order."""

    def __init__(self, tokens: Sequence[str], extra: Sequence[str] = (), *, byte_fallback: bool = False) -> None:
        self.tokens, self.extra, self.byte_fallback = list(tokens), list(extra), byte_fallback
        symbols = [*SPECIALS, *extra]
        self.names = [*symbols, *(BYTES if byte_fallback else ()), *tokens]
        self._symbols = {symbol: i for i, symbol in enumerate(symbols)}
        self._byte = len(symbols)  # the id of byte 0
        self._first = len(self.names) - len(self.tokens)  # the id of the first learned token
        self._tokens = {token: i for i, token in enumerate(tokens, self._first)}
        if len(self._symbols) < len(symbols) or len(self._tokens) < len(self.tokens):
            raise ValueError("a vocabulary cannot hold the same symbol twice")

    @classmethod
    def counted(
        cls,
        counts: Mapping[str, int],
        extra: Sequence[str] = (),
        *,
        min_count: int = 1,
        size: int | None = None,
        byte_fallback: bool = False,
    ) -> Vocabulary:
        """The most frequent tokens; `size` is that of the whole vocabulary, specials and all."""
        tokens = sorted((token for token, n in counts.items() if n >= min_count), key=lambda t: (-counts[t], t))
        if size is not None:
            reserved = len(cls((), extra, byte_fallback=byte_fallback))
            if size <= reserved:
                raise PartError(
                    f"a vocabulary of size {size} has no room for tokens: {reserved} of its ids are taken by special "
                    f"symbols{', bytes' if byte_fallback else ''} and language tags. Ask for a larger size."
                )
            tokens = tokens[: size - reserved]
        return cls(tokens, extra, byte_fallback=byte_fallback)

    def __len__(self) -> int:
        return len(self.names)

    def id(self, symbol: str) -> int | None:
        """The id of a special or extra symbol."""
        return self._symbols.get(symbol)

    def find(self, token: str) -> int | None:
        """The id of a token of text."""
        return self._tokens.get(token)

    def spell(self, text: str) -> list[int]:
        """A text that has no token: its bytes, or <unk> where bytes are not in the vocabulary."""
        return [self._byte + byte for byte in text.encode()] if self.byte_fallback else [UNK]

    def byte(self, id: int) -> int | None:
        """The byte that an id stands for, if it stands for one."""
        return id - self._byte if self._byte <= id < self._first else None

    def name(self, id: int) -> str:
        """The token of an id; an id past the end is <unk>."""
        return self.names[id] if 0 <= id < len(self.names) else SPECIALS[UNK]

    def parts(self, ids: Iterable[int], unknown: str = UNKNOWN) -> Iterator[str | int]:
        """What ids stand for in a text: tokens, and bytes as ints; specials and extra symbols stand for nothing."""
        for id in ids:
            if self._byte <= id < self._first:
                yield id - self._byte
            elif self._first <= id < len(self.names):
                yield self.names[id]
            elif id == UNK:
                yield unknown


def join(parts: Iterable[str | int]) -> str:
    """Strings and bytes → text; bytes that are not UTF-8 become U+FFFD."""
    data = b"".join(part.encode() if isinstance(part, str) else bytes((part,)) for part in parts)
    return data.decode("utf-8", errors="replace")


# -- as a file ---------------------------------------------------------------------------------------------------------


class Learned(BaseModel):
    """What tokenizer.json holds."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    kind: str
    extra: tuple[str, ...]
    tokens: tuple[str, ...] = ()
    byte_fallback: bool = False
    lowercase: bool = False
    sha256: str = ""  # of the sentencepiece model beside it

    def file(self) -> bytes:
        return self.model_dump_json(indent=1, exclude_defaults=True).encode() + b"\n"


def read(files: Mapping[str, bytes], kind: str) -> Learned:
    """The tokenizer.json of a model folder, or a ModelError that says what is wrong with it."""
    if FILE not in files:
        raise ModelError(f"{FILE} of the {kind} tokenizer is missing; copy the model folder again")
    try:
        learned = Learned.model_validate_json(files[FILE])
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(key) for key in first["loc"])
        found = f"{where}: {first['msg']}" if where else first["msg"]
        raise ModelError(f"{FILE} is damaged ({found}); copy the model folder again") from None
    if learned.kind != kind:
        raise ModelError(f"{FILE} belongs to a '{learned.kind[:40]}' tokenizer, but the config asks for '{kind}'")
    return learned


# -- tokenizers that look up -------------------------------------------------------------------------------------------


class Lookup:
    """A tokenizer that looks tokens up in a vocabulary; a kind of it says how text is split into them and joined."""

    kind: str
    samples = False

    def __init__(
        self, *, min_count: int = 1, size: int | None = None, byte_fallback: bool = False, lowercase: bool = False
    ) -> None:
        self.min_count, self.size, self.byte_fallback, self.lowercase = min_count, size, byte_fallback, lowercase
        self.vocabulary = Vocabulary((), byte_fallback=byte_fallback)

    def split(self, text: str) -> list[str]:
        """The tokens of a text."""
        raise NotImplementedError

    def unknown(self, token: str) -> list[int]:
        """The ids of a token that was not learned."""
        return self.vocabulary.spell(token)

    def decode(self, ids: Sequence[int]) -> str:
        return join(self.vocabulary.parts(ids))

    def learn(self, lines: Iterable[str], extra: Sequence[str] = ()) -> None:
        counts: Counter[str] = Counter()
        for line in lines:
            counts.update(self.split(self._clean(line)))
        self.vocabulary = Vocabulary.counted(
            counts,
            list(dict.fromkeys(extra)),
            min_count=self.min_count,
            size=self.size,
            byte_fallback=self.byte_fallback,
        )
        if not self.vocabulary.tokens and not self.byte_fallback:
            raise DataError(
                f"the {self.kind} tokenizer found no token that occurs at least min_count={self.min_count} times "
                "in the training texts. Give it more text, or lower min_count."
            )

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for token in self.split(self._clean(text)):
            found = self.vocabulary.find(token)
            if found is None:
                ids.extend(self.unknown(token))
            else:
                ids.append(found)
        return ids

    def unknown_words(self, text: str) -> list[str]:
        """What of a text becomes <unk>, in order, as it stands there."""
        words = [token for token in self.split(text) if self.unknown(token) == [UNK]]
        return [word.removeprefix(MARK) for word in words if self.vocabulary.find(self._clean(word)) is None]

    def sample(self, text: str, rng: np.random.Generator) -> list[int]:
        return self.encode(text)

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [self.vocabulary.name(id) for id in ids]

    def id(self, symbol: str) -> int | None:
        return self.vocabulary.id(symbol)

    @property
    def extra(self) -> Sequence[str]:
        return self.vocabulary.extra

    def __len__(self) -> int:
        return len(self.vocabulary)

    def state(self) -> dict[str, bytes]:
        learned = Learned(
            kind=self.kind,
            extra=tuple(self.vocabulary.extra),
            tokens=tuple(self.vocabulary.tokens),
            byte_fallback=self.byte_fallback,
            lowercase=self.lowercase,
        )
        return {FILE: learned.file()}

    def restore(self, files: dict[str, bytes]) -> None:
        """What was learned, with the options it was learned with."""
        learned = read(files, self.kind)
        try:
            self.vocabulary = Vocabulary(learned.tokens, learned.extra, byte_fallback=learned.byte_fallback)
        except ValueError as error:
            raise ModelError(f"{FILE} is damaged ({error}); copy the model folder again") from None
        self.byte_fallback, self.lowercase = learned.byte_fallback, learned.lowercase

    def _clean(self, text: str) -> str:
        return well_formed(text.lower() if self.lowercase else text)
