"""Check files of pairs, and report everything that is wrong or unusual, all at once.

    files ─survey_split→ a SplitSurvey for each split ─→ findings of each split, and between train and the others
          ─→ QualityReport

An error must be fixed before training; a warning costs quality; a notice may be intended.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import numpy as np

from dragoman.core.errors import DataError
from dragoman.core.types import Example
from dragoman.data.columns import ColumnsLike
from dragoman.data.lines import MAX_LOCATIONS, OnError, format_count, read_blocker
from dragoman.data.quality.initials import describe_missing
from dragoman.data.quality.report import SEVERITIES, Finding, QualityReport, Severity, SideStatistics, SplitStatistics
from dragoman.data.quality.survey import SplitSurvey, TextStatistics, survey_split
from dragoman.data.readers import spec_files
from dragoman.data.readers.parallel import LineCountMismatch
from dragoman.text.codec import Codec
from dragoman.text.normalization import Form

LENGTH_LIMITS = (64, 128, 256, 512, 1024)
FAST_CHECK_PAIRS = 200_000  # of each file that the fast check reads
WARNING_SHARE = 0.01  # of the pairs: a more frequent issue is a warning
COMMON_ISSUE_SHARE = 0.1  # the same for issues that a task may imply: repeated pairs, sources equal to their targets
OUTLIER_DEVIATIONS = 5.0  # robust standard deviations
MAX_EXAMPLES = 10  # of unknown texts and unseen characters in a message

# The severity of issues that readers report; "error" for all others.
READ_SEVERITIES: dict[str, Severity] = {
    "bom": "notice",
    "header": "notice",
    "formula": "warning",
    "crlf": "notice",
    "separators": "notice",
    "truncated": "warning",
}


def check_pairs(
    train: str | Sequence[str],
    valid: str | Sequence[str] = (),
    test: str | Sequence[str] = (),
    *,
    columns: ColumnsLike = ("source", "target"),
    normalization: Form = "nfc",
    codec: Codec | None = None,
    limits: Sequence[int] = LENGTH_LIMITS,
    fast: bool = False,
    on_train_example: Callable[[Example], None] | None = None,
    on_error: OnError = "skip",
    extra_targets: bool = False,
) -> QualityReport:
    """Check the pairs of each split, and their overlap. Raises DataError only for a file that cannot be opened.

    With `extra_targets`, columns of training files after the named ones are further targets. With a codec, tokens are
    counted and files of sources are read. The fast check reads the first FAST_CHECK_PAIRS pairs of each file, without
    the codec. `on_train_example` receives every training example, so that one pass serves two purposes; with
    on_error="stop" none after a bad line.
    """
    specs_by_split = {"train": _as_list(train), "valid": _as_list(valid), "test": _as_list(test)}
    for path in (path for specs in specs_by_split.values() for spec in specs for path in spec_files(spec)):
        if reason := read_blocker(path):
            raise DataError(reason, path)
    codec, max_pairs = (None, FAST_CHECK_PAIRS) if fast else (codec, None)
    splits = []
    for name, specs in specs_by_split.items():
        if specs:
            on_example = on_train_example if name == "train" else None
            splits.append(
                survey_split(name, specs, columns, normalization, codec, max_pairs, on_example, on_error, extra_targets)
            )
    findings = [finding for split in splits for finding in _split_findings(split, limits)]
    for other in splits[1:]:
        if splits[0].name == "train":
            findings += _overlap_findings(splits[0], other)
    findings.sort(key=lambda finding: SEVERITIES.index(finding.severity))
    return QualityReport(findings, {split.name: _split_statistics(split, limits) for split in splits})


def _as_list(specs: str | Sequence[str]) -> list[str]:
    return [specs] if isinstance(specs, str) else list(specs)


def _split_findings(split: SplitSurvey, limits: Sequence[int]) -> Iterator[Finding]:
    name = split.name
    for error in split.read_errors:
        code = "sides" if isinstance(error, LineCountMismatch) else "unreadable"
        yield Finding("error", code, str(error), 1, (f"{error.file}:{error.line}",) if error.line else ())
    for spec in split.empty_files:
        yield Finding("error", "empty", f"{spec}: there is not one usable pair in it")
    for issue in split.report:
        detail = f"; the first: {issue.detail}" if issue.detail else ""
        detail += f". {issue.remedy}" if issue.remedy else ""
        message = f"{issue.file}: {issue.description}{detail}"
        severity = READ_SEVERITIES.get(issue.kind, "error")
        yield Finding(severity, issue.kind, message, issue.count, tuple(issue.locations))
    for code, issue in split.issues.items():
        severity, sentence = _ISSUE_SENTENCES[code]
        if code == "identical" and issue.count > COMMON_ISSUE_SHARE * split.pairs:
            severity = "warning"
        first = f"; the first: {issue.detail}" if issue.detail else ""
        message = f"{name}: {format_count(issue.count, 'pair', split.pairs_read)} {sentence}{first}"
        yield Finding(severity, code, message, issue.count, tuple(issue.locations))
    if split.name == "train" and not split.has_file_sources and (missing := split.beginnings.missing):
        yield Finding("warning", "sorted-part", f"{name}: {describe_missing(missing)}")
    yield from _duplicate_findings(split)
    yield from _length_ratio_findings(split)
    yield from _unknown_token_findings(split)
    yield from _length_limit_findings(split, limits)
    if split.partly_read:
        message = f"{name}: only the first {FAST_CHECK_PAIRS:,} pairs were checked of {', '.join(split.partly_read)}"
        yield Finding("notice", "partly", message, len(split.partly_read))
    if split.pairs > (compared := len(split.lines)):
        message = f"{name}: only the first {compared:,} pairs were compared with each other"
        yield Finding("notice", "partly", message)


_ISSUE_SENTENCES: dict[str, tuple[Severity, str]] = {
    "blank-source": ("warning", "with a blank source; training leaves them out"),
    "blank-target": ("warning", "with a blank target; training leaves them out"),
    "blank-pair": ("notice", "with both sides blank; training leaves them out"),
    "further-targets": ("notice", "with further columns, each read as one more right target"),
    "identical": ("notice", "whose source and target are the same text"),
    "not-nfc": ("notice", "not in Unicode form NFC; `normalization: nfc` composes them"),
    "not-nfd": ("notice", "not in Unicode form NFD; `normalization: nfd` decomposes them"),
    "not-nfkc": ("notice", "not in Unicode form NFKC; `normalization: nfkc` composes and folds them"),
    "unknown-language": ("error", "with a language tag that the tokenizer does not know"),
    "unreadable-file": ("warning", "with a file that cannot be read; training leaves them out"),
}


def _repeated_rows(keys: np.ndarray) -> np.ndarray:
    """The rows whose key occurred in an earlier row, in order."""
    order = np.argsort(keys, kind="stable")
    again = keys[order][1:] == keys[order][:-1]
    return np.sort(order[1:][again])


def _row_findings(
    split: SplitSurvey, code: str, rows: np.ndarray, total: int, what: str, *, warning_share: float
) -> Iterator[Finding]:
    """A finding for these rows of a split, if there are any: a warning if they exceed a share of the total."""
    if len(rows):
        severity: Severity = "warning" if len(rows) > warning_share * total else "notice"
        message = f"{split.name}: {format_count(len(rows), 'pair', total)} {what}"
        locations = tuple(split.location(int(row)) for row in rows[:MAX_LOCATIONS])
        yield Finding(severity, code, message, len(rows), locations)


def _duplicate_findings(split: SplitSurvey) -> Iterator[Finding]:
    pairs, sources = np.array(split.pair_keys), np.array(split.source_keys)
    repeated = _repeated_rows(pairs)
    what = "repeating an earlier pair"
    yield from _row_findings(split, "duplicates", repeated, len(pairs), what, warning_share=COMMON_ISSUE_SHARE)
    once = np.setdiff1d(np.arange(len(pairs)), repeated, assume_unique=True)
    other = once[_repeated_rows(sources[once])]
    what = "giving an earlier source another target"
    yield from _row_findings(split, "many-targets", other, len(pairs), what, warning_share=1.0)


def find_outliers(log_ratios: np.ndarray) -> tuple[float, np.ndarray]:
    """The median of the logs of some pairs' length ratios, and the rows that are far from it."""
    middle = np.median(log_ratios)
    spread = 1.4826 * np.median(np.abs(log_ratios - middle))  # estimates the standard deviation
    return float(middle), np.flatnonzero(np.abs(log_ratios - middle) > max(OUTLIER_DEVIATIONS * spread, math.log(3)))


def _length_ratio_findings(split: SplitSurvey) -> Iterator[Finding]:
    """Pairs with an outlying length ratio: often misaligned, or half of a sentence."""
    if not split.ratios or not split.target.lengths or split.has_file_sources:
        return
    ratios = np.array(split.ratios, dtype=np.float64)
    middle, far = find_outliers(ratios)
    usual = f"usually {math.exp(middle):.2f} target characters for one of the source"
    what = f"with an unusual length ratio ({usual})"
    yield from _row_findings(split, "length-ratio", far, len(ratios), what, warning_share=WARNING_SHARE)


def _unknown_token_findings(split: SplitSurvey) -> Iterator[Finding]:
    for side, texts in (("source", split.source), ("target", split.target)):
        if texts.unknown:
            share = texts.unknown / texts.tokens
            named = ", ".join(f"{text!r} {n:,}×" for text, n in texts.unknown_texts.most_common(MAX_EXAMPLES))
            message = f"{split.name}: {share:.2%} of the {side} tokens are unknown; the most frequent: {named or '?'}"
            yield Finding("warning" if share > WARNING_SHARE else "notice", f"unknown-{side}", message, texts.unknown)


def _length_limit_findings(split: SplitSurvey, limits: Sequence[int]) -> Iterator[Finding]:
    dropped = {limit: n for limit, n in _dropped_by_limit(split, limits).items() if n}
    if dropped:
        parts = ", ".join(f"{limit:,}: {n:,} ({n / split.pairs:.1%})" for limit, n in dropped.items())
        message = f"{split.name}: pairs that a limit on {_length_unit(split)} would drop: {parts}"
        yield Finding("notice", "length-limits", message, max(dropped.values()))


def _dropped_by_limit(split: SplitSurvey, limits: Sequence[int]) -> dict[int, int]:
    """Length limit → how many pairs are longer."""
    return {limit: sum(n for length, n in split.lengths.items() if length > limit) for limit in sorted(limits)}


def _length_unit(split: SplitSurvey) -> Literal["tokens", "characters"]:
    return "characters" if split.codec is None else "tokens"


def _overlap_findings(train: SplitSurvey, other: SplitSurvey) -> Iterator[Finding]:
    """Pairs, sources and characters of a held-out split that are, or are not, in the training pairs."""
    pairs = np.isin(np.array(other.pair_keys), np.array(train.pair_keys))
    sources = np.isin(np.array(other.source_keys), np.array(train.source_keys)) & ~pairs
    for code, mask, what in (
        ("overlap-pairs", pairs, "also in train"),
        ("overlap-sources", sources, "with a source of train"),
    ):
        what = f"{what}; scores on them flatter the model"
        yield from _row_findings(other, code, np.flatnonzero(mask), len(mask), what, warning_share=0.0)
    for side, texts, train_texts in (("source", other.source, train.source), ("target", other.target, train.target)):
        if side == "source" and train.has_file_sources:
            continue
        unseen = sorted(texts.alphabet - train_texts.alphabet)
        if unseen and train_texts.alphabet:
            named = ", ".join(map(repr, unseen[:MAX_EXAMPLES])) + (", …" if len(unseen) > MAX_EXAMPLES else "")
            message = f"{other.name}: {format_count(len(unseen), f'{side} character')} never seen in train: {named}"
            yield Finding("notice", f"unseen-{side}", message, len(unseen))


def _quantile(histogram: Counter[int], share: float) -> int:
    """The smallest length that at least this share of a histogram does not exceed; 0 if it is empty."""
    below, total = 0, sum(histogram.values())
    for length in sorted(histogram):
        below += histogram[length]
        if below >= share * total:
            return length
    return 0


def _side_statistics(texts: TextStatistics) -> SideStatistics:
    return SideStatistics(
        characters=sum(length * n for length, n in texts.lengths.items()),
        median=_quantile(texts.lengths, 0.5),
        percentile_95=_quantile(texts.lengths, 0.95),
        longest=max(texts.lengths, default=0),
        distinct=len(texts.alphabet),
    )


def _split_statistics(split: SplitSurvey, limits: Sequence[int]) -> SplitStatistics:
    return SplitStatistics(
        split.pairs,
        _side_statistics(split.source),
        _side_statistics(split.target),
        _length_unit(split),
        _dropped_by_limit(split, limits),
    )
