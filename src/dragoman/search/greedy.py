"""Greedy search: the most probable token at each step, until it is </s>. Sampling shares its loop."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from dragoman.core import tree
from dragoman.core.types import BOS, EOS, Capacity, Hypothesis, Step
from dragoman.search import OnToken, SearchConstraints, Start, searches
from dragoman.search.logits_processors import apply_constraints

Choose = Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]]  # log p (B, K, V), rows (B,), t → log p, token (B, K)


@searches.register("greedy")
class Greedy:
    """y_t = argmax p(y_t | y_<t, x)."""

    num_hypotheses = 1
    is_sampling = supports_trace = supports_force_phrases = needs_attention = False

    def __call__(self, step: Step, start: Start, constraints: SearchConstraints) -> list[list[Hypothesis]]:
        def most_probable(log_p: Tensor, rows: Tensor, t: int) -> tuple[Tensor, Tensor]:
            return log_p.max(-1)

        return extend_independently(step, start, constraints, 1, most_probable, constraints.on_token)


def extend_independently(
    step: Step, start: Start, constraints: SearchConstraints, K: int, choose: Choose, on_token: OnToken | None = None
) -> list[list[Hypothesis]]:
    """Extend K hypotheses of each sentence by the tokens that `choose` returns, until </s>; the best score first."""
    max_lengths = constraints.max_lengths
    B, R, device = len(max_lengths), int(max_lengths.max()) + 1, max_lengths.device
    state = start(Capacity(K, R))
    rows = torch.arange(B, device=device)  # the sentence of each row
    token = max_lengths.new_full((B, K), BOS)
    tokens = max_lengths.new_full((B, K, R), EOS)
    log_probs = torch.zeros(B, K, R, dtype=torch.float64, device=device)
    active = torch.ones(B, K, dtype=torch.bool, device=device)
    has_eos, length = ~active, max_lengths.new_zeros(B, K)
    for t in range(R):
        log_p, state = step(token, state)
        log_p = apply_constraints(log_p, tokens[rows, :, :t], rows, constraints)  # (B, K, V)
        chosen, token = choose(log_p, rows, t)
        active = active & (chosen > -math.inf)  # where no token is allowed, a hypothesis stops
        is_eos = active & (token == EOS)
        active = active & ~is_eos & (t < max_lengths[rows])[:, None]  # at its limit it may still end, not continue
        token = torch.where(active, token, EOS)
        tokens[rows, :, t], log_probs[rows, :, t] = token, torch.where(active | is_eos, chosen.double(), 0.0)
        has_eos[rows] |= is_eos
        length[rows] += active
        remaining = active.any(-1)
        if on_token is not None:
            on_token(rows[remaining], token[remaining, 0])
        if not remaining.all():
            rows, token, active = rows[remaining], token[remaining], active[remaining]
            state = tree.select(state, remaining.nonzero()[:, 0])
            if not len(rows):
                break
    columns = (x.tolist() for x in (tokens, log_probs, length, has_eos, max_lengths))
    return [read_hypotheses(*fields) for fields in zip(*columns, strict=True)]


def read_hypotheses(
    tokens: list[list[int]], log_probs: list[list[float]], lengths: list[int], has_eos: list[bool], max_length: int
) -> list[Hypothesis]:
    """Return the hypotheses of one sentence, best score first; duplicates are kept."""
    hypotheses = []
    for y, logs, n, eos in zip(tokens, log_probs, lengths, has_eos, strict=True):
        kept = logs[: n + eos]
        reason = "eos" if eos else "length" if n == max_length else "no_valid_token"
        hypotheses.append(Hypothesis(y[:n], kept, sum(kept), reason))
    return sorted(hypotheses, key=lambda hypothesis: -hypothesis.score)
