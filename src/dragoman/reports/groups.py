"""The score of parts of the pairs: by length, rarity, probability, language and script, each with its interval.

Ranges of length and rarity are those of the view `quality`. A group's share of the items beside its share of the
errors says where errors are more frequent than elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dragoman.evaluation.by_length import LengthBucket
from dragoman.evaluation.significance import bootstrap_interval
from dragoman.inspection.assessment import Assessment, MetricScore
from dragoman.inspection.length_units import TOKENS
from dragoman.inspection.views.quality import group_by_length, group_by_rarity, token_count
from dragoman.reports.items import Item
from dragoman.text.scripts import main_script

MIN_GROUP = 5  # items: of fewer no score is shown
PROBABILITY_GROUPS = 5
COMMON = 1000  # training counts from which nothing is rare


@dataclass(frozen=True)
class ScoreGroup:
    """One part of the pairs: its name, size, score with interval, and how many of its outputs are wrong."""

    name: str
    count: int
    value: float
    low: float
    high: float
    wrong: int


@dataclass(frozen=True)
class Grouping:
    """All parts of one division of the pairs, with a sentence that explains it."""

    key: str  # length, rarity, probability, language, script
    title: str
    note: str
    groups: tuple[ScoreGroup, ...]


def group_items(
    assessment: Assessment, items: Sequence[Item], metric: str, counts: Mapping[str, int] | None, source_unit: str
) -> list[Grouping]:
    """Divide the pairs in every way that applies; a division with a single group is left out.

    `source_unit` is the word for what the length of a source is counted in: letters, tokens, frames.
    """
    score = assessment.scores[metric]
    unit = assessment.length_unit
    by_length = group_by_length({"": assessment}, metric)[""]
    by_rarity = [] if counts is None else group_by_rarity({"": assessment}, metric, counts)[""]
    if by_rarity and by_rarity[0].high >= COMMON:
        by_rarity = []
    lengths = dict(enumerate(map(len, assessment.length_pieces))) if unit else {}
    groupings = [
        Grouping(
            "length", "By the length of the source", f"in {source_unit}", _from_buckets(by_length, lengths, items)
        ),
        Grouping(
            "rarity",
            "By the rarest part of the source",
            "how often its rarest token is in the training data",
            _from_buckets(by_rarity, source_rarities(assessment, counts), items),
        ),
        Grouping(
            "probability",
            "By the model's confidence",
            "the probability of a token of the output, on average",
            _by_probability(score, items),
        ),
        Grouping("language", "By language", "", _by_name(score, items, lambda i: _language(assessment, i))),
        Grouping(
            "script",
            "By script",
            "that most letters of the source belong to",
            _by_name(score, items, lambda i: main_script(items[i].source) if unit == TOKENS else ""),
        ),
    ]
    return [grouping for grouping in groupings if len(grouping.groups) > 1]


def source_rarities(assessment: Assessment, counts: Mapping[str, int] | None) -> dict[int, int]:
    """The count of the rarest token of each source in the training data, by index; {} where it is not known."""
    if counts is None or assessment.length_unit != TOKENS:
        return {}
    rows = enumerate(assessment.length_pieces)
    return {i: min(token_count(token, counts) for token in tokens) for i, tokens in rows if tokens}


def _from_buckets(
    buckets: Sequence[LengthBucket], sizes: Mapping[int, int], items: Sequence[Item]
) -> tuple[ScoreGroup, ...]:
    groups = []
    for bucket in buckets:
        name = f"{bucket.low:,}" if bucket.low == bucket.high else f"{bucket.low:,}–{bucket.high:,}"
        wrong = sum(not items[i].is_right for i, size in sizes.items() if bucket.low <= size <= bucket.high)
        groups.append(ScoreGroup(name, bucket.count, bucket.score, *bucket.interval, wrong))
    return tuple(groups)


def _by_probability(score: MetricScore, items: Sequence[Item]) -> tuple[ScoreGroup, ...]:
    """Groups of about equal size, the least confident first."""
    if len(items) < PROBABILITY_GROUPS * MIN_GROUP:
        return ()
    order = np.argsort([item.token_probability for item in items], kind="stable")
    groups = []
    for indices in np.array_split(order, PROBABILITY_GROUPS):
        low, high = (items[int(indices[at])].token_probability for at in (0, -1))
        groups.append(_score_group(f"{100 * low:.0f}–{100 * high:.0f} %", score, items, indices.tolist()))
    return tuple(groups)


def _by_name(score: MetricScore, items: Sequence[Item], name_of: Callable[[int], str]) -> tuple[ScoreGroup, ...]:
    """Groups by a name, the largest first; items without a name, and small groups, are left out."""
    members: dict[str, list[int]] = {}
    for item in items:
        members.setdefault(name_of(item.index), []).append(item.index)
    large = {name: indices for name, indices in members.items() if name and len(indices) >= MIN_GROUP}
    by_size = sorted(large.items(), key=lambda each: (-len(each[1]), each[0]))
    return tuple(_score_group(name, score, items, indices) for name, indices in by_size)


def _score_group(name: str, score: MetricScore, items: Sequence[Item], indices: Sequence[int]) -> ScoreGroup:
    stats = score.stats[list(indices)]
    value = float(score.metric.score(stats.sum(0)))
    wrong = sum(not items[i].is_right for i in indices)
    return ScoreGroup(name, len(indices), value, *bootstrap_interval(score.metric, stats), wrong)


def _language(assessment: Assessment, index: int) -> str:
    example = assessment.examples[index]
    return " → ".join(language for language in (example.source_lang, example.target_lang) if language)
