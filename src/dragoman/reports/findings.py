"""From numbers to sentences: the largest findings of an evaluation, and which further data would help.

    n errors in a part of m items, n' in the m' others      lift = (n/m) / (n'/m')

A part is named only if its errors are clearly more frequent than those of the rest: lift ≥ 1.5, at least 5 errors, at
least 5 % of all errors, and a difference of two standard errors (two proportions, pooled).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt

from dragoman.inspection.assessment import Assessment, MetricScore
from dragoman.inspection.views.quality import token_count
from dragoman.reports.calibration import Calibration
from dragoman.reports.edits import Confusion
from dragoman.reports.groups import Grouping, source_rarities
from dragoman.reports.items import FLAGS, Item
from dragoman.reports.metric_choice import Task
from dragoman.text.unseen import UnseenReport, format_unit

MAX_FINDINGS = 5
RARE = (5, 20, 100)  # training counts below which a token is called rare, the first that applies
MIN_LIFT, MIN_ERRORS, MIN_SHARE, MIN_DEVIATIONS = 1.5, 5, 0.05, 2.0
MIN_OCCURRENCES = 10  # of a unit in the references
MIN_CALIBRATION_GAP = 0.05
NOT_FLAGGED = ("unseen", "unwritable", "in training")  # they have findings of their own


@dataclass(frozen=True)
class ErrorShare:
    """A part of the items in which errors are more frequent than in the rest."""

    items: int
    wrong: int
    all_items: int
    all_wrong: int

    @property
    def is_clear(self) -> bool:
        """Whether its errors are clearly more frequent, and numerous enough to matter."""
        rest, rest_wrong = self.all_items - self.items, self.all_wrong - self.wrong
        if not (rest and self.items) or self.wrong < max(MIN_ERRORS, MIN_SHARE * self.all_wrong):
            return False
        rate, rest_rate, pooled = self.wrong / self.items, rest_wrong / rest, self.all_wrong / self.all_items
        deviation = sqrt(pooled * (1 - pooled) * (1 / self.items + 1 / rest))
        return rate >= MIN_LIFT * rest_rate and rate - rest_rate >= MIN_DEVIATIONS * deviation

    def __str__(self) -> str:
        return f"{_percent(self.wrong, self.all_wrong)} of the errors, but {_percent(self.items, self.all_items)}"


def write_headline(task: Task, scores: Mapping[str, MetricScore], exact: MetricScore, is_new: bool) -> str:
    """Say the result in the task's own words: "91 of 100 new words right [88, 94]; phoneme errors (PER) 2.3 %".

    Of fewer than a hundred items it says how many: "14 of 16 new words right [12, 16]".
    """
    items = "labels" if task.kind == "labels" else f"new {task.items}" if is_new else task.items
    whole = min(len(exact.stats), 100)
    value, low, high = (_of_whole(share, whole) for share in (exact.value, exact.low, exact.high))
    right = f"{value} of {whole} {items} right [{low}, {high}]"
    others = [score for name, score in scores.items() if name not in ("exact", "ser", "accuracy")]
    parts = [right] if task.is_exact else []
    if task.kind == "tags":
        parts = [f"{scores['accuracy'].value:.1f} % of the tags right" if "accuracy" in scores else right]
    parts += [f"{score.label} {score.value:.1f}{' %' if score.metric.unit == '%' else ''}" for score in others[:2]]
    if not task.is_exact and others:
        parts[-len(others[:2])] = str(others[0])  # with its interval
    return "; ".join(parts) or right


def find_clear_groups(groupings: Sequence[Grouping], items: Sequence[Item]) -> list[str]:
    """Sentences about the groups in which errors are clearly more frequent, those with most errors first."""
    wrong = sum(not item.is_right for item in items)
    clear: list[tuple[int, str]] = []
    for grouping in groupings:
        if grouping.key == "probability":  # that errors are less probable is the calibration's finding
            continue
        for group in grouping.groups:
            part = ErrorShare(group.count, group.wrong, len(items), wrong)
            if part.is_clear:
                clear.append((group.wrong, _describe_group(grouping, group.name, part)))
    return [sentence for _, sentence in sorted(clear, key=lambda each: -each[0])]


def _describe_group(grouping: Grouping, name: str, part: ErrorShare) -> str:
    where = {
        "length": f"Sources with a length of {name} ({grouping.note})",
        "rarity": f"Sources whose rarest token is {name} times in the training data",
        "language": f"Pairs of the language {name}",
        "script": f"Sources in {name} script",
    }[grouping.key]
    return f"{where} have {part} of the pairs."


def list_findings(
    headline: str,
    items: Sequence[Item],
    confusions: Sequence[Confusion],
    groupings: Sequence[Grouping],
    calibration: Calibration | None,
    unseen: UnseenReport,
    unwritable: UnseenReport,
) -> list[str]:
    """Return at most five sentences, the most important first."""
    wrong = [item for item in items if not item.is_right]
    findings = [f"{headline[0].upper()}{headline[1:]}."]
    if trained := [item for item in items if "in training" in item.flags]:
        fresh = [item for item in items if "in training" not in item.flags]
        right = f"; of the others {_percent(sum(i.is_right for i in fresh), len(fresh))} are right" if fresh else ""
        findings.append(f"{_count(len(trained), 'source is', 'sources are')} also in the training data{right}.")
    if unwritable:
        count = sum("unwritable" in item.flags for item in items)
        findings.append(
            f"{_count(count, 'reference has', 'references have')} {unwritable.unit}s that the model cannot write "
            f"({_list_units(unwritable.counts)}), so no output can be right there."
        )
    if unseen:
        count = sum("unseen" in item.flags for item in wrong)
        findings.append(f"{_count(count, 'wrong output has', 'wrong outputs have')} a source with something unseen.")
    findings += find_clear_groups(groupings, items)[:1]
    if confusions:
        total = sum(confusion.count for confusion in confusions)
        top = confusions[:3]
        count = sum(confusion.count for confusion in top)
        shown = ", ".join(f"{confusion} ({confusion.count:,}×)" for confusion in top)
        if count >= MIN_SHARE * total:
            findings.append(f"The most frequent errors are {shown}: {_percent(count, total)} of all edits.")
    if calibration is not None and abs(calibration.overconfidence) >= MIN_CALIBRATION_GAP:
        word = "overconfident" if calibration.overconfidence > 0 else "underconfident"
        findings.append(
            f"The model is {word}: its outputs have a probability of {100 * calibration.probability:.0f} % on average, "
            f"and {100 * calibration.right:.0f} % are right."
        )
    flags = Counter(flag for item in wrong for flag in item.flags if flag not in NOT_FLAGGED)
    for flag, count in flags.most_common(1):
        if count >= max(MIN_ERRORS, MIN_SHARE * len(wrong)):
            findings.append(f"In {_percent(count, len(wrong))} of the wrong outputs {FLAGS[flag]}.")
    return findings[:MAX_FINDINGS]


# -- which further data would help -------------------------------------------------------------------------------------


def advise_on_data(
    assessment: Assessment,
    items: Sequence[Item],
    confusions: Sequence[Confusion],
    groupings: Sequence[Grouping],
    counts: Mapping[str, int] | None,
    unseen: UnseenReport,
    unwritable: UnseenReport,
    unit: str,
) -> list[str]:
    """Name the kinds of pairs in which errors gather; more pairs of these kinds are likely to help most."""
    wrong = [item for item in items if not item.is_right]
    if not wrong:
        return []
    advice = []
    if unwritable:
        reason = "no training pair has them" if unwritable.was_learned else "they are too rare for its vocabulary"
        advice.append(
            f"Pairs whose targets have {_list_units(unwritable.counts)}: the model cannot write them, since {reason}."
        )
    if unseen:
        never = "has never seen" if unseen.was_learned else "does not know"
        advice.append(f"Pairs whose sources have {_list_units(unseen.counts)}, which the model {never}.")
    advice += [sentence for sentence in [_advise_on_rarity(assessment, items, counts)] if sentence]
    for grouping in groupings:
        if grouping.key in ("length", "language", "script"):
            advice += _advise_on_groups(grouping, items, len(wrong))
    advice += [sentence for sentence in [_advise_on_units(items, confusions, unit)] if sentence]
    if not advice:
        advice = [
            "No kind of pair stands out: errors are spread over all of them, so more of the same data would help."
        ]
    return advice


def _advise_on_rarity(assessment: Assessment, items: Sequence[Item], counts: Mapping[str, int] | None) -> str:
    rarities = source_rarities(assessment, counts)
    wrong = {item.index for item in items if not item.is_right}
    for limit in RARE if counts is not None else ():
        rare = {index for index, count in rarities.items() if count < limit}
        part = ErrorShare(len(rare), len(rare & wrong), len(items), len(wrong))
        if part.is_clear:
            tokens = Counter(
                token
                for index in rare & wrong
                for token in {*assessment.length_pieces[index]}
                if token_count(token, counts or {}) < limit
            )
            return (
                f"Pairs with rare parts, such as {_list_units(tokens)}: sources with a token that is fewer than "
                f"{limit} times in the training data have {part} of the pairs."
            )
    return ""


def _advise_on_groups(grouping: Grouping, items: Sequence[Item], wrong: int) -> list[str]:
    parts = [(group, ErrorShare(group.count, group.wrong, len(items), wrong)) for group in grouping.groups]
    clear = [(group, part) for group, part in parts if part.is_clear]
    if not clear:
        return []
    group, part = max(clear, key=lambda each: each[0].wrong)
    kinds = {
        "length": f"Pairs with sources of length {group.name} ({grouping.note})",
        "language": f"Pairs in {group.name}",
        "script": f"Pairs in {group.name} script",
    }
    return [f"{kinds[grouping.key]}, which have {part} of the pairs."]


def _advise_on_units(items: Sequence[Item], confusions: Sequence[Confusion], unit: str) -> str:
    """Name the units of the references that are wrong most often, clearly more often than all units are."""
    occurrences = Counter(column.reference for item in items for column in item.columns if column.reference)
    errors: Counter[str] = Counter()
    for confusion in confusions:
        errors[confusion.reference] += confusion.count if confusion.reference else 0
    total, all_errors = occurrences.total(), errors.total()
    clear = {
        each: errors[each] / count
        for each, count in occurrences.items()
        if count >= MIN_OCCURRENCES and ErrorShare(count, errors[each], total, all_errors).is_clear
    }
    worst = sorted(clear, key=lambda each: -clear[each])[:3]
    if not worst:
        return ""
    shown = ", ".join(f"{format_unit(each)} ({100 * clear[each]:.0f} % of {occurrences[each]:,})" for each in worst)
    return f"Pairs whose targets have the {unit}s that are wrong most often: {shown}."


def _list_units(counts: Mapping[str, int], most: int = 5) -> str:
    shown = [f"{format_unit(unit)} ({count:,}×)" for unit, count in Counter(counts).most_common(most)]
    return ", ".join(shown) + (" …" if len(counts) > most else "")


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / max(whole, 1):.0f} %"


def _of_whole(percent: float, whole: int) -> str:
    """How many of `whole`; of 100 with a decimal only where rounding would make it all or nothing."""
    value = percent * whole / 100
    return f"{value:.1f}" if whole == 100 and (0 < value < 1 or 99 < value < 100) else f"{value:.0f}"


def _count(count: int, one: str, many: str) -> str:
    return f"{count:,} {one if count == 1 else many}"


def wrong_items(items: Collection[Item]) -> list[Item]:
    """The items whose output is no accepted target."""
    return [item for item in items if not item.is_right]
