"""Take some of the pairs: at random but with every language's share, or as diverse as possible.

    random      in each stratum of language and length, the pairs with the smallest hash of (seed, pair)
    diverse     greedily, in each language, the pair that adds most to   F(S) = Σ_u √c_u(S)
                c_u(S) how often the unit u occurs in the sample S: a word, or three characters of a single word

F grows fastest where units are new, and a unit that is there already adds less each time; the gain of a pair is divided
by its number of units, so that long pairs are not preferred (feature-based submodular selection, Kirchhoff and Bilmes
2014). F is submodular: a gain only falls, and most pairs need not be looked at again.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Sequence

from dragoman.core.errors import UserError
from dragoman.core.types import Example
from dragoman.data.lines import format_count
from dragoman.data.quality.survey import hash_pair
from dragoman.data.selection.similarity import fold_text
from dragoman.data.selection.split import PairGroup, assign_groups, hash_text

GRAM = 3  # characters


def sample_pairs(examples: Sequence[Example], count: int, seed: int = 1, *, diverse: bool = False) -> list[int]:
    """The rows of a sample in file order; UserError if there are not so many pairs."""
    if not 0 < count <= len(examples):
        raise UserError(
            f"a sample of {format_count(count, 'pair')} is not possible: there are {len(examples):,} pairs; "
            f"take between 1 and {len(examples):,}"
        )
    if count == len(examples):
        return list(range(count))
    repeats: Counter[int] = Counter()
    groups = []
    for row, example in enumerate(examples):
        _, pair = hash_pair(example, "nfc")
        repeats[pair] += 1
        language = f"{example.source_lang or ''}→{example.target_lang or ''}"
        length = len(example.source) + len(example.target or "")
        groups.append(PairGroup(row, 1, (language,), length, hash_text(seed, f"{pair} {repeats[pair]}")))
    part_of_row = assign_groups(groups, {"rest": len(examples) - count, "sample": count}, main="rest")
    rows = sorted(row for row, part in part_of_row.items() if part == "sample")
    if not diverse:
        return rows
    wanted = Counter(groups[row].languages for row in rows)
    by_language: dict[tuple[str, ...], list[PairGroup]] = {}
    for group in groups:
        by_language.setdefault(group.languages, []).append(group)
    return sorted(row for language, n in wanted.items() for row in _choose_diverse(examples, by_language[language], n))


def _choose_diverse(examples: Sequence[Example], candidates: Sequence[PairGroup], count: int) -> list[int]:
    """The rows that are chosen greedily; of equal gains, the smallest hash."""
    units = {group.name: _count_units(examples[group.name]) for group in candidates}
    covered: Counter[str] = Counter()

    def gain(row: int) -> float:
        total = sum(math.sqrt(covered[unit] + n) - math.sqrt(covered[unit]) for unit, n in units[row].items())
        return total / max(units[row].total(), 1)

    heap = [(-gain(group.name), group.hash, group.name) for group in candidates]
    heapq.heapify(heap)
    chosen: list[int] = []
    while len(chosen) < count:
        _, hash, row = heapq.heappop(heap)
        current = -gain(row)
        if heap and (current, hash) > heap[0][:2]:  # it has fallen behind another
            heapq.heappush(heap, (current, hash, row))
            continue
        chosen.append(row)
        covered.update(units[row])
    return chosen


def _count_units(example: Example) -> Counter[str]:
    units: Counter[str] = Counter()
    for side, text in (("s", example.source), ("t", example.target or "")):
        folded = fold_text(text)
        if " " in folded:
            units.update(f"{side} {word}" for word in folded.split())
        else:
            padded = f"^{folded}$"
            units.update(f"{side} {padded[i : i + GRAM]}" for i in range(max(len(padded) - GRAM + 1, 1)))
    return units
