"""A report as one HTML file that opens anywhere: no script, no network, no other file.

Texts of the data are escaped and isolated (<bdi>), so that neither markup nor writing direction leaves its place. The
content security policy allows the one style sheet, by its SHA-256, and images that are part of the page.
"""

from __future__ import annotations

import base64
import hashlib
import html
from collections import Counter
from collections.abc import Iterable, Sequence
from importlib import resources

from dragoman.data.lines import format_count
from dragoman.inspection.assessment import MetricScore
from dragoman.reports.charts import interval_bar, reliability_diagram, share_bar
from dragoman.reports.edits import Column, Confusion
from dragoman.reports.groups import Grouping
from dragoman.reports.items import FLAGS, Item
from dragoman.reports.report import SHOWN_CONFUSIONS, EvaluationReport
from dragoman.text.unseen import UnseenReport, format_unit
from dragoman.version import __version__

CARDS = 3  # scores that are shown large
MAX_COLUMNS = 60  # units of an alignment; longer ones are shown as two texts
SHOWN_UNSEEN = 30
SHOWN_SURE = 10
FIRST_ROWS = 12  # of the confusions; the rest is folded


Section = tuple[str, str, str, str]  # key, text of the link, title, body in HTML


def render_page(report: EvaluationReport) -> str:
    """Render a report as a self-contained HTML page."""
    sections = [
        ("scores", "More scores", "More scores", _render_scores(list(report.scores.values())[CARDS:])),
        ("errors", "Errors", "What is taken for what", _render_confusions(report)),
        ("where", "Where", "Where the errors are", _render_groupings(report)),
        ("confidence", "Confidence", "Confidence", _render_calibration(report)),
        ("worst", "Worst", "The worst mistakes", _render_items(report, report.worst_mistakes())),
        ("sure", "Most sure", "Mistakes of which the model is most sure", _render_sure(report)),
        ("unseen", "Unseen", "What the model has never seen", _render_unseen(report)),
        ("data", "More data", "What more data would help", _render_list(report.advice)),
    ]
    name = f"{report.model} on {report.pairs}" if report.pairs else report.model
    count = format_count(len(report.items), "pair")
    return render_document(
        f"Report: {name}",
        f"<h1>{escape(report.headline[:1].upper() + report.headline[1:])}</h1>"
        f'<p class="soft">{isolate(report.model)} on {count} of {isolate(report.pairs)}</p>',
        f'<ul class="findings">{"".join(f"<li>{escape(finding)}</li>" for finding in report.findings[1:])}</ul>'
        f'<div class="cards">{"".join(_render_card(score) for score in list(report.scores.values())[:CARDS])}</div>',
        sections,
        f"<h2>How it was measured</h2>{_render_method(report)}",
    )


def render_document(title: str, header: str, summary: str, sections: Sequence[Section], footer: str) -> str:
    """A whole page from HTML: a summary, the sections that have a body, with links to them, and a footer."""
    style = (resources.files("dragoman.reports") / "static" / "report.css").read_text("utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"
    shown = [(key, short, heading, body) for key, short, heading, body in sections if body]
    links = "".join(f'<a href="#{key}">{short}</a>' for key, short, _, _ in shown)
    bodies = "".join(f'<section id="{key}"><h2>{heading}</h2>{body}</section>' for key, _, heading, body in shown)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(title)}</title>
<style>{style}</style>
</head>
<body>
<header>
{header}
</header>
<nav>{links}</nav>
<main>
{summary}
{bodies}
</main>
<footer class="soft small">{footer}</footer>
</body>
</html>
"""


def escape(text: str) -> str:
    """Escape a text for HTML; lone surrogates and invisible control characters become �."""
    clean = text.encode("utf-8", "replace").decode()
    clean = "".join(c if c.isprintable() or c in "\t\n " else "\ufffd" if ord(c) < 0xA0 else c for c in clean)
    return html.escape(clean)


def isolate(text: str) -> str:
    """Escape a text and keep its writing direction to itself."""
    return f"<bdi>{escape(text)}</bdi>"


# -- scores ------------------------------------------------------------------------------------------------------------


def _format_value(score: MetricScore, value: float) -> str:
    return f"{value:.1f}" + (" %" if score.metric.unit == "%" else "")


def _direction(score: MetricScore) -> str:
    return "↑ higher is better" if score.metric.higher_is_better else "↓ lower is better"


def _render_card(score: MetricScore) -> str:
    unit = "<small> %</small>" if score.metric.unit == "%" else ""
    return (
        f'<div class="card"><h3>{escape(score.label)}</h3><div class="value">{score.value:.1f}{unit}</div>'
        f'<div class="interval">[{score.low:.1f}, {score.high:.1f}] · {_direction(score)}</div>'
        f"<p>{escape(score.metric.name)}: {escape(score.metric.description)}</p></div>"
    )


def _render_scores(scores: Sequence[MetricScore]) -> str:
    rows = [
        [
            f"<b>{escape(score.label)}</b>",
            f'<span class="number">{_format_value(score, score.value)}</span>',
            f'<span class="number">[{score.low:.1f}, {score.high:.1f}]</span>',
            f'<span class="number">{_direction(score)}</span>',
            f"{escape(score.metric.name)}: {escape(score.metric.description)}",
        ]
        for score in scores
    ]
    return render_table(["", "value", "95 % interval", "", "meaning"], rows, wide={4}) if rows else ""


# -- errors ------------------------------------------------------------------------------------------------------------


def _render_confusions(report: EvaluationReport) -> str:
    """How many outputs are wrong, what is odd about them, and the table of confusions, its rarer rows folded."""
    flags = Counter(flag for item in report.wrong for flag in item.flags)
    oddities = "; ".join(f"{FLAGS[flag]} ({count:,})" for flag, count in flags.most_common())
    wrong = f"{format_count(len(report.wrong), 'output')} of {len(report.items):,} differ from every reference."
    text = f"<p>{wrong}{f' Among them: {oddities}.' if oddities else ''}</p>"
    if not report.confusions:
        return text if report.wrong else ""
    total, most = sum(confusion.count for confusion in report.confusions), report.confusions[0].count
    rows = [_confusion_row(report, confusion, most) for confusion in report.confusions[:SHOWN_CONFUSIONS]]
    unit = report.task.unit
    note = (
        f'<p class="soft">{format_count(total, "edit")} of {unit}s, from the alignment with the fewest edits of each '
        "output with its nearest reference: reference → output.</p>"
    )
    head = ["error", "count", "", f"of the {unit}", "for example"]
    tables = [render_table(head, part, bars={2}, wide={3}) for part in (rows[:FIRST_ROWS], rows[FIRST_ROWS:]) if part]
    more = len(report.confusions) - len(rows)
    rest = f'<p class="soft">{format_count(more, "less frequent kind")} of edit not shown.</p>' if more > 0 else ""
    folded = f"<details><summary>less frequent ones</summary>{tables[1]}{rest}</details>" if len(tables) > 1 else ""
    return text + note + tables[0] + folded


def _confusion_row(report: EvaluationReport, confusion: Confusion, most: int) -> list[str]:
    share = f"{100 * confusion.count / confusion.occurrences:.0f} %" if confusion.occurrences else ""
    examples = "".join(
        f"<div>{isolate(report.items[index].source[:80])} → {isolate(report.items[index].output[:80])}</div>"
        for index in confusion.examples[:2]
    )
    return [
        f'<span class="unit">{_format_confusion(confusion)}</span>',
        f'<span class="number">{confusion.count:,}×</span>',
        share_bar(confusion.count / most, f"{confusion.count}"),
        share,
        f'<div class="examples">{examples}</div>',
    ]


def _format_confusion(confusion: Confusion) -> str:
    reference, output = (isolate(format_unit(unit)) for unit in (confusion.reference, confusion.output))
    if not confusion.reference:
        return f"{output} added"
    return f"{reference} → {output}" if confusion.output else f"{reference} missing"


def _render_items(report: EvaluationReport, items: Sequence[Item]) -> str:
    return f'<ol class="items">{"".join(_render_item(report, item) for item in items)}</ol>' if items else ""


def _render_sure(report: EvaluationReport) -> str:
    return _render_items(report, report.confident_mistakes()[:SHOWN_SURE])


def _render_item(report: EvaluationReport, item: Item) -> str:
    where = f"line {item.line:,}" if item.line else f"pair {item.index + 1:,}"
    chips = "".join(f'<span class="chip">{flag}</span>' for flag in item.flags)
    sure = f"{where} · probability {_percent(item.probability)}, {_percent(item.token_probability)} a token"
    is_aligned = not report.task.is_open and len(item.columns) <= MAX_COLUMNS
    body = _render_alignment(item.columns) if is_aligned else _render_texts(item)
    source = f'<span class="source">{isolate(item.source)}</span>'
    return f'<li>{source}<span class="meta">{sure}</span>{chips}{body}</li>'


def _render_alignment(columns: Iterable[Column]) -> str:
    cells = "".join(
        f"<span{' class=edit' if column.is_edit else ''}><span>{isolate(column.reference) or ''}</span>"
        f"<span>{isolate(column.output)}</span></span>"
        for column in columns
    )
    return f'<div class="aligned"><span class="names"><span>reference</span><span>output</span></span>{cells}</div>'


def _render_texts(item: Item) -> str:
    return (
        f"<dl class=texts><dt>reference</dt><dd>{isolate(item.reference)}</dd>"
        f"<dt>output</dt><dd>{isolate(item.output)}</dd></dl>"
    )


# -- groups and confidence ---------------------------------------------------------------------------------------------


def _render_groupings(report: EvaluationReport) -> str:
    groups = "".join(_render_grouping(report, each) for each in report.groupings)
    return f'<div class="grid">{groups}</div>' if groups else ""


def _render_grouping(report: EvaluationReport, grouping: Grouping) -> str:
    score = report.main_score
    most = max(group.high for group in grouping.groups)
    if score.metric.unit == "%":
        most = max(most, 100.0) if score.metric.higher_is_better else most
    rows = [
        [
            isolate(group.name),
            f'<span class="number">{group.count:,}</span>',
            interval_bar(group.value, group.low, group.high, most, f"{group.value:.1f}"),
            f'<span class="number">{_format_value(score, group.value)}</span>',
            f'<span class="number soft">[{group.low:.1f}, {group.high:.1f}]</span>',
        ]
        for group in grouping.groups
    ]
    note = f'<p class="soft small">{escape(grouping.note)}</p>' if grouping.note else ""
    head = ["", "pairs", escape(score.label), "", ""]
    return f"<div><h3>{escape(grouping.title)}</h3>{note}{render_table(head, rows, bars={2}, wide={4})}</div>"


def _render_calibration(report: EvaluationReport) -> str:
    calibration = report.calibration
    if calibration is None:
        return f"<p>Whether the probabilities are honest cannot be said: {escape(report.calibration_note)}.</p>"
    rows = [
        [
            f"{100 * each.low:.0f}–{100 * each.high:.0f} %",
            f'<span class="number">{each.count:,}</span>',
            f'<span class="number">{_percent(each.probability)}</span>',
            f'<span class="number">{_percent(each.right)}</span>',
        ]
        for each in calibration.bins
    ]
    text = (
        "<p>A model is well calibrated if of the outputs with a probability of 80 % just 80 % are right: the dots lie "
        f"on the dashed line. Here the mean gap, the expected calibration error, is {100 * calibration.error:.1f} "
        f"points: the probability is {_percent(calibration.probability)} on average, and "
        f"{_percent(calibration.right)} of the outputs are right.</p>"
    )
    table = render_table(["probability", "outputs", "mean", "right"], rows)
    return f'{text}<div class="grid"><div>{reliability_diagram(calibration)}</div><div>{table}</div></div>'


# -- what was never seen, and how it was measured ----------------------------------------------------------------------


def _render_unseen(report: EvaluationReport) -> str:
    sentences = [_describe_unseen(report.unseen, ""), _describe_unseen(report.unwritable, "in the references: ")]
    trained = sum("in training" in item.flags for item in report.items)
    if trained:
        sentences.append(
            f"{format_count(trained, 'source')} of {len(report.items):,} are also in the training data: there the "
            "model may show its memory rather than what it has learned."
        )
    elif report.has_training_counts:
        sentences.append("No source is in the training data.")
    return _render_list([sentence for sentence in sentences if sentence])


def _describe_unseen(unseen: UnseenReport, prefix: str) -> str:
    if not unseen:
        return ""
    units = ", ".join(
        f"{format_unit(unit)} ({count:,}×, first in line {unseen.lines[unit]:,})"
        for unit, count in unseen.counts.most_common(SHOWN_UNSEEN)
    )
    return f"{prefix}{format_count(unseen.line_count, 'line')} with {unseen.unit}s that it does not know: {units}"


def _render_method(report: EvaluationReport) -> str:
    count = len(report.items)
    left_out = (
        f" (without {format_count(report.unscored, 'pair')} longer than the model reads)" if report.unscored else ""
    )
    signatures = "; ".join(score.metric.signature for score in report.scores.values() if score.metric.signature)
    lines = [
        f"{format_count(count, 'pair')} decoded{report.speed}; perplexity per token {report.perplexity:.3f}{left_out}.",
        "Intervals hold 95 % of the scores of a thousand resampled test sets (bootstrap over pairs). "
        "A part is named among the findings only if its errors are more frequent by two standard errors.",
        *([f"sacreBLEU: {signatures}"] if signatures else []),
        f"Dragoman {__version__}.",
    ]
    return "".join(f"<p>{escape(line)}</p>" for line in lines)


# -- building blocks ---------------------------------------------------------------------------------------------------


def render_table(
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    bars: frozenset[int] | set[int] = frozenset(),
    wide: frozenset[int] | set[int] = frozenset(),
) -> str:
    """A table from cells in HTML; `bars` are columns of charts, `wide` ones are left out on narrow screens."""

    def css(column: int) -> str:
        return ' class="bar"' if column in bars else ' class="wide"' if column in wide else ""

    header = "".join(f"<th{css(column)}>{name}</th>" for column, name in enumerate(head))
    body = "".join(
        "<tr>" + "".join(f"<td{css(column)}>{cell}</td>" for column, cell in enumerate(row)) + "</tr>" for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{header}</tr></thead><tbody>{body}</tbody></table></div>'


def _render_list(sentences: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(sentence)}</li>' for sentence in sentences)}</ul>" if sentences else ""


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
