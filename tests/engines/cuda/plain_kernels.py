"""The kernels of search in plain loops, for tests without a GPU: Triton's interpreter takes 0.2 s for a beam's step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from dragoman.core.types import BOS, EOS, PAD
from dragoman.engines.cuda.slot_search import split_results


def allowed_log_p(z: Tensor, V: int, is_short: bool) -> list[float]:
    z = z[:V].float().clone()
    z[[PAD, BOS]] = -math.inf
    log_p: list[float] = z.log_softmax(-1).tolist()
    return log_p if not is_short else [*log_p[:EOS], -math.inf, *log_p[EOS + 1 :]]


def greedy_step(
    z: Tensor,
    V: int,
    t: Tensor,
    token: Tensor,
    done: Tensor,
    reason: Tensor,
    max_length: Tensor,
    min_length: Tensor,
    tokens: Tensor,
    log_probs: Tensor,
) -> None:
    for b in range(len(z)):
        if done[b]:
            continue
        n = int(t[b])
        log_p = allowed_log_p(z[b], V, n < int(min_length[b]))
        best = max(range(V), key=log_p.__getitem__)
        is_blocked, at_limit = log_p[best] == -math.inf, n >= int(max_length[b])
        is_eos = best == EOS and not is_blocked
        if is_eos or not (at_limit or is_blocked):
            tokens[b, n], log_probs[b, n] = best, log_p[best]
        if is_eos or is_blocked or at_limit:
            done[b], reason[b] = 1, 1 if is_eos else 0 if at_limit else 2
        else:
            token[b], t[b] = best, n + 1


def beam_step(
    z: Tensor,
    V: int,
    t: Tensor,
    token: Tensor,
    parent: Tensor,
    total: Tensor,
    score: Tensor,
    done: Tensor,
    max_length: Tensor,
    min_length: Tensor,
    candidates: object,
    factors: Tensor,
    backpointers: Sequence[Tensor],
    finished: Sequence[Tensor],
    count: Tensor,
    ancestry: Tensor | None,
    exact: bool,
    max_finished: int,
) -> None:
    assert ancestry is None  # which belongs to a Transformer's own step
    k, f = token.shape[1], factors.tolist()
    for b in range(len(token)):
        if done[b]:
            continue
        n, limit, sums = int(t[b]), int(max_length[b]), total[b].tolist()
        extensions: list[tuple[float, int, int, float]] = []  # sum, token, parent, log p
        for j in range(k):
            log_p = allowed_log_p(z[b * k + j], V, n < int(min_length[b]))
            extensions += [(sums[j] + log_p[y], y, j, log_p[y]) for y in range(V) if sums[j] + log_p[y] > -math.inf]
        extensions = sorted(extensions, key=lambda one: -one[0])[: 2 * k]

        ends = [one for one in extensions[:k] if one[1] == EOS]
        pool: list[Any] = [one for one in zip(*(x[b].tolist() for x in finished), strict=True) if one[0] > -math.inf]
        count[b] += len(ends)
        pool += [(value * f[n + 1], n, j, last, 1) for value, _, j, last in ends]
        pool = sorted(pool, key=lambda one: -one[0])[:k]
        if n == limit:
            others = set(range(k)) - {j for _, _, j, _ in ends}
            cut = [(float(score[b, j]), n, j, 0.0, 0) for j in others if sums[j] > -math.inf]
            pool = (pool + sorted(cut, key=lambda one: -one[0]))[:k]
        for i, entry in enumerate(pool):
            for column, value in zip(finished, entry, strict=True):
                column[b, i] = value

        kept = [one for one in extensions if one[1] != EOS][:k]
        kept += [(-math.inf, EOS, 0, 0.0)] * (k - len(kept))
        for i, (value, y, j, last) in enumerate(kept):
            total[b, i], score[b, i], token[b, i], parent[b, i] = value, value * f[n + 1], y, j
            for column, pointer in zip(backpointers, (y, j, last), strict=True):
                column[b, n, i] = pointer
        best = kept[0][0]
        reachable = max(best * f[n + 2], best * f[limit + 1]) if exact else best * f[n + 1]
        is_enough = count[b] >= max_finished if max_finished else len(pool) == k and reachable <= pool[-1][0]
        if n == limit or best == -math.inf or is_enough:
            done[b] = 1
        else:
            t[b] = n + 1


def trace_back(
    slots: Tensor, finished: Sequence[Tensor], backpointers: Sequence[Tensor], buffer: Tensor, length: int
) -> None:
    (score, step, parent, last, has_eos), (tokens, parents, log_probs) = finished, backpointers
    k = score.shape[1]
    out_score, out_length, out_reason, out_tokens, out_log_probs = split_results(buffer, k, length)
    for i, slot in enumerate(slots.tolist()):
        out_score[i], out_length[i], out_reason[i] = score[slot], step[slot], has_eos[slot]
        for r in range(k):
            if score[slot, r] == -math.inf:
                continue
            n, j = int(step[slot, r]), int(parent[slot, r])
            if has_eos[slot, r]:
                out_log_probs[i, r, n] = last[slot, r]
            for s in reversed(range(n)):
                out_tokens[i, r, s], out_log_probs[i, r, s] = tokens[slot, s, j], log_probs[slot, s, j]
                j = int(parents[slot, s, j])
