"""Both sides of a pair ↔ ids: one tokenizer for each side (or one for both), Unicode normalization, language tags.

    source ids = [<from:xx>] [<to:yy>] tokens </s>          target ids = tokens </s>

A source is never empty, then: even a blank line has its </s>. Where the source is no text, a medium reads the file that
it names, and there are no source ids but an array of numbers. A second source is encoded as the first is, by the same
tokenizer where both are texts, but without tags. For a model that copies, unknown words of a source are
numbered: the first different one is <copy:0>, the next <copy:1>, on both sides, and the number reads as the word again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from dragoman.core.errors import DataError, ModelError
from dragoman.core.registry import Part
from dragoman.core.types import EOS, SPECIALS, UNK, Example, Modality
from dragoman.text.normalization import Form, normalize
from dragoman.text.tokenizers import Tokenizer, tokenizers
from dragoman.text.vocabulary import UNKNOWN

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


Reader = Modality | Literal["text"]  # what a second source is read by: its medium, or the source's tokenizer


def copies(count: int) -> list[str]:
    """The symbols that unknown words of a source go by."""
    return [f"<copy:{k}>" for k in range(count)]


def tags(example: Example) -> list[str]:
    """The symbols that say which language comes in and which shall come out."""
    return [
        *([f"<from:{example.source_lang}>"] if example.source_lang else []),
        *([f"<to:{example.target_lang}>"] if example.target_lang else []),
    ]


@dataclass
class Codec:
    """Text ↔ ids for both sides; with a joint vocabulary `source` and `target` are one object.

    With a medium, sources are files. Where no source is a text, `source` is the target's tokenizer, which nobody asks.
    """

    source: Tokenizer
    target: Tokenizer
    normalization: Form = "nfc"
    modality: Modality | None = None
    second_source: Reader | None = None  # of a model with two sources

    @property
    def joint(self) -> bool:
        return self.source is self.target

    @property
    def samples(self) -> bool:
        return (self.source.samples and reads_text(self.modality, self.second_source)) or self.target.samples

    @property
    def source_size(self) -> int:
        """Tokens that a source may have, or numbers at each of its positions."""
        return len(self.source) if self.modality is None else self.modality.width

    @property
    def second_source_size(self) -> int:
        """The same of a second source; 0 where there is none."""
        if self.second_source is None:
            return 0
        return len(self.source) if isinstance(self.second_source, str) else self.second_source.width

    @property
    def languages(self) -> list[str]:
        """The languages that can be asked for, where the model knows several."""
        return [symbol[4:-1] for symbol in self.source.extra if symbol.startswith("<to:")]

    @property
    def source_languages(self) -> list[str]:
        """The languages that a source can be said to be in."""
        return [symbol[6:-1] for symbol in self.source.extra if symbol.startswith("<from:")]

    def encode_source(self, example: Example, rng: np.random.Generator | None = None) -> list[int] | NDArray[Any]:
        if self.modality is not None:
            return self.modality.read(example)
        text = normalize(example.source, self.normalization)
        ids = self.source.encode(text) if rng is None else self.source.sample(text, rng)
        ids = self._numbered(ids, text, self.source, self._strangers(example.source))
        return [*(self._tag(tag, example) for tag in tags(example)), *ids, EOS]

    def encode_second_source(
        self, example: Example, rng: np.random.Generator | None = None
    ) -> list[int] | NDArray[Any]:
        if not isinstance(self.second_source, str):
            assert self.second_source is not None
            return self.second_source.read(
                replace(example, source=example.second_source, content=example.second_source_content)
            )
        text = normalize(example.second_source, self.normalization)
        return [*(self.source.encode(text) if rng is None else self.source.sample(text, rng)), EOS]

    def encode_target(self, text: str, rng: np.random.Generator | None = None, source: str = "") -> list[int]:
        text = normalize(text, self.normalization)
        ids = self.target.encode(text) if rng is None else self.target.sample(text, rng)
        return [*self._numbered(ids, text, self.target, self._strangers(source)), EOS]

    def decode(self, ids: Sequence[int], source: str = "", unknown: Sequence[str] = ()) -> str:
        """Target ids → text; <s>, </s> and padding are left out, numbers read as the words of the source they name.

        `unknown` has a word for each <unk> in turn, or "" where it stays.
        """
        ids = [i for i in ids if i >= len(SPECIALS) - 1]
        names = dict(zip(self._copies, self._strangers(source), strict=False))
        if not unknown and not any(id in names for id in ids):
            return self.target.decode(ids)
        pieces = self.target.decode([UNK if id in names else id for id in ids]).split(UNKNOWN)
        given = iter(unknown)
        words = [names.get(id) or next(given, "") or UNKNOWN for id in ids if id in names or id == UNK]
        words += [UNKNOWN] * (len(pieces) - 1 - len(words))  # what else looks like one
        return "".join(piece + word for piece, word in zip(pieces, [*words, ""], strict=True))

    @cached_property
    def _copies(self) -> list[int]:
        """The ids of the numbers."""
        count = sum(symbol.startswith("<copy:") for symbol in self.target.extra) if self.joint else 0
        return [id for symbol in copies(count) if (id := self.target.id(symbol)) is not None]

    def _strangers(self, source: str) -> list[str]:
        """The different unknown words of a source, in order, where they are numbered at all."""
        if not self._copies or not source:
            return []
        return list(dict.fromkeys(self.source.unknown_words(normalize(source, self.normalization))))

    def _numbered(self, ids: list[int], text: str, tokenizer: Tokenizer, strangers: list[str]) -> list[int]:
        """Ids with the number of a word of the source in place of <unk>, where the unknown word is one of them."""
        if not strangers or UNK not in ids:
            return ids
        number = dict(zip(strangers, self._copies, strict=False))
        unknown = iter(tokenizer.unknown_words(text))
        return [number.get(next(unknown, ""), UNK) if id == UNK else id for id in ids]

    def words(self, ids: Sequence[int], source: str) -> list[str]:
        """What of a source stands at each of its ids, an unknown word as it is written; "" at a tag and at </s>."""
        unknown = iter(self.source.unknown_words(normalize(source, self.normalization)))
        strangers = {UNK, *self._copies}
        return [next(unknown, "") if id in strangers else self.source.decode([id]).strip() for id in ids]

    def source_pieces(self, ids: Sequence[int]) -> list[str]:
        return self.source.pieces(ids)

    def target_pieces(self, ids: Sequence[int]) -> list[str]:
        return self.target.pieces(ids)

    def _tag(self, tag: str, example: Example) -> int:
        found = self.source.id(tag)
        if found is None:
            raise DataError(
                f"the language tag {tag} was not in the training data, so the model cannot know it",
                example.file or None,
                example.line or None,
            )
        return found

    # -- as files ------------------------------------------------------------------------------------------------

    def files(self) -> dict[str, bytes]:
        """Everything learned, as the files of a model folder."""
        sides = {"joint": self.source} if self.joint else {"source": self.source, "target": self.target}
        files = {f"{side}.{name}": data for side, part in sides.items() for name, data in part.state().items()}
        for name, modality in {"medium": self.modality, "second_source": self.second_source}.items():
            if modality is not None and not isinstance(modality, str):
                files |= {f"{name}.{key}": data for key, data in modality.state().items()}
        return files

    @property
    def fingerprint(self) -> str:
        """The same for codecs that give the same ids."""
        digest = hashlib.sha256(json.dumps([self.normalization, self.joint]).encode())
        digest.update(repr(self.modality).encode() if self.modality is not None else b"")
        digest.update(b"second_source " + repr(self.second_source).encode() if self.second_source is not None else b"")
        for name, data in sorted(self.files().items()):
            digest.update(name.encode() + b"\0" + hashlib.sha256(data).digest())
        return digest.hexdigest()


def reads_text(modality: Modality | None, second_source: Reader | None) -> bool:
    """Whether a source, of one or two, is a text."""
    return modality is None or isinstance(second_source, str)


def learn(
    source: Part,
    target: Part,
    joint: bool,
    normalization: Form,
    sources: Iterable[str],
    targets: Iterable[str],
    extra: Sequence[str],
    modality: Modality | None = None,
    second_source: Reader | None = None,
) -> Codec:
    """New tokenizers from the training texts; `extra` are the language tags, which belong to the source.

    `sources` are the texts of all sources that are texts.
    """

    def clean(lines: Iterable[str]) -> Iterable[str]:
        return (normalize(line, normalization) for line in lines)

    if not reads_text(modality, second_source):
        only = tokenizers.build(target)
        only.learn(clean(targets), extra)
        return Codec(only, only, normalization, modality, second_source)
    first = tokenizers.build(source)
    if joint:
        first.learn((line for side in (sources, targets) for line in clean(side)), extra)
        return Codec(first, first, normalization, modality, second_source)
    other = tokenizers.build(target)
    first.learn(clean(sources), extra)
    other.learn(clean(targets))
    return Codec(first, other, normalization, modality, second_source)


def restore(
    source: Part,
    target: Part,
    joint: bool,
    normalization: Form,
    files: dict[str, bytes],
    modality: Modality | None = None,
    second_source: Reader | None = None,
) -> Codec:
    """The codec of a model folder from its files."""

    def one(side: str, part: Part) -> Tokenizer:
        mine = {name.removeprefix(f"{side}."): data for name, data in files.items() if name.startswith(f"{side}.")}
        if not mine:
            raise ModelError(f"the files of the {side} tokenizer are missing")
        tokenizer = tokenizers.build(part)
        tokenizer.restore(mine)
        return tokenizer

    if joint or not reads_text(modality, second_source):
        both = one("joint", source if reads_text(modality, second_source) else target)
        return Codec(both, both, normalization, modality, second_source)
    return Codec(one("source", source), one("target", target), normalization, modality, second_source)
