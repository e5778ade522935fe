"""The data doctor: pairs → a report of everything that is wrong or odd with them, all at once.

    files ─survey.look→ a Split each ─→ findings of one split, findings between train and another ─→ diagnosis.Report

An error must be mended before training; a warning costs quality; a notice may be meant.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import numpy as np

from dragoman.core.errors import DataError
from dragoman.data.lines import PLACES, Noted, unreadable
from dragoman.data.quality.report import SEVERITIES, Finding, Report, Severity, Side, Statistics, counted
from dragoman.data.quality.survey import CodecLike, Split, Texts, look
from dragoman.data.readers import files_of
from dragoman.data.readers.parallel import SidesDiffer
from dragoman.text.normalization import Form

LIMITS = (64, 128, 256, 512, 1024)
FAST_PAIRS = 200_000  # pairs of each file that the fast check reads whole
MANY = 0.01  # the share from which an oddity is a warning
VERY_MANY = 0.1  # the same for what may be in the nature of the task: repeated pairs, sources equal to their targets
OUTLIER = 5.0  # robust standard deviations
SHOWN = 10  # unknown texts and unseen characters that are named

# What the readers note, and how bad it is for training.
NOTED: dict[str, Severity] = {"bom": "notice", "crlf": "notice", "separators": "notice", "cut": "warning"}


def check(
    train: str | Sequence[str],
    valid: str | Sequence[str] = (),
    test: str | Sequence[str] = (),
    *,
    columns: Sequence[str] = ("source", "target"),
    normalization: Form = "nfc",
    codec: CodecLike | None = None,
    limits: Sequence[int] = LIMITS,
    fast: bool = False,
) -> Report:
    """Examine the pairs of each split, and what they share. Only a file that cannot be opened raises.

    Texts are examined in the Unicode form that training reads them in. With a codec, lengths for the limits are counted
    in tokens, unknown tokens are looked for, and files of sources read. The fast check reads the first FAST_PAIRS pairs
    of each file and does without the codec; of longer parallel files it counts all lines.
    """
    given = {"train": _listed(train), "valid": _listed(valid), "test": _listed(test)}
    _require(spec for specs in given.values() for spec in specs)
    splits = [
        look(name, specs, columns, normalization, None if fast else codec, FAST_PAIRS if fast else None)
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


# -- findings: of one split -----------------------------------------------------------------------------------------


def _findings(split: Split, limits: Sequence[int]) -> Iterator[Finding]:
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
        first = f"; the first: {seen.detail}" if seen.detail else ""
        message = f"{name}: {counted(seen.count, 'pair', split.read)} {sentence}{first}"
        yield Finding(severity, code, message, seen.count, tuple(seen.places))
    yield from _duplicates(split)
    yield from _ratios(split)
    yield from _unknowns(split)
    yield from _limits(split, limits)
    if split.partly:
        message = f"{name}: only the first {FAST_PAIRS:,} pairs were looked at of {', '.join(split.partly)}"
        yield Finding("notice", "partly", message, len(split.partly))
    if split.pairs > (compared := len(split.lines)):
        message = f"{name}: only the first {compared:,} pairs were compared with each other"
        yield Finding("notice", "partly", message)


_SEEN: dict[str, tuple[Severity, str]] = {
    "blank-source": ("warning", "with a blank source; training leaves them out"),
    "blank-target": ("warning", "with a blank target; training leaves them out"),
    "blank-pair": ("notice", "with both sides blank; training leaves them out"),
    "identical": ("notice", "whose source and target are the same text"),
    "not-nfc": ("notice", "not in Unicode form NFC; `normalization: nfc` composes them"),
    "not-nfd": ("notice", "not in Unicode form NFD; `normalization: nfd` decomposes them"),
    "not-nfkc": ("notice", "not in Unicode form NFKC; `normalization: nfkc` composes and folds them"),
    "unknown-language": ("error", "with a language tag that the tokenizer does not know"),
    "unreadable-file": ("warning", "with a file that cannot be read; training leaves them out"),
}


def _noted(noted: Noted) -> Finding:
    severity = NOTED.get(noted.kind, "error")
    detail = f"; the first: {noted.detail}" if noted.detail else ""
    detail += f". {noted.remedy}" if noted.remedy else ""
    return Finding(severity, noted.kind, f"{noted.file}: {noted.found}{detail}", noted.count, tuple(noted.places))


def _repeats(keys: np.ndarray) -> np.ndarray:
    """The rows whose key an earlier row has, in order."""
    order = np.argsort(keys, kind="stable")
    again = keys[order][1:] == keys[order][:-1]
    return np.sort(order[1:][again])


def _places(split: Split, rows: np.ndarray) -> tuple[str, ...]:
    return tuple(split.place(int(row)) for row in rows[:PLACES])


def _duplicates(split: Split) -> Iterator[Finding]:
    pairs, sources = np.array(split.pair_keys), np.array(split.source_keys)
    repeated = _repeats(pairs)
    if len(repeated):
        severity: Severity = "warning" if len(repeated) > VERY_MANY * len(pairs) else "notice"
        message = f"{split.name}: {counted(len(repeated), 'pair', len(pairs))} repeating an earlier pair"
        yield Finding(severity, "duplicates", message, len(repeated), _places(split, repeated))
    once = np.setdiff1d(np.arange(len(pairs)), repeated, assume_unique=True)
    other = once[_repeats(sources[once])]
    if len(other):
        message = f"{split.name}: {counted(len(other), 'pair', len(pairs))} giving an earlier source another target"
        yield Finding("notice", "many-targets", message, len(other), _places(split, other))


def _ratios(split: Split) -> Iterator[Finding]:
    """Pairs whose length ratio is far from the usual one: often wrong pairs, or half of a sentence."""
    if not split.ratios or not split.target.lengths or split.of_files:
        return
    ratios = np.array(split.ratios, dtype=np.float64)
    middle = np.median(ratios)
    spread = 1.4826 * np.median(np.abs(ratios - middle))  # the standard deviation, were they normal
    far = np.flatnonzero(np.abs(ratios - middle) > max(OUTLIER * spread, math.log(3)))
    if len(far):
        severity: Severity = "warning" if len(far) > MANY * len(ratios) else "notice"
        usual = f"usually {math.exp(middle):.2f} target characters for one of the source"
        message = f"{split.name}: {counted(len(far), 'pair', len(ratios))} with an odd ratio of lengths ({usual})"
        yield Finding(severity, "length-ratio", message, len(far), _places(split, far))


def _unknowns(split: Split) -> Iterator[Finding]:
    for side, texts in (("source", split.source), ("target", split.target)):
        if texts.unknown:
            share = texts.unknown / texts.tokens
            named = ", ".join(f"{text!r} {n:,}×" for text, n in texts.unknown_texts.most_common(SHOWN))
            message = f"{split.name}: {share:.2%} of the {side} tokens are unknown; the commonest: {named or '?'}"
            yield Finding("warning" if share > MANY else "notice", f"unknown-{side}", message, texts.unknown)


def _limits(split: Split, limits: Sequence[int]) -> Iterator[Finding]:
    dropped = {limit: n for limit, n in _dropped(split, limits).items() if n}
    if dropped:
        parts = ", ".join(f"{limit:,}: {n:,} ({n / split.pairs:.1%})" for limit, n in dropped.items())
        message = f"{split.name}: pairs that a limit on {_unit(split)} would drop: {parts}"
        yield Finding("notice", "length-limits", message, max(dropped.values()))


def _dropped(split: Split, limits: Sequence[int]) -> dict[int, int]:
    return {limit: sum(n for length, n in split.lengths.items() if length > limit) for limit in sorted(limits)}


def _unit(split: Split) -> Literal["tokens", "characters"]:
    return "characters" if split.codec is None else "tokens"


# -- findings: between two splits -----------------------------------------------------------------------------------


def _between(train: Split, other: Split) -> Iterator[Finding]:
    """What a held-out split shares with the training pairs, and what it has that they lack."""
    pairs = np.isin(np.array(other.pair_keys), np.array(train.pair_keys))
    sources = np.isin(np.array(other.source_keys), np.array(train.source_keys)) & ~pairs
    for code, mask, what in (
        ("overlap-pairs", pairs, "also in train"),
        ("overlap-sources", sources, "with a source of train"),
    ):
        rows = np.flatnonzero(mask)
        if len(rows):
            message = f"{other.name}: {counted(len(rows), 'pair', len(mask))} {what}; scores on them flatter the model"
            yield Finding("warning", code, message, len(rows), _places(other, rows))
    for side, mine, theirs in (("source", other.source, train.source), ("target", other.target, train.target)):
        if side == "source" and train.of_files:
            continue
        unseen = sorted(mine.alphabet - theirs.alphabet)
        if unseen and theirs.alphabet:
            named = ", ".join(map(repr, unseen[:SHOWN])) + (", …" if len(unseen) > SHOWN else "")
            message = f"{other.name}: {counted(len(unseen), f'{side} character')} never seen in train: {named}"
            yield Finding("notice", f"unseen-{side}", message, len(unseen))


# -- statistics -----------------------------------------------------------------------------------------------------


def _quantile(histogram: Counter[int], share: float) -> int:
    """The smallest length that at least this share of the texts does not exceed."""
    below, total = 0, sum(histogram.values())
    for length in sorted(histogram):
        below += histogram[length]
        if below >= share * total:
            return length
    return 0


def _side(texts: Texts) -> Side:
    return Side(
        characters=sum(length * n for length, n in texts.lengths.items()),
        median=_quantile(texts.lengths, 0.5),
        percentile_95=_quantile(texts.lengths, 0.95),
        longest=max(texts.lengths, default=0),
        distinct=len(texts.alphabet),
    )


def _statistics(split: Split, limits: Sequence[int]) -> Statistics:
    return Statistics(split.pairs, _side(split.source), _side(split.target), _unit(split), _dropped(split, limits))
