"""The result of `model.evaluate(pairs)` in Python: a small table of scores that draws itself, and the report behind it.

result = model.evaluate("test.tsv")          or pairs in Python: [("source", "target"), …]
print(result)                                a line for each score, with its 95 % interval
result["exact"].value, result.headline, result.as_json()
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from dragoman.core.errors import UserError
from dragoman.core.registry import Part
from dragoman.core.types import Example
from dragoman.data.lines import format_count
from dragoman.data.readers import read_pairs
from dragoman.data.readers.columns import fit_columns
from dragoman.evaluation.metrics import parse_metrics
from dragoman.inference.pipeline import Pipeline
from dragoman.inference.prediction import Prediction
from dragoman.inspection.assessment import Assessment, MetricScore
from dragoman.reports import report as reports
from dragoman.reports.report import EvaluationReport

Pairs = str | Path | Iterable[tuple[str, str] | Example]


@dataclass(frozen=True, repr=False)
class Evaluation:
    """The scores of a model on some pairs, with everything they were computed from."""

    assessment: Assessment
    report: EvaluationReport

    @property
    def scores(self) -> dict[str, MetricScore]:
        """The scores by the names of their metrics, the most important first."""
        return self.assessment.scores

    def __getitem__(self, metric: str) -> MetricScore:
        return self.scores[metric]

    @property
    def headline(self) -> str:
        """The result in one sentence."""
        return self.report.headline

    @property
    def examples(self) -> list[Example]:
        """The pairs, in order."""
        return self.assessment.examples

    @property
    def predictions(self) -> list[Prediction]:
        """What the model made of each source."""
        return self.assessment.predictions

    def as_json(self) -> dict[str, Any]:
        """The scores and the findings as data that JSON can hold."""
        return self.assessment.as_json() | {"report": self.report.as_json()}

    def __repr__(self) -> str:
        return f"<evaluation on {self._count()}: {'; '.join(map(str, self.scores.values()))}>"

    def __str__(self) -> str:
        rows = self._rows()
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        lines = [
            f"{label:<{widths[0]}}  {value:>{widths[1]}}  {interval:<{widths[2]}}  {better}"
            for label, value, interval, better, _ in rows
        ]
        return "\n".join([self._count(), *lines])

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Show the table in an IPython terminal."""
        printer.text(repr(self) if cycle else str(self))

    def _repr_html_(self) -> str:
        """Show the table in a notebook."""
        rows = "".join(
            f"<tr title='{escape(name, quote=True)}'>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"
            for *cells, name in self._rows()
        )
        return f"<table><caption>{self._count()}</caption>{rows}</table>"

    def _count(self) -> str:
        return format_count(len(self.examples), "pair")

    def _rows(self) -> list[tuple[str, str, str, str, str]]:
        rows = []
        for score in self.scores.values():
            unit = " %" if score.metric.unit == "%" else ""
            better = f"{'higher' if score.metric.higher_is_better else 'lower'} is better"
            interval = f"[{score.low:.1f}, {score.high:.1f}]"
            rows.append((score.label, f"{score.value:.1f}{unit}", interval, better, score.metric.name))
        return rows


def evaluate(
    pipeline: Pipeline,
    pairs: Pairs,
    metrics: str | Sequence[str | Part] = (),
    *,
    beam: int | None = None,
    workers: int | None = 1,
) -> Evaluation:
    """Decode the sources of some pairs and score the outputs, with the metrics that fit them unless some are given."""
    if pipeline.continues_text:
        raise UserError("a language model has no targets to compare with; model.score(texts) has log p of each text")
    name, examples = _read_pairs(pipeline, pairs)
    parts = parse_metrics(metrics)
    return Evaluation(*reports.evaluate(pipeline, examples, parts, pairs=name, beam=beam, workers=workers))


def _read_pairs(pipeline: Pipeline, pairs: Pairs) -> tuple[str, list[Example]]:
    if isinstance(pairs, str | Path):
        proposal = fit_columns(str(pairs), pipeline.config.columns)  # None: the model's columns fit
        columns = pipeline.config.columns if proposal is None else proposal.columns
        read = read_pairs(str(pairs), columns=columns, extra_targets=True)
        return Path(str(pairs)).name, list(read)
    if not isinstance(pairs, Iterable):
        raise UserError(f"evaluate takes a file or a list of pairs, found {type(pairs).__name__}")
    return "pairs", [_to_example(pair) for pair in pairs]


def _to_example(pair: Any) -> Example:
    if isinstance(pair, Example):
        return pair
    if not isinstance(pair, tuple | list) or len(pair) != 2 or not all(isinstance(text, str) for text in pair):
        raise UserError(f"a pair must be two texts, (source, target), or an Example; found {pair!r:.60}")
    return Example(*pair)
