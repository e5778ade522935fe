"""Greedy search: the most probable token at each step, until it is </s>."""

from __future__ import annotations

import math

import torch

from dragoman.core import tree
from dragoman.core.types import BOS, EOS, Capacity, Hypothesis, Step
from dragoman.search import SearchConstraints, Start, searches
from dragoman.search.logits_processors import apply_constraints


@searches.register("greedy")
class Greedy:
    """y_t = argmax p(y_t | y_<t, x)."""

    num_hypotheses = 1
    is_sampling = supports_trace = supports_force_phrases = needs_attention = False

    def __call__(self, step: Step, start: Start, constraints: SearchConstraints) -> list[list[Hypothesis]]:
        """Choose the most probable allowed token at each step; return one hypothesis for each sentence."""
        max_lengths = constraints.max_lengths
        B, max_steps = len(max_lengths), int(max_lengths.max()) + 1
        state = start(Capacity(1, max_steps))
        rows = torch.arange(B, device=max_lengths.device)  # the sentence of each active row
        token = max_lengths.new_full((B, 1), BOS)
        chosen = max_lengths.new_full((B, max_steps), EOS)
        log_probs = torch.zeros(B, max_steps, dtype=torch.float64, device=max_lengths.device)
        has_eos = torch.zeros(B, dtype=torch.bool, device=max_lengths.device)
        blocked_at = torch.full_like(max_lengths, -1)  # the step at which no token was allowed
        for t in range(max_steps):
            log_p, state = step(token, state)
            log_p = apply_constraints(log_p, chosen[rows, None, :t], rows, constraints)
            best, token = log_p.max(-1)  # (rows, 1) each
            is_eos = token[:, 0] == EOS
            is_blocked = best[:, 0] == -math.inf
            at_limit = t >= max_lengths[rows]  # here a sentence may still end, but not continue
            blocked_at[rows[is_blocked & ~at_limit]] = t
            active = ~is_eos & ~is_blocked & ~at_limit
            has_eos[rows[is_eos & ~is_blocked]] = True
            keep = active | (is_eos & ~is_blocked)
            chosen[rows[keep], t], log_probs[rows[keep], t] = token[keep, 0], best[keep, 0].double()
            if constraints.on_token is not None:
                constraints.on_token(rows[active], token[active, 0])
            if not active.all():
                rows, token, state = rows[active], token[active], tree.select(state, active.nonzero()[:, 0])
                if not len(rows):
                    break
        results = []
        columns = (chosen, log_probs, has_eos, max_lengths, blocked_at)
        for tokens, logs, eos, limit, blocked in zip(*(x.tolist() for x in columns), strict=True):
            n = tokens.index(EOS) if eos else limit if blocked < 0 else blocked
            kept = logs[: n + eos]
            reason = "eos" if eos else "length" if blocked < 0 else "no_valid_token"
            results.append([Hypothesis(tokens[:n], kept, sum(kept), reason)])
        return results
