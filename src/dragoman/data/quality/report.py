"""What the data doctor says: findings and statistics, as plain data, as JSON, and as text for a terminal.

    Report = findings, the worst first + for each split its pairs, and how long both sides are

A finding is one kind of trouble, however often it was met; it names the first places.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Severity = Literal["error", "warning", "notice"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "notice")


@dataclass(frozen=True)
class Finding:
    """One kind of trouble: how bad, what, how often, and the first places."""

    severity: Severity
    code: str
    message: str
    count: int = 1
    places: tuple[str, ...] = ()


@dataclass(frozen=True)
class Side:
    """One side of the pairs, in characters."""

    characters: int
    median: int
    percentile_95: int
    longest: int
    distinct: int


@dataclass(frozen=True)
class Statistics:
    """One split: its pairs, both sides, and how many pairs each limit on the longer side would drop."""

    pairs: int
    source: Side
    target: Side
    unit: Literal["tokens", "characters"]
    dropped: dict[int, int]


@dataclass(frozen=True)
class Report:
    """What the doctor found."""

    findings: list[Finding] = field(default_factory=list)
    statistics: dict[str, Statistics] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Nothing that must be mended before training."""
        return not any(finding.severity == "error" for finding in self.findings)

    def as_json(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "findings": [asdict(finding) | {"places": list(finding.places)} for finding in self.findings],
            "statistics": {
                name: asdict(one) | {"dropped": {str(limit): n for limit, n in one.dropped.items()}}
                for name, one in self.statistics.items()
            },
        }

    def render(self) -> str:
        """The report as plain text for a terminal."""
        return "\n".join([*_render_statistics(self.statistics), *_render_findings(self.findings)])


def _render_statistics(statistics: dict[str, Statistics]) -> Iterator[str]:
    for name, one in statistics.items():
        yield f"{name}: {counted(one.pairs, 'pair')}"
        for label, side in (("source", one.source), ("target", one.target)):
            lengths = f"median {side.median:,}, 95 % {side.percentile_95:,}, longest {side.longest:,}"
            yield f"  {label}  {side.characters:,} characters, {side.distinct:,} distinct; length: {lengths}"


def _render_findings(findings: Sequence[Finding]) -> Iterator[str]:
    yield ""
    for finding in findings:
        yield f"{finding.severity:<8} {finding.message}  [{finding.code}]"
        if finding.places:
            more = ", …" if finding.count > len(finding.places) else ""
            yield f"         at {', '.join(finding.places)}{more}"
    counts = [counted(sum(f.severity == severity for f in findings), severity) for severity in SEVERITIES]
    yield ", ".join(counts)


def counted(count: int, what: str, total: int = 0) -> str:
    """`1 pair`, `1,200 pairs`, and their share where the total is given."""
    share = f" ({count / total:.1%})" if total else ""
    return f"{count:,} {what}{'' if count == 1 else 's'}{share}"
