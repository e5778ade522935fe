"""A report in a terminal: the scores with names, units and directions, the findings, and the first mistakes."""

from __future__ import annotations

from collections.abc import Iterator

from dragoman.data.lines import format_count
from dragoman.inspection.assessment import MetricScore
from dragoman.reports.items import Item
from dragoman.reports.report import EvaluationReport

SHOWN = 5


def report_lines(report: EvaluationReport) -> Iterator[str]:
    """Yield the lines of a report: scores, speed, findings, confusions, the most confident mistakes."""
    yield from score_lines(report.scores)
    left_out = f" without {report.unscored:,} pairs longer than the model's maximum length" if report.unscored else ""
    yield f"perplexity {report.perplexity:.3f}{left_out}"
    count = len(report.items)
    yield f"{format_count(count, 'pair')} decoded{report.speed}"
    yield ""
    yield from (f"· {finding}" for finding in report.findings)
    if report.confusions:
        shown = ", ".join(f"{confusion} {confusion.count:,}×" for confusion in report.confusions[:SHOWN])
        yield f"\nconfusions: {shown}"
    if mistakes := report.confident_mistakes(SHOWN):
        yield "\nmistakes of which the model is most sure:"
        yield from (mistake_line(item) for item in mistakes)
    if report.wrong and report.advice:
        yield "\nwhat more data would help:"
        yield from (f"· {sentence}" for sentence in report.advice)


def score_lines(scores: dict[str, MetricScore]) -> Iterator[str]:
    """Yield a line for each score: label, value, interval, the better direction, full name and sentence."""
    rows = []
    for score in scores.values():
        metric = score.metric
        unit = " %" if metric.unit == "%" else ""
        signature = f"   {metric.signature}" if metric.signature else ""
        meaning = f"{metric.name}: {metric.description}{signature}"
        arrow = "↑ is better" if metric.higher_is_better else "↓ is better"
        rows.append((score.label, f"{score.value:.1f}{unit}", f"[{score.low:.1f}, {score.high:.1f}]", arrow, meaning))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for label, value, interval, arrow, meaning in rows:
        yield (f"{label:<{widths[0]}}  {value:>{widths[1]}}  {interval:<{widths[2]}}  {arrow:<{widths[3]}}  {meaning}")


def mistake_line(item: Item) -> str:
    """One wrong item: its line, source, output, reference and probability."""
    where = f"line {item.line}: " if item.line else ""
    sure = f"{100 * item.token_probability:.0f} % a token"
    return f"  {where}{item.source} → {item.output or '(nothing)'}   reference: {item.reference}   ({sure})"
