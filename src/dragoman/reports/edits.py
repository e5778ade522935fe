"""Align an output with its reference, unit by unit, and count what was taken for what.

    reference   ʃː ɒ k
    output      ʃ  ɒ k s        ʃː → ʃ, s added: 2 edits

The alignment has the fewest edits possible: their number is the Levenshtein distance. A unit is a character, or what
stands between spaces.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import NamedTuple

from rapidfuzz.distance import Levenshtein

MAX_EXAMPLES = 3  # items to show for a confusion


class Column(NamedTuple):
    """One column of an alignment: a unit of the reference over one of the output; "" where there is none."""

    reference: str
    output: str

    @property
    def is_edit(self) -> bool:
        """Whether the two differ."""
        return self.reference != self.output


@dataclass(frozen=True)
class Confusion:
    """A unit of the references that was replaced by another one, left out (output "") or added (reference "")."""

    reference: str
    output: str
    count: int
    occurrences: int  # of the unit in all references; 0 for an added one
    examples: tuple[int, ...]  # indices of the first items with it

    def __str__(self) -> str:
        if not self.reference:
            return f"{self.output} added"
        return f"{self.reference} → {self.output}" if self.output else f"{self.reference} missing"


def split_units(text: str, unit: str) -> list[str]:
    """Split a text into the units that are aligned: its characters, or what stands between spaces."""
    return list(text) if unit == "character" else text.split()


def align(output: Sequence[str], reference: Sequence[str]) -> list[Column]:
    """Align two sequences of units with the fewest edits."""
    columns: list[Column] = []
    for block in Levenshtein.opcodes(reference, output):
        old, new = reference[block.src_start : block.src_end], output[block.dest_start : block.dest_end]
        columns += [Column(*pair) for pair in zip_longest(old, new, fillvalue="")]  # of equal length, or one is empty
    return columns


def count_edits(columns: Iterable[Column]) -> int:
    """The number of columns in which reference and output differ."""
    return sum(column.is_edit for column in columns)


def count_confusions(alignments: Sequence[Sequence[Column]]) -> list[Confusion]:
    """Count what was taken for what in the alignments of some items, the most frequent first."""
    counts: Counter[Column] = Counter()
    occurrences: Counter[str] = Counter()
    examples: dict[Column, list[int]] = {}
    for index, columns in enumerate(alignments):
        occurrences.update(column.reference for column in columns if column.reference)
        edits = [column for column in columns if column.is_edit]
        counts.update(edits)
        for column in dict.fromkeys(edits):
            items = examples.setdefault(column, [])
            if len(items) < MAX_EXAMPLES:
                items.append(index)
    return [
        Confusion(*column, count, occurrences[column.reference] if column.reference else 0, tuple(examples[column]))
        for column, count in sorted(counts.items(), key=lambda each: (-each[1], each[0]))
    ]
