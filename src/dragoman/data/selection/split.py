"""Split pairs into parts such that no source, and nothing similar to it, is in two of them.

    pairs ─compare_pairs→ texts and links ─merge_similar→ groups ─assign_groups→ {"train": rows, "valid": …, "test": …}

Groups are assigned whole. They are sorted by language and length and cut into strata; in each stratum the held-out
parts take the groups with the smallest hash of (seed, text) until they have their share, so that every part has the
same languages and lengths, whatever the order of the file. What is rounded in one stratum is made up for in the next.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise

import numpy as np

from dragoman.core.errors import UserError
from dragoman.core.types import Example
from dragoman.data.lines import format_count
from dragoman.data.selection.groups import ComparedPairs, compare_pairs, default_limit, merge_similar
from dragoman.data.selection.similarity import Ints

DEFAULT_SHARES = {"train": 0.8, "valid": 0.1, "test": 0.1}
MAX_HELD_OUT = 5_000  # pairs of each held-out part, unless shares are requested
MIN_HELD_OUT = 15  # … where a sixth of all pairs is as many
MIN_PAIRS = 20  # … and the fewest pairs that are split
MAX_SEPARATED = 0.2  # of the sources; more are apart only where all are made of a few patterns
MAX_STRATA, STRATUM_GROUPS = 10, 40  # strata of length for each language; groups that a stratum needs
PURPOSES = {"train": "to learn from", "valid": "for validation", "test": "for the test"}


class Split(dict[str, list[int]]):
    """The rows of each part in file order, how they were grouped, and a sentence that says so."""

    def __init__(self, parts: Mapping[str, list[int]], seed: int, unit: str) -> None:
        super().__init__(parts)
        self.seed, self.unit = seed, unit
        self.kept_whole = "source"  # what is in one part only
        self.groups = 0  # of two or more similar sources
        self.largest = 0  # pairs in the largest group
        self.separated = 0  # similar sources that are in two parts, since their group would be too large
        self.is_patterned = False  # nearly all sources resemble each other, and only equal ones are kept together

    @property
    def sentence(self) -> str:
        """`2,400 to learn from, 300 for validation, 300 for the test (seed 1; no source in two parts)`."""
        counts = ", ".join(f"{len(rows):,} {PURPOSES.get(name, f'in {name}')}" for name, rows in self.items())
        notes = [f"seed {self.seed}", f"no {self.kept_whole} in two parts"]
        if self.groups:
            notes.append(f"{format_count(self.groups, 'group')} of similar {self.unit} kept together")
        if self.is_patterned:
            notes.append(f"nearly all {self.unit} resemble each other, so that only equal ones are kept together")
        elif self.separated:
            notes.append(f"{self.separated:,} similar {self.unit} are apart, since too many resemble each other")
        return f"{counts} ({'; '.join(notes)})"


def split_pairs(
    examples: Iterable[Example],
    shares: Mapping[str, float] | None = None,
    seed: int = 1,
    *,
    exact: bool = False,
    keys: Sequence[Hashable] | None = None,
) -> Split:
    """The rows of each part, 80/10/10 by default, with MIN_HELD_OUT to MAX_HELD_OUT in a held-out part unless `exact`.

    With `keys`, one for each pair, pairs with equal keys stay together, and nothing else is compared.
    """
    compared = compare_pairs(examples, keys)
    sizes = part_sizes(len(compared.rows), shares, exact=exact)
    limit = default_limit(len(compared.rows))
    is_patterned = False
    for group_limit in (limit, limit // 4, 0):  # 0: equal sources alone
        groups = merge_similar(compared, group_limit)
        split = _make_split(compared, groups, assign_groups(_describe(compared, groups, seed), sizes), sizes, seed)
        split.is_patterned = is_patterned
        is_patterned = split.separated > MAX_SEPARATED * len(compared.texts)
        is_filled = all(len(split[part]) >= 0.8 * size for part, size in sizes.items())
        if group_limit == 0 or (is_filled and not is_patterned):
            break
    if keys is not None:
        split.kept_whole = "key"
    if empty := [part for part, rows in split.items() if not rows]:
        what = "sources" if keys is None else "keys"
        raise UserError(
            f"nothing is left for '{empty[0]}': the {len(compared.rows):,} pairs have only {len(compared.texts):,} "
            f"different {what}, and none may be in two parts. Add pairs with other {what}"
        )
    return split


def part_sizes(pairs: int, shares: Mapping[str, float] | None = None, *, exact: bool = False) -> dict[str, int]:
    """How many pairs each part gets, the largest what the others leave; UserError if there are too few."""
    shares = DEFAULT_SHARES if shares is None else shares
    if len(shares) < 2 or min(shares.values()) <= 0:
        raise UserError(f"the shares are {dict(shares)}; there must be two or more, all above 0")
    if pairs < (least := len(shares) if exact else MIN_PAIRS):
        raise UserError(
            f"{format_count(pairs, 'pair')} are too few to hold some out; there must be {least}. "
            "Add pairs, or train on all of them and check the outputs by hand"
        )
    main, total = max(shares, key=lambda part: shares[part]), sum(shares.values())
    sizes = dict.fromkeys(shares, 0)
    for part, share in shares.items():
        size = max(round(pairs * share / total), 1)
        if part != main:
            sizes[part] = size if exact else min(max(size, min(MIN_HELD_OUT, pairs // 6)), MAX_HELD_OUT)
    sizes[main] = pairs - sum(sizes.values())
    if sizes[main] < 1:
        raise UserError(f"the shares {dict(shares)} of {format_count(pairs, 'pair')} leave nothing for '{main}'")
    return sizes


# -- which group goes into which part ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class PairGroup:
    """Pairs that stay together: their number, their languages, their mean length, and a hash of (seed, first text)."""

    name: int
    size: int
    languages: tuple[str, ...]
    length: float
    hash: bytes


def _describe(compared: ComparedPairs, groups: Ints, seed: int) -> list[PairGroup]:
    group_of_row = groups[compared.rows]
    sizes = np.bincount(group_of_row, minlength=len(groups)).tolist()
    lengths = np.bincount(group_of_row, compared.lengths, minlength=len(groups)).tolist()
    languages: dict[int, set[str]] = {}
    for name, language in zip(group_of_row.tolist(), compared.languages, strict=True):
        languages.setdefault(name, set()).add(language)
    return [
        PairGroup(
            name,
            sizes[name],
            tuple(sorted(of_group)),
            lengths[name] / sizes[name],
            hash_text(seed, compared.texts[name]),
        )
        for name, of_group in languages.items()
    ]


def hash_text(seed: int, text: str) -> bytes:
    """A hash that puts texts into an order of their own for each seed."""
    return blake2b(f"{seed}\n{text}".encode("utf-8", "surrogatepass"), digest_size=8).digest()


def assign_groups(groups: Sequence[PairGroup], sizes: Mapping[str, int], main: str = "") -> dict[int, str]:
    """The part of each group, by its name; `main`, by default the largest part, gets what the others do not take."""
    main = main or max(sizes, key=lambda part: sizes[part])
    part_of_group = {group.name: main for group in groups}
    missing = {part: size for part, size in sizes.items() if part != main}
    total, seen = sum(group.size for group in groups), 0
    for stratum in _strata(groups):
        seen += sum(group.size for group in stratum)
        for part in missing:
            due = missing[part] - round(sizes[part] * (1 - seen / total))  # of this stratum
            for group in stratum:
                # Whole groups come as near to what is due as they can, and no part becomes larger than it should.
                if part_of_group[group.name] == main and group.size < 2 * due and group.size <= missing[part]:
                    part_of_group[group.name] = part
                    missing[part] -= group.size
                    due -= group.size
    rest = sorted(groups, key=lambda group: group.hash)
    for part in missing:  # what no stratum had small enough groups for
        for group in rest:
            if part_of_group[group.name] == main and group.size <= missing[part]:
                part_of_group[group.name] = part
                missing[part] -= group.size
    return part_of_group


def _strata(groups: Sequence[PairGroup]) -> list[list[PairGroup]]:
    """Groups of the same languages and of similar length, each stratum in the order of the hashes."""
    by_languages: dict[tuple[str, ...], list[PairGroup]] = {}
    # Backwards, the hash gives an order of its own: else the smallest hashes of a stratum would be of one length.
    for group in sorted(groups, key=lambda group: (group.languages, group.length, group.hash[::-1])):
        by_languages.setdefault(group.languages, []).append(group)
    strata = []
    for same in by_languages.values():
        count = min(max(len(same) // STRATUM_GROUPS, 1), MAX_STRATA)
        bounds = [len(same) * i // count for i in range(count + 1)]
        strata += [sorted(same[start:end], key=lambda group: group.hash) for start, end in pairwise(bounds)]
    return strata


def _make_split(
    compared: ComparedPairs, groups: Ints, part_of_group: Mapping[int, str], sizes: Mapping[str, int], seed: int
) -> Split:
    parts: dict[str, list[int]] = {part: [] for part in sizes}
    group_of_row = groups[compared.rows]
    for row, group in enumerate(group_of_row.tolist()):
        parts[part_of_group[group]].append(row)
    split = Split(parts, seed, compared.unit)
    split.groups = int((np.bincount(groups) > 1).sum())
    split.largest = int(np.bincount(group_of_row).max())
    numbers = {part: number for number, part in enumerate(sizes)}
    part_of_text = np.array([numbers[part_of_group[group]] for group in groups.tolist()])
    left, right = compared.links.left, compared.links.right
    is_cut = part_of_text[left] != part_of_text[right]
    split.separated = len(np.union1d(left[is_cut], right[is_cut]))
    return split
