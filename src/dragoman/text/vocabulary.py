"""Vocabularies (token ↔ id), and tokenizers that split a text and look its tokens up.

    id   0 … 3          <pad> <s> </s> <unk>
         4 …            the extra symbols (language tags), in the order of the config
         next 256       the bytes, if unknown tokens are spelled by their UTF-8 bytes ("byte fallback")
         the rest       the learned tokens, most frequent first, ties in alphabetical order
         at the end     tokens and language tags that were added to a trained model (model.extend)

Only learned tokens are looked up in text. A text with "</s>" in it gets the id of a learned token
"</s>", if there is one, and never that of the special symbol.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, ValidationError

from dragoman.core.errors import DataError, ModelError, PartError
from dragoman.core.types import SPECIALS, UNK
from dragoman.text.normalization import replace_surrogates
from dragoman.text.templates import LANGUAGE_TAG

if TYPE_CHECKING:
    import numpy as np

BYTE_TOKENS = tuple(f"<0x{byte:02X}>" for byte in range(256))
UNK_SURFACE = "\u2047"  # ⁇, how <unk> is decoded
SPACE_MARKER = "\u2581"  # ▁, stands for the space before a word
TOKENIZER_FILE = "tokenizer.json"


class Vocabulary:
    """The ids of special symbols, extra symbols, bytes (with byte_fallback), learned and added tokens, in that order.

    An added name that is a language tag is a symbol, any other a token.
    """

    def __init__(
        self,
        tokens: Sequence[str],
        extra_symbols: Sequence[str] = (),
        *,
        byte_fallback: bool = False,
        added: Sequence[str] = (),
    ) -> None:
        self.tokens, self.extra_symbols, self.byte_fallback = list(tokens), list(extra_symbols), byte_fallback
        self.added = list(added)
        symbols = [*SPECIALS, *extra_symbols]
        self.names = [*symbols, *(BYTE_TOKENS if byte_fallback else ()), *tokens, *added]
        self._symbols = {symbol: i for i, symbol in enumerate(symbols)}
        self.symbol_count = len(symbols)  # special and extra symbols have the ids below it
        self._first_added = len(self.names) - len(self.added)
        self._first_token = self._first_added - len(self.tokens)  # the id of the first learned token
        self._tokens = {token: i for i, token in enumerate(tokens, self._first_token)}
        for i, name in enumerate(added, self._first_added):
            (self._symbols if LANGUAGE_TAG.fullmatch(name) else self._tokens)[name] = i
        if len(self._symbols) + len(self._tokens) < len(symbols) + len(self.tokens) + len(self.added):
            raise ValueError("a vocabulary cannot hold the same symbol twice")

    def extended(self, names: Iterable[str]) -> Vocabulary:
        """A vocabulary with further names at its end, as far as it has them not yet; all ids stay."""
        new = [name for name in dict.fromkeys(names) if name not in self._symbols and name not in self._tokens]
        added = [*self.added, *new]
        return Vocabulary(self.tokens, self.extra_symbols, byte_fallback=self.byte_fallback, added=added)

    @property
    def all_symbols(self) -> list[str]:
        """The extra symbols, and the language tags that were added."""
        return [*self.extra_symbols, *(name for name in self.added if name in self._symbols)]

    @property
    def has_added_tokens(self) -> bool:
        """Whether there are added tokens, rather than language tags alone."""
        return any(name in self._tokens for name in self.added)

    def is_symbol(self, id: int) -> bool:
        """Whether an id is a special or extra symbol or a language tag, which is no part of a text."""
        return id < self.symbol_count or (id >= self._first_added and self.name(id) in self._symbols)

    def __len__(self) -> int:
        return len(self.names)

    def symbol_id(self, symbol: str) -> int | None:
        """The id of a special or extra symbol; None if there is none."""
        return self._symbols.get(symbol)

    def token_id(self, token: str) -> int | None:
        """The id of a learned token; None if it was not learned."""
        return self._tokens.get(token)

    def fallback_ids(self, text: str) -> list[int]:
        """The ids of a text that was not learned: its UTF-8 bytes with byte_fallback, else one <unk>."""
        return [self.symbol_count + byte for byte in text.encode()] if self.byte_fallback else [UNK]

    def id_to_byte(self, id: int) -> int | None:
        """The byte of an id; None if it is no byte token."""
        return id - self.symbol_count if self.symbol_count <= id < self._first_token else None

    def name(self, id: int) -> str:
        """The token or symbol of an id; <unk> for an id out of range."""
        return self.names[id] if 0 <= id < len(self.names) else SPECIALS[UNK]

    def surface_parts(self, ids: Iterable[int], unknown: str = UNK_SURFACE) -> Iterator[str | int]:
        """The tokens of ids, bytes as ints; special and extra symbols are left out, <unk> becomes `unknown`."""
        for id in ids:
            if self.symbol_count <= id < self._first_token:
                yield id - self.symbol_count
            elif self._first_token <= id < len(self.names) and not self.is_symbol(id):
                yield self.names[id]
            elif id == UNK:
                yield unknown

    def decode(self, ids: Iterable[int], unknown: str = UNK_SURFACE) -> str:
        """Join the tokens and bytes of ids to a text; bytes that are not UTF-8 become U+FFFD."""
        parts = self.surface_parts(ids, unknown)
        data = b"".join(part.encode() if isinstance(part, str) else bytes((part,)) for part in parts)
        return data.decode("utf-8", errors="replace")


class TokenizerFile(BaseModel):
    """The content of tokenizer.json."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    kind: str
    extra: tuple[str, ...]
    tokens: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    byte_fallback: bool = False
    lowercase: bool = False
    sha256: str = ""  # of the sentencepiece model beside it

    def to_bytes(self) -> bytes:
        """The file as JSON."""
        return self.model_dump_json(indent=1, exclude_defaults=True).encode() + b"\n"

    @classmethod
    def parse(cls, files: Mapping[str, bytes], kind: str) -> TokenizerFile:
        """Parse the tokenizer.json of a model folder; ModelError if it is missing, damaged or of another kind."""
        if TOKENIZER_FILE not in files:
            raise ModelError(f"{TOKENIZER_FILE} of the {kind} tokenizer is missing; copy the model folder again")
        try:
            learned = cls.model_validate_json(files[TOKENIZER_FILE])
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(key) for key in first["loc"])
            problem = f"{where}: {first['msg']}" if where else first["msg"]
            raise ModelError(f"{TOKENIZER_FILE} is damaged ({problem}); copy the model folder again") from None
        if learned.kind != kind:
            raise ModelError(
                f"{TOKENIZER_FILE} belongs to a '{learned.kind[:40]}' tokenizer, but the config asks for '{kind}'"
            )
        return learned


def encode_added_words(text: str, vocabulary: Vocabulary, encode: Callable[[str], list[int]]) -> list[int]:
    """Encode a text in which the words that were added to the vocabulary, as ▁word, are a token each."""
    if not vocabulary.has_added_tokens:
        return encode(text)
    ids: list[int] = []
    run: list[str] = []  # words for `encode`
    for word in text.split(" "):
        id = vocabulary.token_id(SPACE_MARKER + word) if word else None
        if id is None or SPACE_MARKER + word not in vocabulary.added:
            run.append(word)
            continue
        ids += [*(encode(" ".join(run)) if run else []), id]
        run = []
    return ids + (encode(" ".join(run)) if run else [])


class LookupTokenizer:
    """A tokenizer that looks up whole tokens in a vocabulary; subclasses define how text is split and joined."""

    kind: str
    is_stochastic = False  # whether `sample` may differ from `encode`

    def __init__(
        self, *, min_count: int = 1, size: int | None = None, byte_fallback: bool = False, lowercase: bool = False
    ) -> None:
        self.min_count, self.size, self.byte_fallback, self.lowercase = min_count, size, byte_fallback, lowercase
        self.vocabulary = Vocabulary((), byte_fallback=byte_fallback)

    def split(self, text: str) -> list[str]:
        """Split a text into tokens; every subclass does so in its own way."""
        raise NotImplementedError

    def fallback_ids(self, token: str) -> list[int]:
        """The ids of a token that is not in the vocabulary: its UTF-8 bytes or <unk>."""
        return self.vocabulary.fallback_ids(token)

    def decode(self, ids: Sequence[int]) -> str:
        """Ids → text: the tokens joined without spaces."""
        return self.vocabulary.decode(ids)

    def learn(self, lines: Iterable[str], extra_symbols: Sequence[str] = ()) -> None:
        """Learn the vocabulary from training texts; extra symbols get ids of their own."""
        self.learn_from_counts(Counter(unit for line in lines for unit in self.learning_units(line)), extra_symbols)

    def learning_units(self, text: str) -> Sequence[str]:
        """The units of a text that learning counts: its tokens."""
        return self.split(self._clean(text))

    def learn_from_counts(self, counts: Counter[str], extra_symbols: Sequence[str] = ()) -> None:
        """Learn the vocabulary from the counts of all learning units, for callers that count on their own."""
        extra_symbols = list(dict.fromkeys(extra_symbols))
        tokens = sorted((token for token, n in counts.items() if n >= self.min_count), key=lambda t: (-counts[t], t))
        if self.size is not None:
            reserved = len(Vocabulary((), extra_symbols, byte_fallback=self.byte_fallback))
            if self.size <= reserved:
                raise PartError(
                    f"a vocabulary of size {self.size} is too small: special symbols"
                    f"{', bytes' if self.byte_fallback else ''} and language tags take {reserved} ids. "
                    "Set a larger size."
                )
            tokens = tokens[: self.size - reserved]
        self.vocabulary = Vocabulary(tokens, extra_symbols, byte_fallback=self.byte_fallback)
        if not tokens and not self.byte_fallback:
            raise DataError(
                f"the {self.kind} tokenizer found no token that occurs at least min_count={self.min_count} times "
                "in the training texts. Give it more text, or lower min_count."
            )

    def extend(self, tokens: Iterable[str], tags: Iterable[str]) -> None:
        """Add tokens and language tags at the end of the vocabulary."""
        pieces = []
        for token in tokens:
            split = self.split(self._clean(token))
            if len(split) != 1:
                raise PartError(f"extend.tokens: '{token}' is no single token of a tokenizer '{self.kind}'")
            pieces += split
        self.vocabulary = self.vocabulary.extended([*pieces, *tags])

    def encode(self, text: str) -> list[int]:
        """Text → ids; a token that was not learned is its UTF-8 bytes or <unk>."""
        ids: list[int] = []
        for token in self.split(self._clean(text)):
            id = self.vocabulary.token_id(token)
            if id is None:
                ids.extend(self.fallback_ids(token))
            else:
                ids.append(id)
        return ids

    def unknown_words(self, text: str) -> list[str]:
        """The tokens of a text that become <unk>, in order, as the text spells them."""
        words = [token for token in self.split(text) if self.fallback_ids(self._clean(token)) == [UNK]]
        return [
            word.removeprefix(SPACE_MARKER) for word in words if self.vocabulary.token_id(self._clean(word)) is None
        ]

    def sample(self, text: str, rng: np.random.Generator) -> list[int]:
        """Text → ids of a random split; here there is one split, and the generator is not used."""
        return self.encode(text)

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The token of each id, for display; special symbols by name."""
        return [self.vocabulary.name(id) for id in ids]

    def __len__(self) -> int:
        return len(self.vocabulary)

    def to_files(self) -> dict[str, bytes]:
        """What was learned, as files by name."""
        learned = TokenizerFile(
            kind=self.kind,
            extra=tuple(self.vocabulary.extra_symbols),
            tokens=tuple(self.vocabulary.tokens),
            added=tuple(self.vocabulary.added),
            byte_fallback=self.byte_fallback,
            lowercase=self.lowercase,
        )
        return {TOKENIZER_FILE: learned.to_bytes()}

    def restore(self, files: dict[str, bytes]) -> None:
        """Load what `to_files` returned, with the options it was learned with; ModelError if it is damaged."""
        learned = TokenizerFile.parse(files, self.kind)
        try:
            self.vocabulary = Vocabulary(
                learned.tokens, learned.extra, byte_fallback=learned.byte_fallback, added=learned.added
            )
        except ValueError as error:
            raise ModelError(f"{TOKENIZER_FILE} is damaged ({error}); copy the model folder again") from None
        self.byte_fallback, self.lowercase = learned.byte_fallback, learned.lowercase

    def _clean(self, text: str) -> str:
        return replace_surrogates(text.lower() if self.lowercase else text)
