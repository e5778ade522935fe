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
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from dragoman.core.types import BOS, EOS, PAD
from dragoman.search.logits_processors import check_token_ids

T = TypeVar("T")
Tokens = tuple[int, ...]
CACHED = 4096  # hypotheses whose progress is cached


class PhraseProgress(NamedTuple):
    """How much of its forced phrases a hypothesis contains."""

    met: int  # tokens of the complete phrases
    unmet: list[Tokens]  # the phrases that may come next
    tail: Tokens  # the part of the hypothesis whose end may begin one of them


class ForcePhrasesProcessor:
    """Forces the output of sentence i to contain phrases[i], in this order where `ordered`; one entry holds for all."""

    def __init__(self, phrases: Sequence[Sequence[Sequence[int]]], ordered: bool | Sequence[bool] = False) -> None:
        for sentence_phrases in phrases:
            check_token_ids(sentence_phrases, {PAD, BOS, EOS}, "a forced phrase", allow_empty=False)
        self.phrases = [tuple(tuple(phrase) for phrase in sentence_phrases) for sentence_phrases in phrases]
        self.ordered = [ordered] * len(phrases) if isinstance(ordered, bool) else list(ordered)
        self.match_tokens = {True: lru_cache(CACHED)(match_in_order), False: lru_cache(CACHED)(match_anywhere)}

    def __call__(self, log_p: Tensor, history: Tensor, rows: Tensor) -> Tensor:
        """Forbid </s> for hypotheses that do not yet contain all phrases of their sentence."""
        log_p = log_p.clone()
        log_p[..., EOS].masked_fill_(self.lacks_phrases(history, rows), -math.inf)
        return log_p

    def lacks_phrases(self, history: Tensor, rows: Tensor) -> Tensor:
        """Return whether each hypothesis (B, K, t) lacks some of its phrases, (B, K)."""
        progress = self.for_each(self.match, history, rows)
        return torch.tensor([[bool(one.unmet) for one in sentence] for sentence in progress], device=history.device)

    def add_phrase_tokens(
        self, best: Tensor, tokens: Tensor, log_p: Tensor, history: Tensor, rows: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Append to the best tokens (B, k, n) and their log p those that would continue a phrase."""
        needed = self.for_each(self.next_tokens, history, rows)
        most = max((len(ids) for hypotheses in needed for ids in hypotheses), default=0)
        if not most:
            return best, tokens
        padded = [[[*ids, *[-1] * (most - len(ids))] for ids in hypotheses] for hypotheses in needed]
        extra = torch.tensor(padded).to(tokens)
        is_known = (extra[..., None] == tokens[..., None, :]).any(-1) | (extra < 0)
        extra = extra.clamp(min=0)
        value = log_p.gather(-1, extra).masked_fill(is_known, -math.inf)
        return torch.cat([best, value], -1), torch.cat([tokens, extra], -1)

    def rank_by_bank(self, sums: Tensor, tokens: Tensor, history: Tensor, rows: Tensor) -> Tensor:
        """Return the order of all candidates (B, C), equally many of each of k hypotheses, when banks share k slots."""
        orders, k = [], history.shape[1]
        per_hypothesis = sums.shape[1] // k
        columns = (x.tolist() for x in (rows, sums, tokens, history))
        for row, totals, ids, hypotheses in zip(*columns, strict=True):
            parents = (hypotheses[c // per_hypothesis] for c in range(len(ids)))
            candidates = [y if token == EOS else [*y, token] for y, token in zip(parents, ids, strict=True)]
            met = [self.count_met(candidate, row) for candidate in candidates]
            orders.append(share_slots(totals, met, self.count_forced(row), k))
        return torch.tensor(orders, device=sums.device)

    def for_each(self, f: Callable[[list[int], int], T], history: Tensor, rows: Tensor) -> list[list[T]]:
        """Return f(tokens, row) for each hypothesis (B, K, t)."""
        sentences = zip(rows.tolist(), history.tolist(), strict=True)
        return [[f(tokens, row) for tokens in hypotheses] for row, hypotheses in sentences]

    def match(self, history: Sequence[int], row: int) -> PhraseProgress:
        """Return how much of the phrases of sentence `row` the tokens `history` contain."""
        i = row if len(self.phrases) > 1 else 0
        return self.match_tokens[self.ordered[i]](tuple(history), self.phrases[i])

    def count_forced(self, row: int) -> int:
        """Return how many tokens the phrases of sentence `row` have together."""
        return sum(map(len, self.phrases[row if len(self.phrases) > 1 else 0]))

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

    Each bank has an equal share, at least one slot; what it cannot fill goes to the others. Where slots do not suffice,
    more forced tokens met go first. The kept ones, and after them the rest, are in the order of their totals.
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
