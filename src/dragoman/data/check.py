"""The data doctor: pairs → a report of everything that is wrong or odd with them, all at once.

    files ─readers, skipping bad lines→ Examples ─one pass→ counts, histograms, 24 bytes a pair ─→ findings

Texts are not kept. Of each pair stay two hashes of 8 bytes (of the pair; of its source and languages), the log of its
length ratio and its place; lengths go into histograms. Past REMEMBERED pairs even these are no longer kept, and the
report says so. Two texts count as the same when they differ in nothing but spaces and Unicode composition.
"""

from __future__ import annotations

import math
import unicodedata
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from itertools import islice
from typing import Any, Literal, Protocol

import numpy as np

from dragoman.core.errors import DataError
from dragoman.core.interfaces import UNK, Example
from dragoman.data.lines import PLACES, Noted, Tally, count_lines, unreadable
from dragoman.data.readers import files_of, read_pairs
from dragoman.data.readers.parallel import SidesDiffer

Severity = Literal["error", "warning", "notice"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "notice")

LIMITS = (64, 128, 256, 512, 1024)
REMEMBERED = 10_000_000  # pairs of a split compared with each other: 240 MB
FAST_PAIRS = 200_000  # pairs of each file that the fast check reads whole
MANY = 0.01  # the share from which an oddity is a warning
VERY_MANY = 0.1  # the same for what may be in the nature of the task: repeated pairs, sources equal to their targets
OUTLIER = 5.0  # robust standard deviations
UNKNOWN_TEXTS = 100_000  # different ones counted
SHOWN = 10  # of them named

# What the readers note, and how bad it is for training.
NOTED: dict[str, Severity] = {"bom": "notice", "crlf": "notice", "separators": "notice", "cut": "warning"}


class CodecLike(Protocol):
    """As much of a codec as is needed to count tokens; `source` and `target` are its tokenizers."""

    source: Any
    target: Any

    def encode_source(self, example: Example) -> Any: ...

    def encode_target(self, text: str) -> list[int]: ...


@dataclass(frozen=True)
class Finding:
    """One kind of trouble: how bad, what, how often, and the first places."""

    severity: Severity
    code: str
    message: str
    count: int = 1
    places: tuple[str, ...] = ()


@dataclass(frozen=True)
class Side:
    """One side of the pairs, in characters."""

    characters: int
    median: int
    percentile_95: int
    longest: int
    distinct: int


@dataclass(frozen=True)
class Statistics:
    """One split: its pairs, both sides, and how many pairs each limit on the longer side would drop."""

    pairs: int
    source: Side
    target: Side
    unit: Literal["tokens", "characters"]
    dropped: dict[int, int]


@dataclass(frozen=True)
class Report:
    """What the doctor found."""

    findings: list[Finding] = field(default_factory=list)
    statistics: dict[str, Statistics] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Nothing that must be mended before training."""
        return not any(finding.severity == "error" for finding in self.findings)

    def as_json(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "findings": [asdict(finding) | {"places": list(finding.places)} for finding in self.findings],
            "statistics": {
                name: asdict(one) | {"dropped": {str(limit): n for limit, n in one.dropped.items()}}
                for name, one in self.statistics.items()
            },
        }

    def render(self) -> str:
        """The report as plain text for a terminal."""
        return "\n".join([*_render_statistics(self.statistics), *_render_findings(self.findings)])


def check(
    train: str | Sequence[str],
    valid: str | Sequence[str] = (),
    test: str | Sequence[str] = (),
    *,
    columns: Sequence[str] = ("source", "target"),
    codec: CodecLike | None = None,
    limits: Sequence[int] = LIMITS,
    fast: bool = False,
) -> Report:
    """Examine the pairs of each split, and what they share. Only a file that cannot be opened raises.

    With a codec, lengths for the limits are counted in tokens and unknown tokens are looked for. The fast check reads
    the first FAST_PAIRS pairs of each file and does without the codec; of longer parallel files it counts all lines.
    """
    given = {"train": _listed(train), "valid": _listed(valid), "test": _listed(test)}
    _require(spec for specs in given.values() for spec in specs)
    splits = [
        _look(name, specs, columns, None if fast else codec, FAST_PAIRS if fast else None)
        for name, specs in given.items()
        if specs
    ]
    findings = [finding for split in splits for finding in _findings(split, limits)]
    for other in splits[1:]:
        if splits[0].name == "train":
            findings += _between(splits[0], other)
    findings.sort(key=lambda finding: SEVERITIES.index(finding.severity))
    return Report(findings, {split.name: _statistics(split, limits) for split in splits})


def _listed(specs: str | Sequence[str]) -> list[str]:
    return [specs] if isinstance(specs, str) else list(specs)


def _require(specs: Iterable[str]) -> None:
    for spec in specs:
        for path in files_of(spec):
            if reason := unreadable(path):
                raise DataError(reason, path)


# -- one pass over the pairs ----------------------------------------------------------------------------------------


@dataclass
class _Seen:
    """How often something was seen, and where first."""

    count: int = 0
    places: list[str] = field(default_factory=list)

    def add(self, example: Example) -> None:
        self.count += 1
        if len(self.places) < PLACES:
            self.places.append(f"{example.file}:{example.line}")


@dataclass
class _Texts:
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


class _Split:
    """Everything that is kept of the pairs of one split."""

    def __init__(self, name: str, codec: CodecLike | None) -> None:
        self.name, self.codec = name, codec
        self.read = 0  # pairs of any kind
        self.pairs = 0  # those that training would take
        self.tally = Tally()
        self.broken: list[DataError] = []  # files that could not be read to their end
        self.empty: list[str] = []  # files without one usable pair
        self.partly: list[str] = []  # files of which only the beginning was looked at
        self.source, self.target = _Texts(), _Texts()
        self.lengths: Counter[int] = Counter()  # of the longer side, in tokens or characters
        self.seen: dict[str, _Seen] = {}
        # A row for each pair without a blank side:
        self.pair_keys, self.source_keys = array("Q"), array("Q")
        self.ratios, self.lines = array("f"), array("I")
        self.files: list[tuple[int, str]] = []  # the first row of each file

    def note(self, code: str, example: Example) -> None:
        self.seen.setdefault(code, _Seen()).add(example)

    def add(self, example: Example) -> None:
        self.read += 1
        if example.cut:
            return  # training leaves it out, and the readers have noted it
        source, target = example.source, example.target
        blank = (not source.strip(), target is not None and not target.strip())
        if any(blank):
            self.note({(True, True): "blank-pair", (True, False): "blank-source"}.get(blank, "blank-target"), example)
            return
        self.pairs += 1
        self.source.add(source)
        if target is not None:
            self.target.add(target)
            if source == target:
                self.note("identical", example)
        if not (_composed(source) and _composed(target or "")):
            self.note("not-nfc", example)
        self.lengths[self._length(example)] += 1
        if len(self.lines) < REMEMBERED:
            self._remember(example)

    def _length(self, example: Example) -> int:
        """The longer side, in tokens where there is a codec."""
        source, target = example.source, example.target or ""
        if self.codec is None:
            return max(len(source), len(target))
        try:
            source_ids, target_ids = self.codec.encode_source(example), self.codec.encode_target(target)
        except DataError:  # a language tag that the codec does not know
            self.note("unknown-language", example)
            return 0
        self.source.add_tokens(source, source_ids, self.codec.source)
        self.target.add_tokens(target, target_ids, self.codec.target)
        return max(len(source_ids), len(target_ids))

    def _remember(self, example: Example) -> None:
        if not self.files or self.files[-1][1] != example.file:
            self.files.append((len(self.lines), example.file))
        target = example.target or ""
        key = f"{example.source_lang}\n{example.target_lang}\n{_plain(example.source)}"
        if example.second:  # a question is another one with another picture
            key += f"\n{_plain(example.second)}"
        self.source_keys.append(_hash(key))
        self.pair_keys.append(_hash(f"{key}\n{_plain(target)}"))
        self.ratios.append(math.log((1 + len(target)) / (1 + len(example.source))))
        self.lines.append(example.line)

    def place(self, row: int) -> str:
        _, file = self.files[bisect_right(self.files, row, key=lambda entry: entry[0]) - 1]
        return f"{file}:{self.lines[row]}"


def _composed(text: str) -> bool:
    return text.isascii() or unicodedata.is_normalized("NFC", text)


def _plain(text: str) -> str:
    """The text as far as it matters for being the same."""
    text = " ".join(text.split())
    return text if _composed(text) else unicodedata.normalize("NFC", text)


def _hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


def _unknown_texts(text: str, tokenizer: Any) -> Iterator[str]:
    """What in a text is unknown: single characters where each stands for itself, else whole words."""
    for word in text.split():
        unknown = tokenizer.encode(word).count(UNK)
        if unknown:
            characters = [c for c in word if UNK in tokenizer.encode(c)]
            yield from characters if len(characters) == unknown else [word]


def _look(name: str, specs: list[str], columns: Sequence[str], codec: CodecLike | None, most: int | None) -> _Split:
    """Read every file of a split, whatever is wrong with any of them."""
    split = _Split(name, codec)
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


# -- findings: of one split -----------------------------------------------------------------------------------------


def _findings(split: _Split, limits: Sequence[int]) -> Iterator[Finding]:
    name = split.name
    for error in split.broken:
        place = (f"{error.file}:{error.line}",) if error.line else ()
        yield Finding("error", "sides" if isinstance(error, SidesDiffer) else "unreadable", str(error), 1, place)
    for spec in split.empty:
        yield Finding("error", "empty", f"{spec}: there is not one usable pair in it")
    for noted in split.tally:
        yield _noted(noted)
    for code, seen in split.seen.items():
        severity, sentence = _SEEN[code]
        if code == "identical" and seen.count > VERY_MANY * split.pairs:
            severity = "warning"
        message = f"{name}: {_count(seen.count, 'pair', split.read)} {sentence}"
        yield Finding(severity, code, message, seen.count, tuple(seen.places))
    yield from _duplicates(split)
    yield from _ratios(split)
    yield from _unknowns(split)
    yield from _limits(split, limits)
    if split.partly:
        message = f"{name}: only the first {FAST_PAIRS:,} pairs were looked at of {', '.join(split.partly)}"
        yield Finding("notice", "partly", message, len(split.partly))
    if split.pairs > REMEMBERED:
        message = f"{name}: only the first {REMEMBERED:,} pairs were compared with each other"
        yield Finding("notice", "partly", message)


_SEEN: dict[str, tuple[Severity, str]] = {
    "blank-source": ("warning", "with a blank source; training leaves them out"),
    "blank-target": ("warning", "with a blank target; training leaves them out"),
    "blank-pair": ("notice", "with both sides blank; training leaves them out"),
    "identical": ("notice", "whose source and target are the same text"),
    "not-nfc": ("notice", "not in Unicode form NFC; `normalization: nfc` (the default) composes them"),
    "unknown-language": ("error", "with a language tag that the tokenizer does not know"),
}


def _noted(noted: Noted) -> Finding:
    severity = NOTED.get(noted.kind, "error")
    detail = f"; the first: {noted.detail}" if noted.detail else ""
    return Finding(severity, noted.kind, f"{noted.file}: {noted.found}{detail}", noted.count, tuple(noted.places))


def _count(count: int, what: str, total: int = 0) -> str:
    share = f" ({count / total:.1%})" if total else ""
    return f"{count:,} {what}{'' if count == 1 else 's'}{share}"


def _repeats(keys: np.ndarray) -> np.ndarray:
    """The rows whose key an earlier row has, in order."""
    order = np.argsort(keys, kind="stable")
    again = keys[order][1:] == keys[order][:-1]
    return np.sort(order[1:][again])


def _places(split: _Split, rows: np.ndarray) -> tuple[str, ...]:
    return tuple(split.place(int(row)) for row in rows[:PLACES])


def _duplicates(split: _Split) -> Iterator[Finding]:
    pairs, sources = np.array(split.pair_keys), np.array(split.source_keys)
    repeated = _repeats(pairs)
    if len(repeated):
        severity: Severity = "warning" if len(repeated) > VERY_MANY * len(pairs) else "notice"
        message = f"{split.name}: {_count(len(repeated), 'pair', len(pairs))} repeating an earlier pair"
        yield Finding(severity, "duplicates", message, len(repeated), _places(split, repeated))
    once = np.setdiff1d(np.arange(len(pairs)), repeated, assume_unique=True)
    other = once[_repeats(sources[once])]
    if len(other):
        message = f"{split.name}: {_count(len(other), 'pair', len(pairs))} giving an earlier source another target"
        yield Finding("notice", "many-targets", message, len(other), _places(split, other))


def _ratios(split: _Split) -> Iterator[Finding]:
    """Pairs whose length ratio is far from the usual one: often wrong pairs, or half of a sentence."""
    if not split.ratios or not split.target.lengths:
        return
    ratios = np.array(split.ratios, dtype=np.float64)
    middle = np.median(ratios)
    spread = 1.4826 * np.median(np.abs(ratios - middle))  # the standard deviation, were they normal
    far = np.flatnonzero(np.abs(ratios - middle) > max(OUTLIER * spread, math.log(3)))
    if len(far):
        severity: Severity = "warning" if len(far) > MANY * len(ratios) else "notice"
        usual = f"usually {math.exp(middle):.2f} target characters for one of the source"
        message = f"{split.name}: {_count(len(far), 'pair', len(ratios))} with an odd ratio of lengths ({usual})"
        yield Finding(severity, "length-ratio", message, len(far), _places(split, far))


def _unknowns(split: _Split) -> Iterator[Finding]:
    for side, texts in (("source", split.source), ("target", split.target)):
        if texts.unknown:
            share = texts.unknown / texts.tokens
            named = ", ".join(f"{text!r} {n:,}×" for text, n in texts.unknown_texts.most_common(SHOWN))
            message = f"{split.name}: {share:.2%} of the {side} tokens are unknown; the commonest: {named or '?'}"
            yield Finding("warning" if share > MANY else "notice", f"unknown-{side}", message, texts.unknown)


def _limits(split: _Split, limits: Sequence[int]) -> Iterator[Finding]:
    dropped = {limit: n for limit, n in _dropped(split, limits).items() if n}
    if dropped:
        parts = ", ".join(f"{limit:,}: {n:,} ({n / split.pairs:.1%})" for limit, n in dropped.items())
        message = f"{split.name}: pairs that a limit on {_unit(split)} would drop: {parts}"
        yield Finding("notice", "length-limits", message, max(dropped.values()))


def _dropped(split: _Split, limits: Sequence[int]) -> dict[int, int]:
    return {limit: sum(n for length, n in split.lengths.items() if length > limit) for limit in sorted(limits)}


def _unit(split: _Split) -> Literal["tokens", "characters"]:
    return "characters" if split.codec is None else "tokens"


# -- findings: between two splits -----------------------------------------------------------------------------------


def _between(train: _Split, other: _Split) -> Iterator[Finding]:
    """What a held-out split shares with the training pairs, and what it has that they lack."""
    pairs = np.isin(np.array(other.pair_keys), np.array(train.pair_keys))
    sources = np.isin(np.array(other.source_keys), np.array(train.source_keys)) & ~pairs
    for code, mask, what in (
        ("overlap-pairs", pairs, "also in train"),
        ("overlap-sources", sources, "with a source of train"),
    ):
        rows = np.flatnonzero(mask)
        if len(rows):
            message = f"{other.name}: {_count(len(rows), 'pair', len(mask))} {what}; scores on them flatter the model"
            yield Finding("warning", code, message, len(rows), _places(other, rows))
    for side, mine, theirs in (("source", other.source, train.source), ("target", other.target, train.target)):
        unseen = sorted(mine.alphabet - theirs.alphabet)
        if unseen and theirs.alphabet:
            named = ", ".join(map(repr, unseen[:SHOWN])) + (", …" if len(unseen) > SHOWN else "")
            message = f"{other.name}: {_count(len(unseen), f'{side} character')} never seen in train: {named}"
            yield Finding("notice", f"unseen-{side}", message, len(unseen))


# -- statistics and text --------------------------------------------------------------------------------------------


def _quantile(histogram: Counter[int], share: float) -> int:
    """The smallest length that at least this share of the texts does not exceed."""
    below, total = 0, sum(histogram.values())
    for length in sorted(histogram):
        below += histogram[length]
        if below >= share * total:
            return length
    return 0


def _side(texts: _Texts) -> Side:
    return Side(
        characters=sum(length * n for length, n in texts.lengths.items()),
        median=_quantile(texts.lengths, 0.5),
        percentile_95=_quantile(texts.lengths, 0.95),
        longest=max(texts.lengths, default=0),
        distinct=len(texts.alphabet),
    )


def _statistics(split: _Split, limits: Sequence[int]) -> Statistics:
    return Statistics(split.pairs, _side(split.source), _side(split.target), _unit(split), _dropped(split, limits))


def _render_statistics(statistics: dict[str, Statistics]) -> Iterator[str]:
    for name, one in statistics.items():
        yield f"{name}: {_count(one.pairs, 'pair')}"
        for label, side in (("source", one.source), ("target", one.target)):
            lengths = f"median {side.median:,}, 95 % {side.percentile_95:,}, longest {side.longest:,}"
            yield f"  {label}  {side.characters:,} characters, {side.distinct:,} distinct; length: {lengths}"


def _render_findings(findings: Sequence[Finding]) -> Iterator[str]:
    yield ""
    for finding in findings:
        yield f"{finding.severity:<8} {finding.message}  [{finding.code}]"
        if finding.places:
            more = ", …" if finding.count > len(finding.places) else ""
            yield f"         at {', '.join(finding.places)}{more}"
    counts = [_count(sum(f.severity == severity for f in findings), severity) for severity in SEVERITIES]
    yield ", ".join(counts)
