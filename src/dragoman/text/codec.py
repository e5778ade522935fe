"""Encode both sides of a pair as ids: a tokenizer per side (or one for both), Unicode normalization, language tags.

    source ids = [<from:xx>] [<to:yy>] tokens </s>          target ids = tokens </s>

Models of other programs may have other symbols around the tokens: templates.py. What stands before a target's tokens
is given: every search begins with it, and it has probability 1. If the source is not text, a modality reads the file
that it names, and the source is an array of numbers. A second source is encoded like the first, but without tags. For
a model with a pointer, out-of-vocabulary words of a source get numbered copy slots: the first distinct one is <copy:0>,
the next <copy:1>, on both sides; decoding turns a slot into its word again.
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
from dragoman.text.templates import SOURCE_TEMPLATE, TARGET_TEMPLATE, SequenceTemplate
from dragoman.text.tokenizers import Tokenizer, tokenizers
from dragoman.text.vocabulary import UNK_SURFACE

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    SourceIds = list[int] | NDArray[Any]  # ids of a text, or the numbers of a modality


SecondSourceReader = Modality | Literal["text"]  # its modality, or "text": the source's tokenizer

DEFAULT_SOURCE = SequenceTemplate.parse(SOURCE_TEMPLATE)
DEFAULT_TARGET = SequenceTemplate.parse(TARGET_TEMPLATE)


def copy_slot_symbols(count: int) -> list[str]:
    """The symbols of the copy slots: <copy:0>, <copy:1>, …"""
    return [f"<copy:{k}>" for k in range(count)]


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
    source_template: SequenceTemplate = DEFAULT_SOURCE
    target_template: SequenceTemplate = DEFAULT_TARGET

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
        return self._languages("to")

    @property
    def source_languages(self) -> list[str]:
        """The source languages that a multilingual model distinguishes; [] for others."""
        return self._languages("from")

    def _languages(self, role: str) -> list[str]:
        sides = ((self.source_template, self.source), (self.target_template, self.target))
        found = (template.languages(role, side.vocabulary.all_symbols) for template, side in sides)
        return next((languages for languages in found if languages), [])

    def encode_source(self, example: Example, rng: np.random.Generator | None = None) -> SourceIds:
        """The ids of an example's source in its template, or its numbers; with a generator, sampled subwords."""
        if self.modality is not None:
            return self.modality.read(example)
        text = normalize(example.source, self.normalization)
        ids = self.source.encode(text) if rng is None else self.source.sample(text, rng)
        ids = self._replace_oov(ids, text, self.source, self._oov_words(example.source))
        before, after = self.source_template.prefix_symbols(example), self.source_template.suffix_symbols(example)
        return [*self._symbol_ids(self.source, before, example), *ids, *self._symbol_ids(self.source, after, example)]

    def encode_second_source(self, example: Example, rng: np.random.Generator | None = None) -> SourceIds:
        """The ids of an example's second source with </s>, or its numbers; with a generator, sampled subwords."""
        if not isinstance(self.second_source, str):
            assert self.second_source is not None
            return self.second_source.read(
                replace(example, source=example.second_source, content=example.second_source_content)
            )
        text = normalize(example.second_source, self.normalization)
        return [*(self.source.encode(text) if rng is None else self.source.sample(text, rng)), EOS]

    def encode_target(self, example: Example, rng: np.random.Generator | None = None) -> list[int]:
        """The ids of an example's target in its template; OOV words of its source become copy slots."""
        after = self._symbol_ids(self.target, self.target_template.suffix_symbols(example), example)
        return [*self.target_prefix(example), *self.encode_phrase(example.target or "", example.source, rng), *after]

    def target_prefix(self, example: Example) -> list[int]:
        """The ids before the target's tokens, which are given: as many for every example."""
        return self._symbol_ids(self.target, self.target_template.prefix_symbols(example), example)

    def encode_phrase(self, text: str, source: str = "", rng: np.random.Generator | None = None) -> list[int]:
        """The ids of a target or a part of it, alone; OOV words of `source` become copy slots; `rng`: sampled."""
        text = normalize(text, self.normalization)
        ids = self.target.encode(text) if rng is None else self.target.sample(text, rng)
        return self._replace_oov(ids, text, self.target, self._oov_words(source))

    def extend(self, tokens: Sequence[str], languages: Sequence[str]) -> None:
        """Add tokens to both vocabularies, and the tags of languages to those whose templates have them."""
        sides = ((self.source_template, self.source), (self.target_template, self.target))
        for template, tokenizer in sides:
            tags = [tag for language in languages for tag in template.language_symbols(language)]
            tokenizer.extend([normalize(token, self.normalization) for token in tokens], tags)

    def normalize_targets(self, example: Example) -> Example:
        """An example with its accepted targets in this codec's Unicode form, the form of all outputs."""
        if example.target is None:
            return example
        target, *others = (normalize(text, self.normalization) for text in (example.target, *example.references))
        return replace(example, target=target, references=tuple(others))

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

    def _symbol_ids(self, tokenizer: Tokenizer, symbols: Sequence[str], example: Example) -> list[int]:
        """The ids of symbols; DataError if the vocabulary lacks one."""
        ids = [(symbol, tokenizer.vocabulary.symbol_id(symbol)) for symbol in symbols]
        for symbol, id in ids:
            if id is None:
                raise DataError(
                    f"the language tag {symbol} was not in the training data, so the model cannot know it",
                    example.file or None,
                    example.line or None,
                )
        return [id for _, id in ids if id is not None]

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
        templates = self.source_template, self.target_template
        if templates != (DEFAULT_SOURCE, DEFAULT_TARGET):
            digest.update(repr(templates).encode())
        for name, data in sorted(self.to_files().items()):
            digest.update(name.encode() + b"\0" + hashlib.sha256(data).digest())
        return digest.hexdigest()


def truncate(ids: Any, max_length: int) -> Any:
    """The first `max_length` ids or numbers of a source; a list of ids that ended with </s> still does."""
    if len(ids) > max_length and isinstance(ids, list) and ids[-1] == EOS:
        return [*ids[: max_length - 1], EOS]
    return ids[:max_length]


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
    source_template: str = SOURCE_TEMPLATE,
    target_template: str = TARGET_TEMPLATE,
) -> Codec:
    """A codec with new tokenizers, which have yet to be learned or restored."""
    templates = SequenceTemplate.parse(source_template), SequenceTemplate.parse(target_template)
    reads_text = has_text_source(modality, second_source)
    first = tokenizers.build(source if reads_text else target)
    other = first if joint or not reads_text else tokenizers.build(target)
    return Codec(first, other, normalization, modality, second_source, *templates)


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

    def finish(self, extra_symbols: Sequence[str], target_symbols: Sequence[str] = ()) -> Codec:
        """Learn the tokenizers from the counts; `extra_symbols` (language tags) belong to the source or to both."""
        self.codec.source.learn_from_counts(self.source_counts, extra_symbols)
        if not self.codec.is_joint:
            self.codec.target.learn_from_counts(self.target_counts, target_symbols)
        return self.codec
