"""What must be said: phrases that have to stand in the result (dynamic beam allocation, Post and Vilar 2018).

Forbidding </s> until all phrases are said is not enough: a beam keeps what is probable, and a beginning that has said a
required word is rarely among the best at that moment. So a beam also tries the tokens that would bring a hypothesis
further (`wanted`), and shares its places among *banks*, hypotheses that have met equally many required tokens
(`progress`): one that has said more never has to compete with one that has said less.

    progress = tokens of the phrases that are met + tokens of an unmet phrase that the beginning ends with, the most

Unordered, a phrase is met where it stands anywhere, and two may overlap: 1 2 1 3 meets both [1 2 1] and [2 1 3]; one
that is given twice must stand at two places. Ordered, the phrases stand one after the other and do not overlap; the
earliest place of each is taken, since any other leaves less room for the next.

All of this is done on the host: required phrases are few and short.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from dragoman.core.types import BOS, EOS, PAD
from dragoman.search.logits_processors import refuse

Tokens = tuple[int, ...]
KEPT = 4096  # beginnings whose standing is remembered


class Standing(NamedTuple):
    """How far a beginning is."""

    met: int  # the tokens of the phrases that are met
    unmet: list[Tokens]  # the phrases that may come next
    tail: Tokens  # the part of the beginning whose end may begin one of them


class Required:
    """The result of sentence i holds all of phrases[i]; a list of one entry holds for every sentence.

    `ordered` says for all, or for each, whether the phrases come in their order.
    """

    def __init__(self, phrases: Sequence[Sequence[Sequence[int]]], ordered: bool | Sequence[bool] = False) -> None:
        for ones in phrases:
            refuse(ones, {PAD, BOS, EOS}, "a required phrase", empty=False)
        self.phrases = [[tuple(phrase) for phrase in ones] for ones in phrases]
        self.ordered = [ordered] * len(phrases) if isinstance(ordered, bool) else list(ordered)
        self.find = {True: lru_cache(KEPT)(one_after_the_other), False: lru_cache(KEPT)(anywhere)}

    def __call__(self, log_p: Tensor, history: Tensor, rows: Tensor) -> Tensor:
        """</s> only after all phrases."""
        unmet = [
            [bool(self.standing(tokens, row).unmet) for tokens in hypotheses]
            for row, hypotheses in zip(rows.tolist(), history.tolist(), strict=True)
        ]
        log_p = log_p.clone()
        log_p[..., EOS].masked_fill_(torch.tensor(unmet, device=log_p.device), -math.inf)
        return log_p

    def of(self, row: int) -> tuple[Tokens, ...]:
        return tuple(self.phrases[row if len(self.phrases) > 1 else 0])

    def standing(self, history: Sequence[int], row: int) -> Standing:
        return self.find[self.ordered[row if len(self.phrases) > 1 else 0]](tuple(history), self.of(row))

    def total(self, row: int) -> int:
        """How many tokens are required."""
        return sum(map(len, self.of(row)))

    def progress(self, history: Sequence[int], row: int) -> int:
        """How many of them a beginning has met."""
        met, unmet, tail = self.standing(history, row)
        return met + max((max(begun(tail, phrase)) for phrase in unmet), default=0)

    def wanted(self, history: Sequence[int], row: int) -> list[int]:
        """The tokens that go on with an unmet phrase or begin one, those furthest in a phrase first."""
        _, unmet, tail = self.standing(history, row)
        steps = [(n, phrase[n]) for phrase in unmet for n in begun(tail, phrase)]
        return list(dict.fromkeys(token for _, token in sorted(steps, key=lambda step: -step[0])))


def anywhere(history: Tokens, phrases: tuple[Tokens, ...]) -> Standing:
    met, unmet = 0, []
    for phrase, times in Counter(phrases).items():
        n = len(phrase)
        found = sum(history[i : i + n] == phrase for i in range(len(history) - n + 1))
        met += n * min(found, times)
        if found < times:
            unmet.append(phrase)
    return Standing(met, unmet, history)


def one_after_the_other(history: Tokens, phrases: tuple[Tokens, ...]) -> Standing:
    met = start = 0
    for phrase in phrases:
        n = len(phrase)
        place = next((i for i in range(start, len(history) - n + 1) if history[i : i + n] == phrase), None)
        if place is None:
            return Standing(met, [phrase], history[start:])
        met, start = met + n, place + n
    return Standing(met, [], history[start:])


def begun(tail: Tokens, phrase: Tokens) -> list[int]:
    """Every n for which the tail ends with the first n tokens of a phrase, but not all of it; 0 is one."""
    return [n for n in range(min(len(phrase), len(tail) + 1)) if tail[len(tail) - n :] == phrase[:n]]


def banks(totals: Sequence[float], progress: Sequence[int], most: int, size: int) -> list[int]:
    """All candidates, those first that are kept when `size` places are shared among the banks 0 … `most`.

    Each bank has an equal share, at least one place, for its best. Places that are left over or that a bank cannot fill
    go to the others. Where places do not suffice, more progress goes first. The kept ones, and after them the rest,
    stand in the order of their totals.
    """
    share = max(1, size // (most + 1))
    ranked = sorted(range(len(totals)), key=lambda c: -totals[c])
    filled: Counter[int] = Counter()
    turns = []  # (beyond its bank's share, −progress, place in its bank, candidate)
    for c in ranked:
        if totals[c] > -math.inf:
            place = filled[progress[c]]
            turns.append((place >= share, -progress[c], place, c))
            filled[progress[c]] += 1
    kept = {turn[-1] for turn in sorted(turns)[:size]}
    return sorted(ranked, key=lambda c: c not in kept)
