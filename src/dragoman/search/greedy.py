"""The most probable token at each step, until it is </s>."""

from __future__ import annotations

import torch

from dragoman.core import tree
from dragoman.core.interfaces import BOS, EOS, Capacity, Hypothesis, Step
from dragoman.search import Limits, Start, searches
from dragoman.search.rules import allowed


@searches.register("greedy")
class Greedy:
    """y_t = argmax p(y_t | y_<t, x)."""

    size = 1

    def __call__(self, step: Step, start: Start, limits: Limits) -> list[list[Hypothesis]]:
        longest = limits.longest
        B, room = len(longest), int(longest.max()) + 1
        state = start(Capacity(1, room))
        rows = torch.arange(B, device=longest.device)  # which sentence each live row is
        token = longest.new_full((B, 1), BOS)
        chosen = longest.new_full((B, room), EOS)
        log_probs = torch.zeros(B, room, dtype=torch.float64, device=longest.device)
        ended = torch.zeros(B, dtype=torch.bool, device=longest.device)
        for t in range(room):
            log_p, state = step(token, state)
            best, token = allowed(log_p, t, limits.shortest).max(-1)  # (rows, 1) each
            ending = token[:, 0] == EOS
            live = ~ending & (t < longest[rows])  # at its limit a sentence may still end, but not go on
            ended[rows[ending]] = True
            keep = live | ending
            chosen[rows[keep], t], log_probs[rows[keep], t] = token[keep, 0], best[keep, 0].double()
            if not live.all():
                rows, token, state = rows[live], token[live], tree.select(state, live.nonzero()[:, 0])
                if not len(rows):
                    break
        results = []
        for tokens, logs, end, limit in zip(
            chosen.tolist(), log_probs.tolist(), ended.tolist(), longest.tolist(), strict=True
        ):
            n = tokens.index(EOS) if end else limit
            kept = logs[: n + end]
            results.append([Hypothesis(tokens[:n], kept, sum(kept), "end" if end else "length")])
        return results
