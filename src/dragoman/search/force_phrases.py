"""Forced phrases: phrases that an output must contain (dynamic beam allocation, Post and Vilar 2018).

Forbidding </s> until all phrases are in the output is not enough: a beam keeps what is probable, and a hypothesis that
contains a forced word is rarely among the best at that moment. So a beam also tries the tokens that would advance a
hypothesis (`next_tokens`), and shares its slots among *banks*, hypotheses that have met equally many forced tokens
(`count_met`): one that has met more never competes with one that has met less.

    met = tokens of the complete phrases + the most tokens of an incomplete phrase that the hypothesis ends with

Unordered, a phrase is complete where it appears anywhere, and two may overlap: 1 2 1 3 completes both [1 2 1] and [2 1
3]; one that is given twice must appear twice. Ordered, the phrases follow one another without overlap; the earliest
occurrence of each is taken, since any other leaves less of the output for the next.

All of this runs on the host: forced phrases are few and short.
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
from dragoman.search.logits_processors import check_token_ids

Tokens = tuple[int, ...]
CACHED = 4096  # hypotheses whose progress is cached


class PhraseProgress(NamedTuple):
    """How much of its forced phrases a hypothesis contains."""

    met: int  # tokens of the complete phrases
    unmet: list[Tokens]  # the phrases that may come next
    tail: Tokens  # the part of the hypothesis whose end may begin one of them


class ForcePhrasesProcessor:
    """Forces the output of sentence i to contain all of phrases[i]; a list of one entry holds for every sentence.

    `ordered` says for all, or for each, whether the phrases appear in their order.
    """

    def __init__(self, phrases: Sequence[Sequence[Sequence[int]]], ordered: bool | Sequence[bool] = False) -> None:
        """Hold each sentence's phrases of token ids, and whether they must come in this order."""
        for sentence_phrases in phrases:
            check_token_ids(sentence_phrases, {PAD, BOS, EOS}, "a forced phrase", allow_empty=False)
        self.phrases = [[tuple(phrase) for phrase in sentence_phrases] for sentence_phrases in phrases]
        self.ordered = [ordered] * len(phrases) if isinstance(ordered, bool) else list(ordered)
        self.match_tokens = {True: lru_cache(CACHED)(match_in_order), False: lru_cache(CACHED)(match_anywhere)}

    def __call__(self, log_p: Tensor, history: Tensor, rows: Tensor) -> Tensor:
        """Forbid </s> for hypotheses that do not yet contain all phrases of their sentence."""
        unmet = [
            [bool(self.match(tokens, row).unmet) for tokens in hypotheses]
            for row, hypotheses in zip(rows.tolist(), history.tolist(), strict=True)
        ]
        log_p = log_p.clone()
        log_p[..., EOS].masked_fill_(torch.tensor(unmet, device=log_p.device), -math.inf)
        return log_p

    def phrases_of(self, row: int) -> tuple[Tokens, ...]:
        """Return the phrases of sentence `row`, or the shared ones."""
        return tuple(self.phrases[row if len(self.phrases) > 1 else 0])

    def match(self, history: Sequence[int], row: int) -> PhraseProgress:
        """Return how much of the phrases of sentence `row` the tokens `history` contain."""
        ordered = self.ordered[row if len(self.phrases) > 1 else 0]
        return self.match_tokens[ordered](tuple(history), self.phrases_of(row))

    def count_forced(self, row: int) -> int:
        """Return how many tokens the phrases of sentence `row` have together."""
        return sum(map(len, self.phrases_of(row)))

    def count_met(self, history: Sequence[int], row: int) -> int:
        """Return how many forced tokens a hypothesis has: of complete phrases, and of the one that it is in."""
        met, unmet, tail = self.match(history, row)
        return met + max((max(matched_prefixes(tail, phrase)) for phrase in unmet), default=0)

    def next_tokens(self, history: Sequence[int], row: int) -> list[int]:
        """Return the tokens that continue or begin an incomplete phrase, those furthest in a phrase first."""
        _, unmet, tail = self.match(history, row)
        steps = [(n, phrase[n]) for phrase in unmet for n in matched_prefixes(tail, phrase)]
        return list(dict.fromkeys(token for _, token in sorted(steps, key=lambda step: -step[0])))


def match_anywhere(history: Tokens, phrases: tuple[Tokens, ...]) -> PhraseProgress:
    """Return the progress of phrases that may appear anywhere, in any order."""
    met, unmet = 0, []
    for phrase, times in Counter(phrases).items():
        n = len(phrase)
        count = sum(history[i : i + n] == phrase for i in range(len(history) - n + 1))
        met += n * min(count, times)
        if count < times:
            unmet.append(phrase)
    return PhraseProgress(met, unmet, history)


def match_in_order(history: Tokens, phrases: tuple[Tokens, ...]) -> PhraseProgress:
    """Return the progress of phrases that must follow one another without overlap."""
    met = start = 0
    for phrase in phrases:
        n = len(phrase)
        index = next((i for i in range(start, len(history) - n + 1) if history[i : i + n] == phrase), None)
        if index is None:
            return PhraseProgress(met, [phrase], history[start:])
        met, start = met + n, index + n
    return PhraseProgress(met, [], history[start:])


def matched_prefixes(tail: Tokens, phrase: Tokens) -> list[int]:
    """Return every n, 0 included, for which the tail ends with the first n tokens of a phrase, but not all."""
    return [n for n in range(min(len(phrase), len(tail) + 1)) if tail[len(tail) - n :] == phrase[:n]]


def share_slots(totals: Sequence[float], met: Sequence[int], most: int, slots: int) -> list[int]:
    """Order candidates: first those kept when a beam's slots are shared by forced tokens met, 0 … `most`.

    Each bank has an equal share, at least one slot, for its best. Slots that are left over or that a bank cannot fill
    go to the others. Where slots do not suffice, more forced tokens met go first. The kept ones, and after them the
    rest, are in the order of their totals.
    """
    share = max(1, slots // (most + 1))
    ranked = sorted(range(len(totals)), key=lambda c: -totals[c])
    filled: Counter[int] = Counter()
    keys = []  # (beyond its bank's share, −met, rank in its bank, candidate)
    for c in ranked:
        if totals[c] > -math.inf:
            rank = filled[met[c]]
            keys.append((rank >= share, -met[c], rank, c))
            filled[met[c]] += 1
    kept = {key[-1] for key in sorted(keys)[:slots]}
    return sorted(ranked, key=lambda c: c not in kept)
