"""Find the characters and words of sources that a model has never seen.

    characters, bytes, subwords     a character without a token of its own: <unk>, or spelled by its UTF-8 bytes
    words, symbols                  a word or symbol that is not in the vocabulary

With the counts of the training data, what has a token but no count is unseen, too: the tokens may come from another
model, and a vocabulary of bytes has a token for everything. A whole script is unseen if none of its letters is known.
A word for which a model with a pointer has a copy slot is not reported: such a model copies it.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from dragoman.core.types import UNK, Example
from dragoman.text.codec import Codec, has_text_source
from dragoman.text.frozen_tokenizer import FrozenTokenizer
from dragoman.text.normalization import normalize
from dragoman.text.scripts import script_of
from dragoman.text.sentencepiece_model import SentencePieceTokenizer
from dragoman.text.tokenizers import Tokenizer
from dragoman.text.vocabulary import SPACE_MARKER, LookupTokenizer

Side = Literal["source", "target"]

MAX_DISTINCT = 10_000  # units to count, so that memory stays bounded however many sources there are
SHOWN = 5  # units in a sentence


@dataclass
class UnseenReport:
    """What of some sources a model has never seen; false if that is nothing."""

    unit: str = "character"  # or "word", "symbol"
    counts: Counter[str] = field(default_factory=Counter)  # occurrences of each unseen unit
    lines: dict[str, int] = field(default_factory=dict)  # the first line of each
    line_count: int = 0  # lines with at least one
    first_line: int = 0
    scripts: Counter[str] = field(default_factory=Counter)  # lines with letters of each script that was never seen
    spelled_in_bytes: bool = False  # the model reads them as bytes, not as <unk>
    was_learned: bool = True  # every unit of the training data is known; else rare ones may be missing

    def __bool__(self) -> bool:
        return self.line_count > 0

    def sentence(self) -> str:
        """Return one sentence with counts and first lines; "" if nothing is unseen."""
        if not self:
            return ""
        one_line = self.line_count == 1
        lines = f"line {self.first_line} has" if one_line else f"{self.line_count:,} lines have"
        never = "has never seen" if self.was_learned else "does not know"
        shown = self.counts.most_common(SHOWN)
        units = [
            f"{format_unit(unit)} ({count:,}×{'' if one_line else f', first in line {self.lines[unit]:,}'})"
            for unit, count in shown
        ]
        rest = len(self.counts) - len(shown)
        more = f" and {rest:,} more" if rest else ""
        sentence = f"{lines} {self.unit}s that the model {never}: {', '.join(units)}{more}"
        if self.scripts:
            scripts = " and ".join(name for name, _ in self.scripts.most_common())
            sentence += f"; it knows no letter of the {scripts} script{'s' if len(self.scripts) > 1 else ''}"
        if self.spelled_in_bytes:
            sentence += "; it reads them as bytes"
        return sentence


class UnseenCounter:
    """Counts what is unseen in one source after another; `report` is up to date after each."""

    def __init__(self, codec: Codec, counts: Mapping[str, int] | None = None, *, side: Side = "source") -> None:
        self.codec, self.counts, self.side = codec, counts, side
        self.tokenizer: Tokenizer = codec.target if side == "target" else codec.source
        self._cached_seen: dict[str, bool] = {}
        kind = self.tokenizer.kind
        self._splits_words = isinstance(self.tokenizer, LookupTokenizer) and kind not in ("characters", "bytes")
        unit = {"words": "word", "symbols": "symbol"}.get(kind, "token") if self._splits_words else "character"
        self.report = UnseenReport(unit, spelled_in_bytes=self.tokenizer.vocabulary.byte_fallback)
        self.report.was_learned = self._has_every_unit()
        extra = self.tokenizer.vocabulary.extra_symbols
        has_copy_slots = any(symbol.startswith("<copy:") for symbol in extra)
        is_text = side == "target" or has_text_source(codec.modality, codec.second_source)
        self._reads_text = is_text and not has_copy_slots
        self._known_scripts = self._find_known_scripts()

    def add(self, source: str | Example, line: int | None = None) -> bool:
        """Count what is unseen in a source, and return whether there is any; its line is the Example's unless given."""
        if not self._reads_text:
            return False
        example = source if isinstance(source, Example) else Example(source)
        line = example.line if line is None else line
        unseen: Counter[str] = Counter()
        for text in self._texts(example):
            unseen += self._unseen_units(normalize(text, self.codec.normalization))
        if not unseen:
            return False
        report = self.report
        report.line_count += 1
        report.first_line = report.first_line or line
        for unit, count in unseen.items():
            if unit in report.counts or len(report.counts) < MAX_DISTINCT:
                report.counts[unit] += count
                report.lines.setdefault(unit, line)
        scripts = {script_of(character) for unit in unseen for character in unit} - {""}
        if self._known_scripts:
            report.scripts.update(scripts - self._known_scripts)
        return True

    def _texts(self, example: Example) -> Iterable[str]:
        """The text sources of an example; a model of two sources may get both in one line, with a tab between."""
        if self.side == "target":
            yield example.source
            return
        first, second = example.source, example.second_source
        if self.codec.second_source is not None and not second:
            first, _, second = example.source.partition("\t")
        if self.codec.modality is None:
            yield first
        if self.codec.second_source == "text":
            yield second

    def _unseen_units(self, text: str) -> Counter[str]:
        """The unseen words or characters of a text, with their counts."""
        if self._splits_words:
            words = [word for word in self.tokenizer.learning_units(text) if not self._is_seen(word)]
            return Counter(word.removeprefix(SPACE_MARKER) for word in words)
        unseen = {character for character in set(text) if not self._is_seen(character)}
        return Counter(character for character in text if character in unseen) if unseen else Counter()

    def _is_seen(self, unit: str) -> bool:
        seen = self._cached_seen.get(unit)
        if seen is None:
            seen = self._look_up(unit)
            if len(self._cached_seen) < 1 << 16:
                self._cached_seen[unit] = seen
        return seen

    def _look_up(self, unit: str) -> bool:
        """Whether a word or character has tokens of its own, which occur in the training data if that was counted."""
        tokenizer, vocabulary = self.tokenizer, self.tokenizer.vocabulary
        if self._splits_words:
            return vocabulary.token_id(unit) is not None and self._is_counted([unit])
        if isinstance(tokenizer, FrozenTokenizer):
            return UNK not in tokenizer.encode(unit)
        if not isinstance(tokenizer, LookupTokenizer):  # a subword's count says nothing about its characters
            return unit in f" {SPACE_MARKER}" or vocabulary.token_id(unit) is not None
        ids = tokenizer.encode(unit)
        if tokenizer.kind != "bytes" and any(id == UNK or vocabulary.id_to_byte(id) is not None for id in ids):
            return False
        return self._is_counted(tokenizer.pieces(ids))

    def _is_counted(self, pieces: Iterable[str]) -> bool:
        return self.counts is None or all(self.counts.get(piece, 0) > 0 for piece in pieces)

    def _has_every_unit(self) -> bool:
        """Whether the vocabulary has all that occurs in the data it was learned from."""
        tokenizer = self.tokenizer
        if isinstance(tokenizer, LookupTokenizer):
            return tokenizer.min_count == 1 and tokenizer.size is None
        return isinstance(tokenizer, SentencePieceTokenizer) and tokenizer.character_coverage == 1.0

    def _find_known_scripts(self) -> set[str]:
        """The scripts of the letters that the model knows; empty for bytes, whose letters are not in the vocabulary."""
        tokens = self.tokenizer.vocabulary.tokens
        return {script_of(character) for token in tokens for character in token} - {""}


def find_unseen(
    codec: Codec,
    sources: Iterable[str | Example],
    counts: Mapping[str, int] | None = None,
    *,
    side: Side = "source",
) -> UnseenReport:
    """Report what the model has never seen in some sources; lines count from 1 where examples do not name theirs.

    `counts` are those of the tokenizer's pieces in the training data. With side "target" the texts are read by the
    target's tokenizer: references, or the texts of a language model.
    """
    counter = UnseenCounter(codec, counts, side=side)
    for number, source in enumerate(sources, 1):
        line = source.line if isinstance(source, Example) and source.line else number
        counter.add(source, line)
    return counter.report


def format_unit(unit: str) -> str:
    """Show a character or word; one that cannot be seen by itself is shown by its code points."""
    if unit == " ":
        return "the space"
    has_letters = any(not unicodedata.category(c).startswith(("C", "Z", "M")) for c in unit)
    if has_letters:
        return unit
    return " ".join(f"U+{ord(c):04X}" for c in unit)
