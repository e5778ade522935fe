"""One report of an evaluation as plain data: scores, errors, calibration, and what would help.

    pairs ─assess→ Assessment ─build_report→ EvaluationReport ─terminal.py, page.py, errors_table.py→ text, HTML, CSV

Everything is derived from the outputs of one decoding. The training data are read only to count what is rare and to
find test sources that are in them, too; where they are gone or large, these parts are left out.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from dragoman.core.json import replace_nonfinite
from dragoman.core.registry import Part
from dragoman.core.types import Example
from dragoman.inference.pipeline import Pipeline
from dragoman.inference.prediction import Prediction
from dragoman.inspection.assessment import Assessment, MetricScore, assess, score_metric
from dragoman.inspection.length_units import TOKENS
from dragoman.inspection.views.quality import count_training_tokens
from dragoman.reports.calibration import Calibration, calibrate, calibration_blocker
from dragoman.reports.edits import Confusion, count_confusions
from dragoman.reports.findings import advise_on_data, list_findings, write_headline, wrong_items
from dragoman.reports.groups import Grouping, group_items
from dragoman.reports.items import Item, build_items
from dragoman.reports.metric_choice import Task, detect_task, label_scores
from dragoman.reports.training_overlap import find_trained_sources
from dragoman.text.unseen import UnseenCounter, UnseenReport

SHOWN_ITEMS = 20  # of the worst and of the most confident mistakes
SHOWN_CONFUSIONS = 30
JSON_CONFUSIONS = 100


@dataclass(frozen=True)
class EvaluationReport:
    """What an evaluation tells a person; `items` has every pair, in order."""

    model: str
    pairs: str
    task: Task
    headline: str
    findings: tuple[str, ...]
    advice: tuple[str, ...]
    scores: dict[str, MetricScore]
    exact: MetricScore
    items: tuple[Item, ...]
    confusions: tuple[Confusion, ...]  # empty where many outputs are right
    groupings: tuple[Grouping, ...]
    calibration: Calibration | None
    calibration_note: str  # why there is none
    unseen: UnseenReport
    unwritable: UnseenReport
    has_training_counts: bool
    perplexity: float
    unscored: int
    seconds: float

    @property
    def wrong(self) -> list[Item]:
        """The items whose output is no accepted target."""
        return wrong_items(self.items)

    @property
    def main_score(self) -> MetricScore:
        """The score of the most important metric."""
        return next(iter(self.scores.values()))

    def worst_mistakes(self, count: int = SHOWN_ITEMS) -> list[Item]:
        """The wrong items with the worst score of the main metric, then with most edits per unit."""
        score = self.main_score
        each = np.asarray(score.metric.score(score.stats), dtype=np.float64)
        worse = each if score.metric.higher_is_better else -each
        return sorted(self.wrong, key=lambda item: (worse[item.index], -item.error_rate, item.index))[:count]

    def confident_mistakes(self, count: int = SHOWN_ITEMS) -> list[Item]:
        """The wrong items of which the model was most confident."""
        return sorted(self.wrong, key=lambda item: (-item.token_probability, item.index))[:count]

    @property
    def speed(self) -> str:
        """How long decoding took, as the end of a sentence; "" where the outputs were known."""
        if math.isnan(self.seconds):
            return ""
        return f" in {self.seconds:.1f} s, {len(self.items) / self.seconds:,.0f} a second"

    def as_json(self) -> dict[str, Any]:
        """The findings as data that JSON can hold, without the single items."""
        flags = Counter(flag for item in self.wrong for flag in item.flags)
        value = {
            "headline": self.headline,
            "findings": list(self.findings),
            "more_data": list(self.advice),
            "task": {"kind": self.task.kind, "items": self.task.items, "unit": self.task.unit},
            "wrong": len(self.wrong),
            "confusions": [asdict(confusion) for confusion in self.confusions[:JSON_CONFUSIONS]],
            "groups": {grouping.key: [asdict(group) for group in grouping.groups] for grouping in self.groupings},
            "calibration": None if self.calibration is None else asdict(self.calibration),
            "flags": dict(flags.most_common()),
            "unseen": dict(self.unseen.counts.most_common(JSON_CONFUSIONS)),
            "unwritable": dict(self.unwritable.counts.most_common(JSON_CONFUSIONS)),
        }
        result: dict[str, Any] = replace_nonfinite(value)
        return result


def evaluate(
    pipeline: Pipeline,
    examples: Sequence[Example],
    metrics: Sequence[Part] = (),
    *,
    model: str = "",
    pairs: str = "",
    beam: int | None = None,
    workers: int | None = 1,
    predictions: list[Prediction] | None = None,
) -> tuple[Assessment, EvaluationReport]:
    """Decode and score some pairs, with the metrics that fit them unless some are given, and report on them.

    Outputs that are known already, one for each pair with a target, are given as `predictions`.
    """
    task = detect_task(pipeline.config, [example for example in examples if example.target is not None])
    assessment = assess(
        pipeline, examples, metrics or task.metrics, beam=beam, workers=workers, predictions=predictions
    )
    counts = count_training_tokens(pipeline)
    trained = None if counts is None else find_trained_sources(pipeline, assessment.examples)
    return assessment, build_report(pipeline, assessment, task, counts, trained, model=model, pairs=pairs)


def build_report(
    pipeline: Pipeline,
    assessment: Assessment,
    task: Task | None = None,
    training_counts: Mapping[str, int] | None = None,
    trained_sources: set[int] | None = None,
    *,
    model: str = "",
    pairs: str = "",
) -> EvaluationReport:
    """Build the report of an assessment; `training_counts` are those of source tokens in the training data.

    `trained_sources` has the indices of the pairs whose sources are also in the training data; None is not known.
    """
    examples, predictions = assessment.examples, assessment.predictions
    task = task or detect_task(pipeline.config, examples)
    label_scores(assessment.scores, task)
    unseen, unseen_rows = _count_unseen(UnseenCounter(pipeline.codec, training_counts), examples)
    targets = [replace(example, source=example.target or "") for example in examples]
    unwritable, unwritable_rows = _count_unseen(UnseenCounter(pipeline.codec, side="target"), targets)
    if unwritable.spelled_in_bytes:  # which the model can write
        unwritable, unwritable_rows = UnseenReport(), set()
    items = build_items(
        examples,
        predictions,
        task.unit,
        unseen=unseen_rows,
        unwritable=unwritable_rows,
        in_training=trained_sources or set(),
    )
    references = [example.accepted for example in examples]
    exact = score_metric(Part("exact"), [prediction.text for prediction in predictions], references)
    confusions = [] if task.is_open else count_confusions([item.columns for item in items])
    source_unit = _name_source_unit(pipeline, assessment)
    groupings = group_items(assessment, items, next(iter(assessment.scores)), training_counts, source_unit)
    right = [item.is_right for item in items]
    note = calibration_blocker(right)
    calibration = None if note else calibrate([item.probability for item in items], right)
    headline = write_headline(task, assessment.scores, exact, is_new=trained_sources == set())
    findings = list_findings(headline, items, confusions, groupings, calibration, unseen, unwritable)
    advice = advise_on_data(assessment, items, confusions, groupings, training_counts, unseen, unwritable, task.unit)
    return EvaluationReport(
        model=model,
        pairs=pairs,
        task=task,
        headline=headline,
        findings=tuple(findings),
        advice=tuple(advice),
        scores=assessment.scores,
        exact=exact,
        items=tuple(items),
        confusions=tuple(confusions),
        groupings=tuple(groupings),
        calibration=calibration,
        calibration_note=note,
        unseen=unseen,
        unwritable=unwritable,
        has_training_counts=training_counts is not None,
        perplexity=assessment.perplexity if math.isfinite(assessment.perplexity) else math.nan,
        unscored=assessment.unscored,
        seconds=assessment.seconds,
    )


def _count_unseen(counter: UnseenCounter, examples: Sequence[Example]) -> tuple[UnseenReport, set[int]]:
    """Count what is unseen; return it and the indices of its examples, without those of several references."""
    rows = {
        index
        for index, example in enumerate(examples)
        if (counter.side == "source" or len(example.accepted) == 1) and counter.add(example, example.line or index + 1)
    }
    return counter.report, rows


def _name_source_unit(pipeline: Pipeline, assessment: Assessment) -> str:
    """What the length of a source is counted in: characters, words, symbols or bytes where tokens are these."""
    kind = pipeline.codec.source.kind
    if assessment.length_unit == TOKENS and kind in ("characters", "words", "symbols", "bytes"):
        return kind
    return assessment.length_unit
