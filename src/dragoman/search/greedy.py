"""The most probable token at each step, until it is </s>."""

from __future__ import annotations

import math

import torch

from dragoman.core import tree
from dragoman.core.types import BOS, EOS, Capacity, Hypothesis, Step
from dragoman.search import Limits, Start, searches
from dragoman.search.logits_processors import constrained


@searches.register("greedy")
class Greedy:
    """y_t = argmax p(y_t | y_<t, x)."""

    size = 1
    draws = traces = seeks = looks = False

    def __call__(self, step: Step, start: Start, limits: Limits) -> list[list[Hypothesis]]:
        longest = limits.longest
        B, room = len(longest), int(longest.max()) + 1
        state = start(Capacity(1, room))
        rows = torch.arange(B, device=longest.device)  # which sentence each live row is
        token = longest.new_full((B, 1), BOS)
        chosen = longest.new_full((B, room), EOS)
        log_probs = torch.zeros(B, room, dtype=torch.float64, device=longest.device)
        ended = torch.zeros(B, dtype=torch.bool, device=longest.device)
        stuck = torch.full_like(longest, -1)  # where nothing was allowed any more
        for t in range(room):
            log_p, state = step(token, state)
            log_p = constrained(log_p, chosen[rows, None, :t], rows, limits)
            best, token = log_p.max(-1)  # (rows, 1) each
            ending = token[:, 0] == EOS
            dead = best[:, 0] == -math.inf
            stuck[rows[dead & (t < longest[rows])]] = t  # at its limit it is cut off, as any other
            live = ~ending & ~dead & (t < longest[rows])  # at its limit a sentence may still end, but not go on
            ended[rows[ending & ~dead]] = True
            keep = live | (ending & ~dead)
            chosen[rows[keep], t], log_probs[rows[keep], t] = token[keep, 0], best[keep, 0].double()
            if limits.tell is not None:
                limits.tell(rows[live], token[live, 0])
            if not live.all():
                rows, token, state = rows[live], token[live], tree.select(state, live.nonzero()[:, 0])
                if not len(rows):
                    break
        results = []
        columns = (chosen, log_probs, ended, longest, stuck)
        for tokens, logs, end, limit, at in zip(*(x.tolist() for x in columns), strict=True):
            n = tokens.index(EOS) if end else limit if at < 0 else at
            kept = logs[: n + end]
            why = "eos" if end else "length" if at < 0 else "no_valid_token"
            results.append([Hypothesis(tokens[:n], kept, sum(kept), why)])
        return results
