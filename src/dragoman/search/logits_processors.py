"""Logits processors: what a search may choose at a step, as log p with forbidden tokens at −∞.

What differs by sentence is a list with one entry for each sentence of the request; a list of one entry holds for all of
them. Nothing is renormalized: the log p of the remaining tokens is the model's, so outputs with and without constraints
compare. Where no token is allowed, the whole row is −∞ and the hypothesis cannot continue. Further processors:
force_phrases.py (phrases that an output contains), output_forms.py (outputs of a given form).

B sentences, K hypotheses, t tokens so far, V vocabulary, P phrases, L the tokens of the longest phrase.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from dragoman.core.errors import PartError
from dragoman.core.types import BOS, EOS, PAD, UNK
from dragoman.search import SearchConstraints

NONE = -1  # where a table has no token


def apply_constraints(log_p: Tensor, history: Tensor, rows: Tensor, constraints: SearchConstraints) -> Tensor:
    """Return log p (B, K, V) after `history` (B, K, t) under all constraints; row i is sentence `rows[i]`.

    <pad> and <s> are never chosen, </s> not before the minimum length.
    """
    log_p, min_lengths = log_p.clone(), constraints.min_lengths
    log_p[..., [PAD, BOS]] = -math.inf
    if not isinstance(min_lengths, int):
        too_short = (history.shape[2] < min_lengths[rows])[:, None]  # (B, 1)
        log_p[..., EOS] = torch.where(too_short, -math.inf, log_p[..., EOS])
    elif history.shape[2] < min_lengths:
        log_p[..., EOS] = -math.inf
    for processor in constraints.processors:
        log_p = processor(log_p, history, rows)
    return log_p


def forbid_tokens(log_p: Tensor, tokens: Tensor, is_forbidden: Tensor) -> Tensor:
    """Return log p (B, K, V) with −∞ for those of the tokens (B, K, n) that are forbidden (B, K, n)."""
    V = log_p.shape[2]
    mask = torch.zeros(*log_p.shape[:2], V + 1, dtype=torch.bool, device=log_p.device)
    mask.scatter_(2, torch.where(is_forbidden, tokens, V), True)  # allowed tokens go to a column of their own, cut off
    return log_p.masked_fill(mask[..., :V], -math.inf)


def entry_of_sentence(rows: Tensor, count: int) -> Tensor:
    """Return the index of each sentence's entry among `count`: 0 if one entry holds for all, else its own."""
    return torch.zeros_like(rows) if count == 1 else rows


class PrefixProcessor:
    """Forces the output of sentence i to begin with prefixes[i]; the first `given` tokens of it have probability 1."""

    def __init__(self, prefixes: Sequence[Sequence[int]], given: int = 0) -> None:
        self.given = given
        check_token_ids(prefixes, {PAD, BOS, EOS}, "a prefix")
        longest = max((len(prefix) for prefix in prefixes), default=0)
        padded = [[*prefix, *[NONE] * (longest - len(prefix))] for prefix in prefixes]
        self.tokens = torch.tensor(padded, dtype=torch.long).view(len(prefixes), longest)

    def __call__(self, log_p: Tensor, history: Tensor, rows: Tensor) -> Tensor:
        """Forbid all but the next token of the prefix, until it is complete; tokens chosen so far are not compared."""
        t = history.shape[2]
        if t >= self.tokens.shape[1]:
            return log_p
        self.tokens = self.tokens.to(log_p.device)  # once
        forced = self.tokens[entry_of_sentence(rows, len(self.tokens)), t][:, None, None]  # (B, 1, 1)
        others = torch.arange(log_p.shape[2], device=log_p.device) != forced  # (B, 1, V)
        log_p = log_p.masked_fill((forced != NONE) & others, -math.inf)
        return log_p.masked_fill(~others, 0.0) if t < self.given else log_p


class ForbidPhrasesProcessor:
    """Keeps the phrases of phrases[i] out of the output of sentence i: forbids the last token after all the others."""

    def __init__(self, phrases: Sequence[Sequence[Sequence[int]]]) -> None:
        for sentence_phrases in phrases:  # </s> may be the last token: an output must not end like this
            check_token_ids(sentence_phrases, {PAD, BOS}, "a forbidden phrase", allow_empty=False)
        P = max((len(sentence_phrases) for sentence_phrases in phrases), default=0)
        L = max((len(phrase) for sentence_phrases in phrases for phrase in sentence_phrases), default=1)
        table = torch.full((len(phrases), P, L), NONE)
        for i, sentence_phrases in enumerate(phrases):
            for j, phrase in enumerate(sentence_phrases):
                table[i, j, L - len(phrase) :] = torch.tensor(phrase)
        self.phrases = table

    def __call__(self, log_p: Tensor, history: Tensor, rows: Tensor) -> Tensor:
        """Forbid the last token of each phrase whose other tokens the history ends with."""
        self.phrases = self.phrases.to(log_p.device)  # once
        phrases = self.phrases[entry_of_sentence(rows, len(self.phrases)), None]  # (B, 1, P, L)
        start, last = phrases[..., :-1], phrases[..., -1]
        n, t = start.shape[3], history.shape[2]
        before = history.new_full((*history.shape[:2], max(n - t, 0)), BOS)  # of no phrase
        recent = torch.cat([before, history[..., max(t - n, 0) :]], -1)  # (B, K, L-1)
        matches = ((start == recent[:, :, None]) | (start == NONE)).all(-1)  # (B, K, P)
        return forbid_tokens(log_p, last.expand_as(matches), matches & (last != NONE))


class NoRepeatNgramProcessor:
    """Keeps every n-gram from appearing twice in an output (Paulus et al. 2018)."""

    def __init__(self, n: int) -> None:
        if n < 1:
            raise PartError(f"no_repeat_ngram_size is {n}; give 1 or more")
        self.n = n

    def __call__(self, log_p: Tensor, history: Tensor, rows: Tensor) -> Tensor:
        """Forbid tokens that would complete an n-gram that the history contains; `rows` is ignored."""
        t = history.shape[2]
        if t < self.n:
            return log_p
        ngrams = history.unfold(2, self.n, 1)  # (B, K, t-n+1, n)
        recent = history[:, :, None, t - self.n + 1 :]  # (B, K, 1, n-1)
        repeats = (ngrams[..., :-1] == recent).all(-1)
        return forbid_tokens(log_p, ngrams[..., -1], repeats)


class RepetitionPenaltyProcessor:
    """log p · θ for tokens that the output already contains, θ ≥ 1: Keskar et al. 2019 on log p, not on logits."""

    def __init__(self, penalty: float) -> None:
        if not 1.0 <= penalty < math.inf:
            raise PartError(f"repetition_penalty is {penalty}; give 1 (none) or more")
        self.penalty = penalty

    def __call__(self, log_p: Tensor, history: Tensor, rows: Tensor) -> Tensor:
        return log_p.scatter(2, history, log_p.gather(2, history) * self.penalty)


class NoUnkProcessor:
    """Forbids <unk>."""

    def __call__(self, log_p: Tensor, history: Tensor, rows: Tensor) -> Tensor:
        log_p = log_p.clone()
        log_p[..., UNK] = -math.inf
        return log_p


def check_token_ids(
    sequences: Sequence[Sequence[int]], forbidden: set[int], what: str, allow_empty: bool = True
) -> None:
    """Raise PartError if a sequence has a forbidden or negative id, or is empty and must not be."""
    for tokens in sequences:
        if not allow_empty and not tokens:
            raise PartError(f"{what} is empty; give at least one token")
        wrong = [token for token in tokens if token in forbidden or token < 0]
        if wrong:
            raise PartError(f"{what} contains the token {wrong[0]}, which no output can contain there; leave it out")
