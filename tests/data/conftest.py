"""A codec whose ids are easy to check, and pairs for it: what token stores are built from."""

from __future__ import annotations

from pathlib import Path

from dragoman.core.types import EOS, Example
from dragoman.data.lines import ReadReport

LIMITS = {"max_source": 100, "max_target": 100}


class Letters:
    """A codec whose ids are easy to check: a letter's id is its code point, moved; </s> ends both sides."""

    is_stochastic = False
    modality = second_source = None

    def __init__(self, size: int = 1000, shift: int = 0) -> None:
        self.source = self.target = range(size)
        self.shift = shift
        self.fingerprint = f"letters {size} {shift}"

    def encode_source(self, example: Example) -> list[int]:
        return [*(ord(letter) + self.shift for letter in example.source), EOS]

    def encode_target(self, example: Example) -> list[int]:
        return [*(ord(letter) + self.shift for letter in example.target or ""), EOS]


def pairs(count: int = 3) -> list[Example]:
    return [Example("ab" * (i + 1), "xyz" * (i + 1), line=i + 1) for i in range(count)]


def leftovers(folder: Path) -> list[Path]:
    return list(folder.glob(".tmp-*"))


def count_issues(report: ReadReport, kind: str) -> int:
    return sum(issue.count for issue in report if issue.kind == kind)
