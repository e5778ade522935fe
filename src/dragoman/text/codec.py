"""Encode both sides of a pair as ids: a tokenizer per side (or one for both), Unicode normalization, language tags.

    source ids = [<from:xx>] [<to:yy>] tokens </s>          target ids = tokens </s>

If the source is not text, a modality reads the file that it names, and the source is an array of
numbers. A second source is encoded like the first, but without tags. For a model with a pointer,
out-of-vocabulary words of a source get numbered copy slots: the first distinct one is <copy:0>, the
next <copy:1>, on both sides; decoding turns a slot into its word again.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from dragoman.core.errors import DataError, ModelError
from dragoman.core.registry import Part
from dragoman.core.types import EOS, SPECIALS, UNK, Example, Modality
from dragoman.text.normalization import Form, normalize
from dragoman.text.tokenizers import Tokenizer, tokenizers
from dragoman.text.vocabulary import UNK_SURFACE

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    SourceIds = list[int] | NDArray[Any]  # ids of a text, or the numbers of a modality


SecondSourceReader = Modality | Literal["text"]  # its modality, or "text": the source's tokenizer


def copy_slot_symbols(count: int) -> list[str]:
    """The symbols of the copy slots: <copy:0>, <copy:1>, …"""
    return [f"<copy:{k}>" for k in range(count)]


def language_tags(example: Example) -> list[str]:
    """The symbols that name the source and target language of an example, as far as it has them."""
    return [
        *([f"<from:{example.source_lang}>"] if example.source_lang else []),
        *([f"<to:{example.target_lang}>"] if example.target_lang else []),
    ]


@dataclass
class Codec:
    """Text ↔ ids for both sides; with a joint vocabulary `source` and `target` are the same object.

    With a modality, sources are files. If no source is text, `source` is the target's tokenizer and is not used.
    """

    source: Tokenizer
    target: Tokenizer
    normalization: Form = "nfc"
    modality: Modality | None = None
    second_source: SecondSourceReader | None = None  # of a model with two sources

    @property
    def is_joint(self) -> bool:
        """Whether both sides share one tokenizer."""
        return self.source is self.target

    @property
    def is_stochastic(self) -> bool:
        """Whether encoding with a generator may give other ids than without (subword regularization)."""
        reads_text = has_text_source(self.modality, self.second_source)
        return (self.source.is_stochastic and reads_text) or self.target.is_stochastic

    @property
    def source_size(self) -> int:
        """The size of the source vocabulary, or the numbers at each position of a modality."""
        return len(self.source) if self.modality is None else self.modality.width

    @property
    def second_source_size(self) -> int:
        """The size of the second source's vocabulary, or its numbers at each position; 0 if there is none."""
        if self.second_source is None:
            return 0
        return len(self.source) if isinstance(self.second_source, str) else self.second_source.width

    @property
    def target_languages(self) -> list[str]:
        """The target languages of a multilingual model; [] for others."""
        return [symbol[4:-1] for symbol in self.source.vocabulary.extra_symbols if symbol.startswith("<to:")]

    @property
    def source_languages(self) -> list[str]:
        """The source languages that a multilingual model distinguishes; [] for others."""
        return [symbol[6:-1] for symbol in self.source.vocabulary.extra_symbols if symbol.startswith("<from:")]

    def encode_source(self, example: Example, rng: np.random.Generator | None = None) -> SourceIds:
        """The ids of an example's source with tags and </s>, or its numbers; with a generator, sampled subwords."""
        if self.modality is not None:
            return self.modality.read(example)
        text = normalize(example.source, self.normalization)
        ids = self.source.encode(text) if rng is None else self.source.sample(text, rng)
        ids = self._replace_oov(ids, text, self.source, self._oov_words(example.source))
        return [*(self._tag_id(tag, example) for tag in language_tags(example)), *ids, EOS]

    def encode_second_source(self, example: Example, rng: np.random.Generator | None = None) -> SourceIds:
        """The ids of an example's second source with </s>, or its numbers; with a generator, sampled subwords."""
        if not isinstance(self.second_source, str):
            assert self.second_source is not None
            return self.second_source.read(
                replace(example, source=example.second_source, content=example.second_source_content)
            )
        text = normalize(example.second_source, self.normalization)
        return [*(self.source.encode(text) if rng is None else self.source.sample(text, rng)), EOS]

    def encode_target(self, text: str, rng: np.random.Generator | None = None, source: str = "") -> list[int]:
        """The ids of a target with </s>; OOV words of `source` become copy slots; with `rng`, sampled subwords."""
        text = normalize(text, self.normalization)
        ids = self.target.encode(text) if rng is None else self.target.sample(text, rng)
        return [*self._replace_oov(ids, text, self.target, self._oov_words(source)), EOS]

    def decode(self, ids: Sequence[int], source: str = "", unknown: Sequence[str] = ()) -> str:
        """Target ids → text; copy slots become words of the source, each <unk> the next of `unknown` that is not ""."""
        ids = [i for i in ids if i >= len(SPECIALS) - 1]
        slot_words = dict(zip(self._copy_slot_ids, self._oov_words(source), strict=False))
        if not unknown and not any(id in slot_words for id in ids):
            return self.target.decode(ids)
        pieces = self.target.decode([UNK if id in slot_words else id for id in ids]).split(UNK_SURFACE)
        replacements = iter(unknown)
        words = [
            slot_words.get(id) or next(replacements, "") or UNK_SURFACE for id in ids if id in slot_words or id == UNK
        ]
        words += [UNK_SURFACE] * (len(pieces) - 1 - len(words))  # the text may contain the character ⁇ itself
        return "".join(piece + word for piece, word in zip(pieces, [*words, ""], strict=True))

    @cached_property
    def _copy_slot_ids(self) -> list[int]:
        """The ids of the copy slots, in order; [] without a joint vocabulary."""
        vocabulary = self.target.vocabulary
        symbols = vocabulary.names[: vocabulary.symbol_count] if self.is_joint else []
        return [id for id, symbol in enumerate(symbols) if symbol.startswith("<copy:")]

    def _oov_words(self, source: str) -> list[str]:
        """The distinct out-of-vocabulary words of a source, in order; [] for a model without copy slots."""
        if not self._copy_slot_ids or not source:
            return []
        return list(dict.fromkeys(self.source.unknown_words(normalize(source, self.normalization))))

    def _replace_oov(self, ids: list[int], text: str, tokenizer: Tokenizer, oov_words: list[str]) -> list[int]:
        """Replace <unk> by the copy slot of its word, if the word is one of the source's."""
        if not oov_words or UNK not in ids:
            return ids
        slots = dict(zip(oov_words, self._copy_slot_ids, strict=False))
        unknown = iter(tokenizer.unknown_words(text))
        return [slots.get(next(unknown, ""), UNK) if id == UNK else id for id in ids]

    def source_words(self, ids: Sequence[int], source: str) -> list[str]:
        """The text of each source id; an unknown word as the source spells it, "" for tags and </s>."""
        unknown = iter(self.source.unknown_words(normalize(source, self.normalization)))
        unknown_ids = {UNK, *self._copy_slot_ids}
        return [next(unknown, "") if id in unknown_ids else self.source.decode([id]).strip() for id in ids]

    def _tag_id(self, tag: str, example: Example) -> int:
        id = self.source.vocabulary.symbol_id(tag)
        if id is None:
            raise DataError(
                f"the language tag {tag} was not in the training data, so the model cannot know it",
                example.file or None,
                example.line or None,
            )
        return id

    @property
    def _tokenizers(self) -> dict[str, Tokenizer]:
        return {"joint": self.source} if self.is_joint else {"source": self.source, "target": self.target}

    def to_files(self) -> dict[str, bytes]:
        """The learned tokenizers as files of a model folder, by name: joint.*, or source.* and target.*."""
        sides = self._tokenizers.items()
        return {f"{side}.{name}": data for side, part in sides for name, data in part.to_files().items()}

    def restore(self, files: dict[str, bytes]) -> Codec:
        """Load the tokenizers that `to_files` returned, among other files; ModelError if files are missing."""
        for side, tokenizer in self._tokenizers.items():
            prefix = f"{side}."
            own_files = {name.removeprefix(prefix): data for name, data in files.items() if name.startswith(prefix)}
            if not own_files:
                raise ModelError(f"the files of the {side} tokenizer are missing")
            tokenizer.restore(own_files)
        return self

    @property
    def fingerprint(self) -> str:
        """A hash that is equal for codecs that encode alike."""
        digest = hashlib.sha256(json.dumps([self.normalization, self.is_joint]).encode())
        digest.update(repr(self.modality).encode() if self.modality is not None else b"")
        digest.update(b"second_source " + repr(self.second_source).encode() if self.second_source is not None else b"")
        for name, data in sorted(self.to_files().items()):
            digest.update(name.encode() + b"\0" + hashlib.sha256(data).digest())
        return digest.hexdigest()


def has_text_source(modality: Modality | None, second_source: SecondSourceReader | None) -> bool:
    """Whether at least one of the sources is text."""
    return modality is None or isinstance(second_source, str)


def build_codec(
    source: Part,
    target: Part,
    joint: bool,
    normalization: Form,
    modality: Modality | None = None,
    second_source: SecondSourceReader | None = None,
) -> Codec:
    """A codec with new tokenizers, which have yet to be learned or restored."""
    reads_text = has_text_source(modality, second_source)
    first = tokenizers.build(source if reads_text else target)
    other = first if joint or not reads_text else tokenizers.build(target)
    return Codec(first, other, normalization, modality, second_source)


class CodecLearner:
    """Learns the tokenizers of a codec from single texts, in any order, so that one pass over a corpus is enough."""

    def __init__(self, codec: Codec) -> None:
        self.codec = codec
        self.source_counts: Counter[str] = Counter()
        self.target_counts = self.source_counts if codec.is_joint else Counter()

    def add_source(self, text: str) -> None:
        """Count the learning units of a source text, normalized."""
        self.source_counts.update(self.codec.source.learning_units(normalize(text, self.codec.normalization)))

    def add_target(self, text: str) -> None:
        """Count the learning units of a target text, normalized."""
        self.target_counts.update(self.codec.target.learning_units(normalize(text, self.codec.normalization)))

    def finish(self, extra_symbols: Sequence[str]) -> Codec:
        """Learn the tokenizers from the counts; extra symbols (language tags) belong to the source."""
        self.codec.source.learn_from_counts(self.source_counts, extra_symbols)
        if not self.codec.is_joint:
            self.codec.target.learn_from_counts(self.target_counts)
        return self.codec
