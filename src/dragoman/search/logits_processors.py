"""What a search may choose at a step: log p with the forbidden tokens at −∞.

    Prefix              the result begins with the given tokens
    Forbidden           none of the given phrases stands anywhere in the result
    NoRepeat            no n-gram stands twice in the result
    RepetitionPenalty   log p · θ for tokens already said
    NoUnknown           <unk> is never said

More rules: phrases.py (what must be said), automata.py (results of a given form). What is given by sentence is a list
with one entry for each sentence of the request; a list of one entry holds for all of them. Nothing is renormalized: the
log p of what remains is what the model said, so that results under rules compare with results without. Where nothing
may come next, the whole row is −∞ and a hypothesis cannot go on.

B sentences, K hypotheses, t tokens so far, V vocabulary, P phrases, L the tokens of the longest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from dragoman.core.errors import PartError
from dragoman.core.types import BOS, EOS, PAD, UNK
from dragoman.search import Limits

NONE = -1  # where a table has no token


def constrained(log_p: Tensor, history: Tensor, rows: Tensor, limits: Limits) -> Tensor:
    """log p (B, K, V) after `history` (B, K, t), all that the request forbids at −∞; `rows` (B,): which sentences."""
    shortest = limits.shortest if isinstance(limits.shortest, int) else limits.shortest[rows]
    log_p = allowed(log_p, history.shape[2], shortest)
    for rule in limits.rules:
        log_p = rule(log_p, history, rows)
    return log_p


def allowed(log_p: Tensor, t: int, shortest: Tensor | int) -> Tensor:
    """Padding and <s> are never results; </s> only once the result is long enough. log_p (B, K, V), t tokens so far."""
    log_p = log_p.clone()
    log_p[..., [PAD, BOS]] = -math.inf
    if isinstance(shortest, int):
        if t < shortest:
            log_p[..., EOS] = -math.inf
    else:
        too_short = (t < shortest)[:, None]  # (B, 1)
        log_p[..., EOS] = torch.where(too_short, -math.inf, log_p[..., EOS])
    return log_p


def ban(log_p: Tensor, tokens: Tensor, which: Tensor) -> Tensor:
    """log p (B, K, V) with −∞ for those of the tokens (B, K, n) that are in `which` (B, K, n)."""
    V = log_p.shape[2]
    banned = torch.zeros(*log_p.shape[:2], V + 1, dtype=torch.bool, device=log_p.device)
    banned.scatter_(2, torch.where(which, tokens, V), True)  # what is not banned goes to a column of its own, cut off
    return log_p.masked_fill(banned[..., :V], -math.inf)


def own(rows: Tensor, count: int) -> Tensor:
    """Which of `count` entries is each sentence's own: the only one, if there is one for all."""
    return torch.zeros_like(rows) if count == 1 else rows


class Prefix:
    """The result of sentence i begins with the tokens prefixes[i]."""

    def __init__(self, prefixes: Sequence[Sequence[int]]) -> None:
        refuse(prefixes, {PAD, BOS, EOS}, "a prefix")
        longest = max((len(prefix) for prefix in prefixes), default=0)
        padded = [[*prefix, *[NONE] * (longest - len(prefix))] for prefix in prefixes]
        self.tokens = torch.tensor(padded, dtype=torch.long).view(len(prefixes), longest)

    def __call__(self, log_p: Tensor, history: Tensor, rows: Tensor) -> Tensor:
        t = history.shape[2]
        if t >= self.tokens.shape[1]:
            return log_p
        self.tokens = self.tokens.to(log_p.device)  # once
        forced = self.tokens[own(rows, len(self.tokens)), t][:, None, None]  # (B, 1, 1)
        others = torch.arange(log_p.shape[2], device=log_p.device) != forced  # (B, 1, V)
        return log_p.masked_fill((forced != NONE) & others, -math.inf)


class Forbidden:
    """No phrase of phrases[i] stands in the result of sentence i: its last token is banned once the others are said."""

    def __init__(self, phrases: Sequence[Sequence[Sequence[int]]]) -> None:
        for ones in phrases:
            refuse(ones, {PAD, BOS}, "a forbidden phrase", empty=False)  # </s> may stand last: not to end like this
        P = max((len(ones) for ones in phrases), default=0)
        L = max((len(phrase) for ones in phrases for phrase in ones), default=1)
        table = torch.full((len(phrases), P, L), NONE)
        for i, ones in enumerate(phrases):
            for j, phrase in enumerate(ones):
                table[i, j, L - len(phrase) :] = torch.tensor(phrase)
        self.phrases = table

    def __call__(self, log_p: Tensor, history: Tensor, rows: Tensor) -> Tensor:
        self.phrases = self.phrases.to(log_p.device)  # once
        phrases = self.phrases[own(rows, len(self.phrases)), None]  # (B, 1, P, L)
        start, last = phrases[..., :-1], phrases[..., -1]
        n, t = start.shape[3], history.shape[2]
        before = history.new_full((*history.shape[:2], max(n - t, 0)), BOS)  # of no phrase
        recent = torch.cat([before, history[..., max(t - n, 0) :]], -1)  # (B, K, L-1)
        said = ((start == recent[:, :, None]) | (start == NONE)).all(-1)  # (B, K, P)
        return ban(log_p, last.expand_as(said), said & (last != NONE))


class NoRepeat:
    """No n-gram stands twice in the result (Paulus et al. 2018)."""

    def __init__(self, n: int) -> None:
        if n < 1:
            raise PartError(f"the n-grams that may not repeat have {n} tokens; give 1 or more")
        self.n = n

    def __call__(self, log_p: Tensor, history: Tensor, rows: Tensor) -> Tensor:
        t = history.shape[2]
        if t < self.n:
            return log_p
        grams = history.unfold(2, self.n, 1)  # (B, K, t-n+1, n)
        recent = history[:, :, None, t - self.n + 1 :]  # (B, K, 1, n-1)
        again = (grams[..., :-1] == recent).all(-1)
        return ban(log_p, grams[..., -1], again)


class RepetitionPenalty:
    """log p · θ for tokens already said, θ ≥ 1: log p < 0, so they become less probable (Keskar et al. 2019).

    There the scores before the softmax are divided; a search sees log p alone. What is not said yet stays as it is,
    so the numbers of a step no longer sum to 1.
    """

    def __init__(self, penalty: float) -> None:
        if not 1.0 <= penalty < math.inf:
            raise PartError(f"a repetition penalty of {penalty} is not one; give 1 (none) or more")
        self.penalty = penalty

    def __call__(self, log_p: Tensor, history: Tensor, rows: Tensor) -> Tensor:
        return log_p.scatter(2, history, log_p.gather(2, history) * self.penalty)


class NoUnknown:
    """<unk> is never said."""

    def __call__(self, log_p: Tensor, history: Tensor, rows: Tensor) -> Tensor:
        log_p = log_p.clone()
        log_p[..., UNK] = -math.inf
        return log_p


def refuse(sequences: Sequence[Sequence[int]], ids: set[int], what: str, empty: bool = True) -> None:
    """An error where a sequence of tokens holds an id that cannot stand there, or is empty where it may not be."""
    for tokens in sequences:
        if not empty and not tokens:
            raise PartError(f"{what} is empty; give at least one token")
        wrong = [token for token in tokens if token in ids or token < 0]
        if wrong:
            raise PartError(f"{what} holds the token {wrong[0]}, which no result can hold there; leave it out")
