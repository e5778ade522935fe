"""The report on data quality: findings and statistics, as data, as JSON, and as text for a terminal.

    QualityReport = findings, the most severe first + statistics of each split: number of pairs, lengths of both sides

A finding is one kind of issue, however often it occurs, with the file and line of the first occurrences.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Literal

from dragoman.data.lines import format_count

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
        return {"ok": self.ok, **asdict(self)}

    def render(self) -> str:
        """The report as plain text for a terminal."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        for name, one in self.statistics.items():
            yield f"{name}: {format_count(one.pairs, 'pair')}"
            for label, side in (("source", one.source), ("target", one.target)):
                lengths = f"median {side.median:,}, 95 % {side.percentile_95:,}, longest {side.longest:,}"
                yield f"  {label}  {side.characters:,} characters, {side.distinct:,} distinct; length: {lengths}"
        yield ""
        for finding in self.findings:
            yield f"{finding.severity:<8} {finding.message}  [{finding.code}]"
            if finding.locations:
                more = ", …" if finding.count > len(finding.locations) else ""
                yield f"         at {', '.join(finding.locations)}{more}"
        severities = [finding.severity for finding in self.findings]
        yield ", ".join(format_count(severities.count(severity), severity) for severity in SEVERITIES)
