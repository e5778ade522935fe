"""The report on data quality: findings and statistics, as data, as JSON, and as text for a terminal.

    QualityReport = findings, the most severe first + statistics of each split: number of pairs, lengths of both sides

A finding is one kind of issue, however often it occurs, with the file and line of the first occurrences.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal

Severity = Literal["error", "warning", "notice"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "notice")


@dataclass(frozen=True)
class Finding:
    """One kind of issue: its severity, a message, its count, and `file:line` of the first occurrences."""

    severity: Severity
    code: str
    message: str
    count: int = 1
    locations: tuple[str, ...] = ()


@dataclass(frozen=True)
class SideStatistics:
    """Lengths of one side of the pairs, in characters, and its number of distinct characters."""

    characters: int
    median: int
    percentile_95: int
    longest: int
    distinct: int


@dataclass(frozen=True)
class SplitStatistics:
    """One split: its pairs, both sides, and how many pairs each length limit would drop."""

    pairs: int
    source: SideStatistics
    target: SideStatistics
    unit: Literal["tokens", "characters"]
    dropped: dict[int, int]


@dataclass(frozen=True)
class QualityReport:
    """Everything found in the splits of a data set."""

    findings: list[Finding] = field(default_factory=list)
    statistics: dict[str, SplitStatistics] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether there are no errors, which must be fixed before training."""
        return not any(finding.severity == "error" for finding in self.findings)

    def as_json(self) -> dict[str, object]:
        """The report as JSON values, with `ok`."""
        return {
            "ok": self.ok,
            "findings": [asdict(finding) | {"locations": list(finding.locations)} for finding in self.findings],
            "statistics": {
                name: asdict(one) | {"dropped": {str(limit): n for limit, n in one.dropped.items()}}
                for name, one in self.statistics.items()
            },
        }

    def render(self) -> str:
        """The report as plain text for a terminal."""
        return "\n".join([*_render_statistics(self.statistics), *_render_findings(self.findings)])


def _render_statistics(statistics: dict[str, SplitStatistics]) -> Iterator[str]:
    """Lines of text: for each split its pairs, and lengths and characters of both sides."""
    for name, one in statistics.items():
        yield f"{name}: {format_count(one.pairs, 'pair')}"
        for label, side in (("source", one.source), ("target", one.target)):
            lengths = f"median {side.median:,}, 95 % {side.percentile_95:,}, longest {side.longest:,}"
            yield f"  {label}  {side.characters:,} characters, {side.distinct:,} distinct; length: {lengths}"


def _render_findings(findings: Sequence[Finding]) -> Iterator[str]:
    """Lines of text: each finding with its locations, then how many there are of each severity."""
    yield ""
    for finding in findings:
        yield f"{finding.severity:<8} {finding.message}  [{finding.code}]"
        if finding.locations:
            more = ", …" if finding.count > len(finding.locations) else ""
            yield f"         at {', '.join(finding.locations)}{more}"
    counts = [format_count(sum(f.severity == severity for f in findings), severity) for severity in SEVERITIES]
    yield ", ".join(counts)


def format_count(count: int, what: str, total: int = 0) -> str:
    """`1 pair`, `1,200 pairs`, followed by their share of a total if one is given."""
    share = f" ({count / total:.1%})" if total else ""
    return f"{count:,} {what}{'' if count == 1 else 's'}{share}"
