"""Collect statistics of a split in one pass over its pairs: counts, histograms, 24 bytes a pair.

    files ─readers, skipping bad lines→ Examples ─survey_split→ SplitSurvey

Texts are not kept. For each pair it keeps two hashes of 8 bytes (of the pair; of its source and
languages), the log of the length ratio and the line number; lengths go into histograms. After
MAX_COMPARED_PAIRS pairs only counts and histograms grow. Texts are compared in the Unicode form of
training, without regard to spaces.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING

from dragoman.core.errors import DataError
from dragoman.core.types import UNK, Example
from dragoman.data.columns import ColumnsLike
from dragoman.data.lines import Issue, OnError, ReadReport, count_lines
from dragoman.data.quality.initials import WordBeginnings
from dragoman.data.readers import read_pairs, spec_files
from dragoman.text.normalization import Form, normalize

if TYPE_CHECKING:
    from dragoman.text.codec import Codec, SourceIds
    from dragoman.text.tokenizers import Tokenizer

MAX_COMPARED_PAIRS = 10_000_000  # of a split: 240 MB
MAX_UNKNOWN_TEXTS = 100_000  # distinct ones that are counted


@dataclass
class TextStatistics:
    """Statistics of the texts of one side: a histogram of lengths, characters, tokens, unknown tokens."""

    lengths: Counter[int] = field(default_factory=Counter)
    alphabet: set[str] = field(default_factory=set)
    tokens: int = 0
    unknown: int = 0
    unknown_texts: Counter[str] = field(default_factory=Counter)

    def add(self, text: str) -> None:
        """Count the length and the characters of a text."""
        self.lengths[len(text)] += 1
        self.alphabet.update(text)

    def add_tokens(self, text: str, ids: list[int], tokenizer: Tokenizer) -> None:
        """Count the tokens and unknown tokens of a text, and which of its parts are unknown."""
        self.tokens += len(ids)
        if unknown := ids.count(UNK):
            self.unknown += unknown
            if len(self.unknown_texts) < MAX_UNKNOWN_TEXTS:
                self.unknown_texts.update(_unknown_texts(text, tokenizer))


class SplitSurvey:
    """The statistics and issues of one split."""

    def __init__(self, name: str, form: Form, codec: Codec | None) -> None:
        self.name, self.form, self.codec = name, form, codec
        self.pairs_read = 0  # usable or not
        self.pairs = 0  # usable for training
        self.report = ReadReport()
        self.read_errors: list[DataError] = []  # of files that could not be read to their end
        self.empty_files: list[str] = []  # without one usable pair
        self.partly_read: list[str] = []  # files of which only the beginning was read
        self.source, self.target = TextStatistics(), TextStatistics()
        self.beginnings = WordBeginnings()  # of sources
        self.lengths: Counter[int] = Counter()  # of the longer side, in tokens or characters
        self.issues: dict[str, Issue] = {}
        # One entry for each pair without a blank side:
        self.pair_keys, self.source_keys = array("Q"), array("Q")
        self.ratios, self.lines = array("f"), array("I")
        self.files: list[tuple[int, str]] = []  # the first row of each file

    @property
    def has_file_sources(self) -> bool:
        """Whether sources are names of files, whose letters and lengths mean nothing."""
        return self.codec is not None and self.codec.modality is not None

    def add_issue(self, code: str, example: Example, detail: str = "") -> None:
        """Count the issue `code` in an example."""
        self.issues.setdefault(code, Issue(code, detail=detail)).add(example.file, example.line)

    def add(self, example: Example) -> None:
        """Add a pair to the statistics, and count its issues."""
        self.pairs_read += 1
        if example.source_truncated:
            return  # training leaves it out, and the readers have reported it
        blank = (not example.source.strip(), example.target is not None and not example.target.strip())
        if any(blank):
            side = {(True, True): "pair", (True, False): "source"}.get(blank, "target")
            self.add_issue(f"blank-{side}", example)
            return
        self.pairs += 1
        if len(example.references) > 1 and self.name == "train":
            self.add_issue("further-targets", example)
        source, second, target = (
            normalize(text, self.form) for text in (example.source, example.second_source, example.target or "")
        )
        self.source.add(source)
        self.beginnings.add(source)
        if example.target is not None:
            self.target.add(target)
            if source == target:
                self.add_issue("identical", example)
        if (source, target) != (example.source, example.target or ""):
            self.add_issue(f"not-{self.form}", example)
        self.lengths[self._length(example, source, second, target)] += 1
        if len(self.lines) < MAX_COMPARED_PAIRS:
            self._add_keys(example, source, second, target)

    def _length(self, example: Example, source: str, second: str, target: str) -> int:
        """The longest side's length, in tokens with a codec, else in characters; files have 0. Counts tokens, too."""
        codec = self.codec
        if codec is None:
            return max(len(source), len(target))
        sources = [(source, codec.encode_source, codec.modality is None)]
        if codec.second_source is not None:
            sources.append((second, codec.encode_second_source, codec.second_source == "text"))
        lengths = [self._count_tokens(text, encode, is_text, example) for text, encode, is_text in sources]
        ids = codec.encode_target(example)
        self.target.add_tokens(target, ids, codec.target)
        return max(*lengths, len(ids))

    def _count_tokens(self, text: str, encode: Callable[[Example], SourceIds], is_text: bool, example: Example) -> int:
        """The number of tokens of a source, added to its statistics; 0 for a file, and if it cannot be encoded."""
        try:
            ids = encode(example)
        except DataError as error:  # a language tag that the codec does not know, or a file
            self.add_issue("unknown-language" if is_text else "unreadable-file", example, "" if is_text else str(error))
            return 0
        if not isinstance(ids, list):
            return 0
        assert self.codec is not None
        self.source.add_tokens(text, ids, self.codec.source)
        return len(ids)

    def _add_keys(self, example: Example, source: str, second: str, target: str) -> None:
        if not self.files or self.files[-1][1] != example.file:
            self.files.append((len(self.lines), example.file))
        source_key, pair_key = _hash_sides(example, source, second, target)
        self.source_keys.append(source_key)
        self.pair_keys.append(pair_key)
        self.ratios.append(math.log((1 + len(target)) / (1 + len(source))))
        self.lines.append(example.line)

    def location(self, row: int) -> str:
        """`file:line` of the pair in a row of the survey."""
        _, file = self.files[bisect_right(self.files, row, key=lambda entry: entry[0]) - 1]
        return f"{file}:{self.lines[row]}"


def hash_pair(example: Example, form: Form) -> tuple[int, int]:
    """Hashes of a pair's source with its languages, and of the whole pair."""
    texts = (example.source, example.second_source, example.target or "")
    return _hash_sides(example, *(normalize(text, form) for text in texts))


def _hash_sides(example: Example, source: str, second: str, target: str) -> tuple[int, int]:
    key = f"{example.source_lang}\n{example.target_lang}\n{_collapse_spaces(source)}"
    if second:  # the same question about another picture is another source
        key += f"\n{_collapse_spaces(second)}"
    return _hash_text(key), _hash_text(f"{key}\n{_collapse_spaces(target)}")


def _collapse_spaces(text: str) -> str:
    return " ".join(text.split())


def _hash_text(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


def _unknown_texts(text: str, tokenizer: Tokenizer) -> Iterator[str]:
    """The unknown parts of a text: single characters if each is one unknown token, else whole words."""
    for word in text.split():
        unknown = tokenizer.encode(word).count(UNK)
        if unknown:
            characters = [c for c in word if UNK in tokenizer.encode(c)]
            yield from characters if len(characters) == unknown else [word]


def survey_split(
    name: str,
    specs: list[str],
    columns: ColumnsLike,
    form: Form,
    codec: Codec | None,
    max_pairs: int | None,
    on_example: Callable[[Example], None] | None = None,
    on_error: OnError = "skip",
    extra_targets: bool = False,
) -> SplitSurvey:
    """Read the first `max_pairs` pairs of all files of a split, and collect statistics, issues and errors.

    With `extra_targets`, columns after the named ones are further targets; in held-out splits they always are.

    `on_example` receives all examples, also those beyond; with on_error="stop" none after a line that cannot be read.
    """
    split = SplitSurvey(name, form, codec)
    for spec in specs:
        extra = extra_targets or name != "train"
        pairs = read_pairs(spec, columns=columns, extra_targets=extra, on_error="skip", report=split.report)
        before = split.pairs
        try:
            for number, example in enumerate(pairs):
                if number == max_pairs:
                    split.partly_read.append(spec)
                if max_pairs is None or number < max_pairs:
                    split.add(example)
                elif on_example is None:
                    _check_line_counts(spec, pairs)
                    break
                if on_error == "stop" and any(issue.remedy for issue in split.report):
                    on_example = None
                if on_example is not None:
                    on_example(example)
        except DataError as error:
            split.read_errors.append(error)
            continue
        if split.pairs == before:
            split.empty_files.append(spec)
    return split


def _check_line_counts(spec: str, pairs: Iterator[Example]) -> None:
    """If the line counts of parallel files differ, read the pairs to the end, which raises where they misalign."""
    files = spec_files(spec)
    if (
        all(path.is_file() for path in files) and len({count_lines(path) for path in files}) > 1
    ):  # a pipe can be read only once
        for _ in pairs:
            pass
