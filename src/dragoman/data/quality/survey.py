"""One pass over the pairs of a split, and what is kept of them: counts, histograms, 24 bytes a pair.

    files ─readers, skipping bad lines→ Examples ─look→ Split

Texts are not kept. Of each pair stay two hashes of 8 bytes (of the pair; of its source and languages), the log of its
length ratio and its place; lengths go into histograms. Past REMEMBERED pairs even these are no longer kept. Texts are
taken in the Unicode form that training reads them in; two are the same when they then differ in nothing but spaces.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import islice
from typing import Any, Protocol

from dragoman.core.errors import DataError
from dragoman.core.types import UNK, Example
from dragoman.data.lines import PLACES, Tally, count_lines
from dragoman.data.readers import files_of, read_pairs
from dragoman.text.normalization import Form, normalize

REMEMBERED = 10_000_000  # pairs of a split compared with each other: 240 MB
UNKNOWN_TEXTS = 100_000  # different ones counted


class CodecLike(Protocol):
    """As much of a codec as is needed to count tokens; `source` and `target` are its tokenizers.

    What a medium reads, of a source or of a second one, has no tokens.
    """

    source: Any
    target: Any

    @property
    def modality(self) -> Any: ...

    @property
    def second_source(self) -> Any: ...

    def encode_source(self, example: Example) -> Any: ...

    def encode_second_source(self, example: Example) -> Any: ...

    def encode_target(self, text: str) -> list[int]: ...


@dataclass
class Seen:
    """How often something was seen, where first, and what was said of the first."""

    count: int = 0
    places: list[str] = field(default_factory=list)
    detail: str = ""

    def add(self, example: Example, detail: str = "") -> None:
        self.count += 1
        self.detail = self.detail or detail
        if len(self.places) < PLACES:
            self.places.append(f"{example.file}:{example.line}")


@dataclass
class Texts:
    """The texts of one side: histogram of their lengths, and their characters."""

    lengths: Counter[int] = field(default_factory=Counter)
    alphabet: set[str] = field(default_factory=set)
    tokens: int = 0
    unknown: int = 0
    unknown_texts: Counter[str] = field(default_factory=Counter)

    def add(self, text: str) -> None:
        self.lengths[len(text)] += 1
        self.alphabet.update(text)

    def add_tokens(self, text: str, ids: list[int], tokenizer: Any) -> None:
        self.tokens += len(ids)
        if unknown := ids.count(UNK):
            self.unknown += unknown
            if len(self.unknown_texts) < UNKNOWN_TEXTS:
                self.unknown_texts.update(_unknown_texts(text, tokenizer))


class Split:
    """Everything that is kept of the pairs of one split."""

    def __init__(self, name: str, form: Form, codec: CodecLike | None) -> None:
        self.name, self.form, self.codec = name, form, codec
        self.read = 0  # pairs of any kind
        self.pairs = 0  # those that training would take
        self.tally = Tally()
        self.broken: list[DataError] = []  # files that could not be read to their end
        self.empty: list[str] = []  # files without one usable pair
        self.partly: list[str] = []  # files of which only the beginning was looked at
        self.source, self.target = Texts(), Texts()
        self.lengths: Counter[int] = Counter()  # of the longer side, in tokens or characters
        self.seen: dict[str, Seen] = {}
        # A row for each pair without a blank side:
        self.pair_keys, self.source_keys = array("Q"), array("Q")
        self.ratios, self.lines = array("f"), array("I")
        self.files: list[tuple[int, str]] = []  # the first row of each file

    @property
    def of_files(self) -> bool:
        """Whether sources are known to be the names of files, whose letters and lengths say nothing."""
        return self.codec is not None and self.codec.modality is not None

    def note(self, code: str, example: Example, detail: str = "") -> None:
        self.seen.setdefault(code, Seen()).add(example, detail)

    def add(self, example: Example) -> None:
        self.read += 1
        if example.source_truncated:
            return  # training leaves it out, and the readers have noted it
        source, target = example.source, example.target
        blank = (not source.strip(), target is not None and not target.strip())
        if any(blank):
            self.note({(True, True): "blank-pair", (True, False): "blank-source"}.get(blank, "blank-target"), example)
            return
        self.pairs += 1
        source = normalize(source, self.form)
        self.source.add(source)
        if target is not None:
            target = normalize(target, self.form)
            self.target.add(target)
            if source == target:
                self.note("identical", example)
        if (source, target) != (example.source, example.target):
            self.note(f"not-{self.form}", example)
        self.lengths[self._length(example)] += 1
        if len(self.lines) < REMEMBERED:
            self._remember(example)

    def _length(self, example: Example) -> int:
        """The longest side, in tokens where there is a codec; a file has none."""
        source, target, codec = example.source, example.target or "", self.codec
        if codec is None:
            return max(len(normalize(source, self.form)), len(normalize(target, self.form)))
        read = [(source, codec.encode_source, codec.modality is None)]
        if codec.second_source is not None:
            read.append((example.second_source, codec.encode_second_source, codec.second_source == "text"))
        lengths = [self._tokens(text, encode, is_text, example) for text, encode, is_text in read]
        ids = codec.encode_target(target)
        self.target.add_tokens(normalize(target, self.form), ids, codec.target)
        return max(*lengths, len(ids))

    def _tokens(self, text: str, encode: Callable[[Example], Any], is_text: bool, example: Example) -> int:
        """How many tokens a source has; what cannot be read is noted."""
        try:
            ids = encode(example)
        except DataError as error:  # a language tag that the codec does not know, or a file
            self.note("unknown-language" if is_text else "unreadable-file", example, "" if is_text else str(error))
            return 0
        if not is_text:
            return 0
        assert self.codec is not None
        self.source.add_tokens(normalize(text, self.form), ids, self.codec.source)
        return len(ids)

    def _remember(self, example: Example) -> None:
        if not self.files or self.files[-1][1] != example.file:
            self.files.append((len(self.lines), example.file))
        source, second, target = (
            normalize(text, self.form) for text in (example.source, example.second_source, example.target or "")
        )
        key = f"{example.source_lang}\n{example.target_lang}\n{_spaced(source)}"
        if second:  # a question is another one with another picture
            key += f"\n{_spaced(second)}"
        self.source_keys.append(_hash(key))
        self.pair_keys.append(_hash(f"{key}\n{_spaced(target)}"))
        self.ratios.append(math.log((1 + len(target)) / (1 + len(source))))
        self.lines.append(example.line)

    def place(self, row: int) -> str:
        _, file = self.files[bisect_right(self.files, row, key=lambda entry: entry[0]) - 1]
        return f"{file}:{self.lines[row]}"


def _spaced(text: str) -> str:
    """The text as far as it matters for being the same."""
    return " ".join(text.split())


def _hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


def _unknown_texts(text: str, tokenizer: Any) -> Iterator[str]:
    """What in a text is unknown: single characters where each stands for itself, else whole words."""
    for word in text.split():
        unknown = tokenizer.encode(word).count(UNK)
        if unknown:
            characters = [c for c in word if UNK in tokenizer.encode(c)]
            yield from characters if len(characters) == unknown else [word]


def look(
    name: str, specs: list[str], columns: Sequence[str], form: Form, codec: CodecLike | None, most: int | None
) -> Split:
    """Read every file of a split, whatever is wrong with any of them."""
    split = Split(name, form, codec)
    for spec in specs:
        pairs = read_pairs(spec, columns=columns, extra_targets=name != "train", on_error="skip", tally=split.tally)
        before = split.pairs
        try:
            for example in islice(pairs, most):
                split.add(example)
            if most is not None and next(pairs, None) is not None:
                split.partly.append(spec)
                _count_sides(spec, pairs)
        except DataError as error:
            split.broken.append(error)
            continue
        if split.pairs == before:
            split.empty.append(spec)
    return split


def _count_sides(spec: str, pairs: Iterator[Example]) -> None:
    """Compare the line counts of long parallel files cheaply; read on for the place only where they differ."""
    files = files_of(spec)
    if all(path.is_file() for path in files) and len({count_lines(path) for path in files}) > 1:  # a pipe is read once
        for _ in pairs:
            pass
