"""What would more data bring: the same config trained on ¼, ½ and all of its pairs, and the error at twice as many.

    train ─nested samples→ n/4, n/2, n pairs ─training.run→ models ─the same test pairs→ errors e₁, e₂, e₃ ─→ e(2n)

The errors follow a power law, e(n) = a n^−b + c. Through three points at doubled sizes it is exact, and the next one is

    e(2n) = e₃ − d₂ (d₂ / d₁)        d₁ = e₁ − e₂,  d₂ = e₂ − e₃,  if d₂ < d₁: the curve flattens; no gain if d₂ ≤ 0
    e(2n) = e₃ (e₃ / e₁)^½           otherwise: c = 0, and b from the ends; no gain if e₃ ≥ e₁

The interval is that of the bootstrap over test items, with the same items for the three models. It does not cover what
another seed of the training would change, so that small gains mean little. All trainings have the same number of steps;
where a validation set is given, the best checkpoint of each is taken.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dragoman import training
from dragoman.config import Config
from dragoman.core.errors import DataError
from dragoman.core.registry import Part
from dragoman.core.types import Example
from dragoman.data.readers import read_pairs
from dragoman.data.selection.rows import copy_rows, name_parts
from dragoman.data.selection.sample import sample_pairs
from dragoman.evaluation.significance import central_interval, format_score, resample_totals
from dragoman.inference import pipeline
from dragoman.inspection.assessment import MetricScore, assess
from dragoman.inspection.render.image import COLORS, FontSet, check_format, new_figure, save_figure
from dragoman.reports.metric_choice import detect_task, label_scores
from dragoman.training.report import Report

SHARES = (0.25, 0.5, 1.0)
MIN_PAIRS = 40  # of training: a quarter of fewer says nothing
STILL_IMPROVING = 0.12  # of the validation loss, in the last fifth of the steps: more than a decaying rate explains
SAMPLES = 1_000  # of the bootstrap
LEVEL = 0.95
ERROR_LABELS = {"exact match": "wrong outputs"}  # of metrics that count what is right; others: 100 − the score


@dataclass(frozen=True)
class Estimate:
    """A value with its 95 % interval."""

    value: float
    low: float
    high: float

    def format(self, unit: str) -> str:
        """`11.8 % [11.2, 12.4]`, or without the unit if it is points."""
        return format_score("", self.value, self.low, self.high, unit).lstrip()


@dataclass(frozen=True)
class LearningCurve:
    """The errors of the models on the same test pairs, and what twice the pairs may give."""

    metric: str  # what an error is: "PER", or "100 − BLEU"
    unit: str  # "%" or "points"
    pairs: tuple[int, ...]
    errors: tuple[Estimate, ...]
    doubled: Estimate
    gain: Estimate  # of the error, from all pairs to twice as many
    test_pairs: int
    is_finished: bool = True  # the training on all pairs had learned what it could

    @property
    def sentence(self) -> str:
        """What doubling the data may give, no more certain than it is."""
        now, twice = self.errors[-1].format(self.unit), f"{2 * self.pairs[-1]:,} pairs"
        if not self.is_finished:
            return (
                "the training on all pairs was still improving at its end, so that these errors say little about "
                "more pairs: give it more minutes or steps"
            )
        if self.errors[-1].value <= 0:
            return f"nothing is wrong on the {self.test_pairs:,} test pairs, which more pairs cannot improve"
        if self.gain.low <= 0:
            return (
                f"{self.metric} now: {now}; whether {twice} would lower it cannot be told from "
                f"{self.test_pairs:,} test pairs"
            )
        gain = f"{self.gain.value:.1f} [{self.gain.low:.1f}, {self.gain.high:.1f}]"
        return (
            f"{self.metric} now: {now}; with {twice} perhaps lower by {gain}, if the new pairs are like these. "
            "Another training may differ by as much as a small gain"
        )

    def rows(self) -> list[tuple[str, str]]:
        """The table: pairs and error; the last row is estimated, if it can be."""
        known = [(f"{n:,}", error.format(self.unit)) for n, error in zip(self.pairs, self.errors, strict=True)]
        if not self.is_finished:
            return known
        return [*known, (f"{2 * self.pairs[-1]:,}", f"{self.doubled.format(self.unit)} (estimated)")]

    def as_json(self) -> dict[str, Any]:
        """The curve as JSON values."""
        points = [{"pairs": n, **vars(error)} for n, error in zip(self.pairs, self.errors, strict=True)]
        return {
            "metric": self.metric,
            "points": points,
            "doubled": {"pairs": 2 * self.pairs[-1], **vars(self.doubled)},
            "gain": vars(self.gain),
            "test_pairs": self.test_pairs,
            "is_finished": self.is_finished,
            "sentence": self.sentence,
        }


# -- trainings ---------------------------------------------------------------------------------------------------------


def measure_curve(
    config: Config,
    test: Sequence[Example],
    folder: Path,
    metric: Part | None = None,
    runs: dict[float, Path] | None = None,
) -> Generator[Report, None, LearningCurve]:
    """Train on each share of the config's pairs in `folder` and evaluate on `test`; finished runs are not repeated.

    `runs` has the folders of trainings that are done elsewhere, by their share. Yields the reports of the trainings.
    """
    test = [example for example in test if example.target is not None]
    if not test:
        raise DataError("there are no test pairs; a pair is a source and a target")
    task = detect_task(config, test)
    metric = metric or task.metrics[0]
    counts, scores = [], []
    for share in SHARES:
        subset, count = _take_share(config, share, folder / "data")
        place = (runs or {}).get(share, folder / f"{round(100 * share)}-percent")
        yield Report("notice", 0, 0, f"training on {count:,} pairs ({share:.0%}) in {place}")
        if runs is None or share not in runs:
            yield from training.run(subset, place)
        found = assess(pipeline.load(place, config.runtime.device), test, [metric]).scores
        label_scores(found, task)
        counts.append(count)
        scores.append(found[metric.name])
    return fit_curve(counts, scores, is_finished=not is_still_improving(place, config.training.steps))


def _take_share(config: Config, share: float, folder: Path) -> tuple[Config, int]:
    """The config for a share of its training pairs, and their number; a smaller share is part of a larger one."""
    corpora, total = [], 0
    for number, corpus in enumerate(config.data.train):
        columns = config.columns
        examples = list(read_pairs(corpus.path, columns=columns, on_error=config.data.on_error))
        if len(examples) < MIN_PAIRS:
            raise DataError(f"there are {len(examples)} pairs; a curve needs {MIN_PAIRS}", corpus.path)
        rows = list(range(len(examples)))
        for smaller in (size for size in reversed(SHARES) if share <= size < 1):
            count = max(round(smaller * len(examples)), 1)
            rows = [rows[i] for i in sample_pairs([examples[row] for row in rows], count)]
        total += len(rows)
        if share < 1:
            (output,) = name_parts(corpus.path, folder, [f"{number + 1}-{round(100 * share)}-percent"]).values()
            copy_rows(corpus.path, columns, examples, {output: rows})
            corpus = corpus.model_copy(update={"path": output})
        corpora.append(corpus)
    data = config.data.model_copy(update={"train": corpora})
    return config.model_copy(update={"data": data}), total


def is_still_improving(run: Path, steps: int) -> bool:
    """Whether the validation loss of a finished run fell notably in the last fifth of its steps."""
    with (run / "metrics.jsonl").open(encoding="utf-8") as file:
        records = [json.loads(line) for line in file]
    losses = {r["step"]: r["loss"] for r in records if r["kind"] == "valid" and r.get("loss") is not None}
    before = [loss for step, loss in losses.items() if step <= 0.8 * steps]
    after = [loss for step, loss in losses.items() if step > 0.8 * steps]
    return bool(before and after) and min(after) < (1 - STILL_IMPROVING) * min(before)


# -- the curve ---------------------------------------------------------------------------------------------------------


def fit_curve(pairs: Sequence[int], scores: Sequence[MetricScore], *, is_finished: bool = True) -> LearningCurve:
    """The curve through the scores of three models that were trained on pairs/4, pairs/2 and all pairs."""
    metric, items = scores[0].metric, len(scores[0].stats)
    totals = np.concatenate([score.stats for score in scores], axis=1)
    samples = np.split(resample_totals(totals, SAMPLES, seed=1), len(scores), axis=1)  # the same items for all models
    errors = np.array([_to_error(metric.score(score.stats.sum(0)), metric.higher_is_better) for score in scores])
    resampled = np.stack([_to_error(metric.score(sample), metric.higher_is_better) for sample in samples])
    doubled, many = extrapolate(errors[:, None])[0], extrapolate(resampled)
    return LearningCurve(
        _error_label(scores[0]),
        metric.unit,
        tuple(pairs),
        tuple(_estimate(error, each) for error, each in zip(errors, resampled, strict=True)),
        _estimate(doubled, many),
        _estimate(errors[-1] - doubled, resampled[-1] - many),
        items,
        is_finished,
    )


def _error_label(score: MetricScore) -> str:
    """What the curve shows: errors, also where the metric counts what is right."""
    if not score.metric.higher_is_better:
        return score.label
    return ERROR_LABELS.get(score.label, f"100 − {score.label}")


def _to_error(score: Any, higher_is_better: bool) -> Any:
    return 100 - score if higher_is_better else score


def _estimate(value: float, samples: np.ndarray) -> Estimate:
    return Estimate(float(value), *central_interval(samples, LEVEL))


def extrapolate(errors: np.ndarray) -> np.ndarray:
    """(3, M) errors at n/4, n/2 and n → (M,) errors at 2n."""
    first, second, third = errors
    d1, d2 = first - second, np.maximum(second - third, 0.0)
    flattens = d1 > d2
    ratio = np.divide(d2, d1, out=np.zeros_like(d1), where=flattens)
    share = np.divide(third, first, out=np.ones_like(third), where=first > third)
    return np.asarray(np.where(flattens, third - d2 * ratio, third * np.sqrt(share))).clip(min=0.0)


def draw_curve(path: Path, curve: LearningCurve) -> None:
    """Draw the errors with their intervals over the number of pairs, and the estimate as an open mark, into a file."""
    path = check_format(path)
    figure = new_figure()
    figure.set_layout_engine("constrained")
    figure.set_size_inches(5.4, 3.8)
    label = f"{curve.metric} (%)" if curve.unit == "%" else curve.metric
    fonts, axes = FontSet((label, "pairs")), figure.subplots()
    xs, estimates = [*curve.pairs, 2 * curve.pairs[-1]], [*curve.errors, curve.doubled]
    ys = [estimate.value for estimate in estimates]
    if not curve.is_finished:
        xs, ys, estimates = xs[:-1], ys[:-1], estimates[:-1]
    axes.vlines(xs, [each.low for each in estimates], [each.high for each in estimates], color=COLORS[0], alpha=0.4)
    known = len(curve.pairs)
    axes.plot(xs[:known], ys[:known], color=COLORS[0], marker="o", linewidth=1.6)
    axes.plot(xs[known - 1 :], ys[known - 1 :], color=COLORS[0], linestyle=":")
    axes.plot(xs[known:], ys[known:], color=COLORS[0], marker="o", markerfacecolor="white")
    axes.set_xscale("log", base=2)
    axes.set_xticks(xs, [f"{x:,}" for x in xs])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_xlabel("pairs", **fonts.style(10))
    axes.set_ylabel(fonts.drawable(label), **fonts.style(10))
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8.5)
    save_figure(figure, path)
