"""Keep the k most probable beginnings; compare what ends by a length rule.

At each step, for every sentence at once:
    1. extend every live hypothesis by its k + 1 best tokens (of those at most one is </s>)
    2. rank all extensions by log p of the whole beginning
    3. those among the first k that chose </s> are finished: the best k finished ones stay in the pool, by score
    4. the best k others live on
    5. a sentence is done when k have finished and no live one scores higher now, or at its length limit, where
       live ones fill what is free in the pool, cut off

Live beginnings and the pool are themselves trees of (sentence, hypothesis) tensors, like the model's state, and are
reordered by the same function. A sentence that is done is frozen: what else is in the batch never changes it.

B sentences, k hypotheses, R room (the most tokens), V vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor

from dragoman.core import tree
from dragoman.core.interfaces import BOS, EOS, Capacity, Hypothesis, Step
from dragoman.core.registry import Part, Positive
from dragoman.search import Limits, Start, searches
from dragoman.search.rules import allowed
from dragoman.search.scoring import LengthRule, length_rules

LOOK_EVERY = 8  # steps between the host's looks at a GPU: a look waits for the device


@dataclass
class Prefixes:
    """Some hypotheses of each sentence: tokens and their log p (B, k, R), the sums and scores, the lengths (B, k)."""

    tokens: Tensor
    log_probs: Tensor  # float64
    total: Tensor
    score: Tensor
    length: Tensor  # tokens without </s>
    ended: Tensor  # whether </s> was chosen


@searches.register("beam")
class Beam:
    """The k most probable beginnings at each step; finished ones ranked by a length rule."""

    def __init__(self, *, size: Positive = 5, length: Annotated[Part, length_rules] = Part("mean")) -> None:
        self.size, self.rule = size, length_rules.build(length)

    def __call__(self, step: Step, start: Start, limits: Limits) -> list[list[Hypothesis]]:
        longest, k = limits.longest, self.size
        B, room = len(longest), int(longest.max()) + 1
        state = start(Capacity(k, room))
        live, pool = empty(B, k, room, longest.device), empty(B, k, room, longest.device)
        live.total[:, 0] = 0.0  # one beginning, the empty one
        token = longest.new_full((B, k), BOS)
        rows = torch.arange(B, device=longest.device)  # which sentence each row is
        done = torch.zeros(B, dtype=torch.bool, device=longest.device)
        results: list[list[Hypothesis]] = [[] for _ in range(B)]

        for t in range(room):
            log_p, state = step(token, state)
            extended, parents = extend(live, allowed(log_p, t, limits.shortest), t, self.rule)
            ending = extended.ended & (torch.arange(extended.total.shape[1], device=done.device) < k)
            pool = keep_best(pool, extended, ending, done)

            at_limit = (longest[rows] == t) & ~done
            if bool(at_limit.any()):
                pool = fill_cut(pool, live, extended, parents, ending, at_limit, t, self.rule)
            live, order = survivors(extended, k)
            parents = parents.gather(1, order)
            state, token = tree.reorder(state, parents), live.tokens[:, :, t]
            full = pool.score[:, -1] > -math.inf
            better = self.rule(live.total[:, 0], torch.full_like(live.total[:, 0], t + 1)) > pool.score[:, -1]
            done = done | at_limit | (full & ~better) | (live.total[:, 0] == -math.inf)

            if done.device.type != "cpu" and t % LOOK_EVERY and t + 1 < room:
                continue
            if bool(done.all()) or int(done.sum()) * 2 >= len(done):  # half are done: go on with the others alone
                gather(results, pool, rows, done)
                going = (~done).nonzero()[:, 0]
                if not len(going):
                    break
                rows, token, done = rows[going], token[going], done[going]
                live, pool, state = tree.select((live, pool, state), going)
        return results


def empty(B: int, k: int, room: int, device: Any) -> Prefixes:
    """No hypotheses yet: every sum and score is −∞."""
    numbers = torch.full((B, k), -math.inf, dtype=torch.float64, device=device)
    zeros = torch.zeros(B, k, dtype=torch.long, device=device)
    tokens = torch.full((B, k, room), EOS, device=device)
    log_probs = torch.zeros(B, k, room, dtype=torch.float64, device=device)
    return Prefixes(tokens, log_probs, numbers.clone(), numbers.clone(), zeros, zeros.bool())


def extend(live: Prefixes, log_p: Tensor, t: int, rule: LengthRule) -> tuple[Prefixes, Tensor]:
    """The 2k best extensions of each sentence in order of their sums, and the hypothesis each descends from."""
    k = log_p.shape[1]
    best, tokens = log_p.topk(min(k + 1, log_p.shape[2]), -1)  # (B, k, k+1)
    sums = (live.total[..., None] + best.double()).flatten(1)  # (B, k(k+1))
    total, order = sums.topk(min(2 * k, sums.shape[1]), -1)
    parents, token = order // best.shape[2], tokens.flatten(1).gather(1, order)
    # A shared second dimension (k = 1) is untouched by reorder, so the prefixes are widened first.
    wide = Prefixes(*(widen(x, parents) for x in vars(live).values()))
    wide.tokens[:, :, t] = token
    wide.log_probs[:, :, t] = best.flatten(1).double().gather(1, order)
    ended = (token == EOS) & (total > -math.inf)
    length = torch.full_like(wide.length, t) + ~ended
    return Prefixes(
        wide.tokens, wide.log_probs, total, rule(total, torch.full_like(total, t + 1)), length, ended
    ), parents


def widen(x: Tensor, parents: Tensor) -> Tensor:
    return x[torch.arange(len(parents), device=x.device)[:, None], parents]


def keep_best(pool: Prefixes, extended: Prefixes, which: Tensor, done: Tensor) -> Prefixes:
    """The pool with the extensions in `which`, cut to the best k by score; what is done stays, and in its order."""
    k = pool.score.shape[1]
    both = Prefixes(*(torch.cat(pair, 1) for pair in zip(vars(pool).values(), vars(extended).values(), strict=True)))
    both.score[:, k:].masked_fill_(~which, -math.inf)
    best = torch.where(done[:, None], torch.arange(k, device=done.device), both.score.topk(k, -1).indices)
    return Prefixes(*(widen(x, best) for x in vars(both).values()))


def fill_cut(
    pool: Prefixes,
    live: Prefixes,
    extended: Prefixes,
    parents: Tensor,
    ending: Tensor,
    at_limit: Tensor,
    t: int,
    rule: LengthRule,
) -> Prefixes:
    """At the limit, live hypotheses that did not just end take the free places of the pool, after those that ended."""
    gone = torch.zeros_like(live.ended).scatter_reduce(1, parents, ending, "amax", include_self=True)
    cut = Prefixes(*(x.clone() for x in vars(live).values()))
    cut.score = rule(live.total, torch.full_like(live.total, max(t, 1)))
    cut.length, cut.ended = torch.full_like(live.length, t), torch.zeros_like(live.ended)
    free = pool.score == -math.inf  # (B, k), the last ones
    which = at_limit[:, None] & ~gone & (live.total > -math.inf)
    order = cut.score.masked_fill(~which, -math.inf).argsort(-1, descending=True)
    cut = Prefixes(*(widen(x, order) for x in vars(cut).values()))
    which = which.gather(1, order)
    place = (free.cumsum(-1) - 1).clamp(min=0)  # the i-th free place takes the i-th cut one
    taken = Prefixes(*(widen(x, place) for x in vars(cut).values()))
    use = free & which.gather(1, place)

    def put(old: Tensor, new: Tensor) -> Tensor:
        return torch.where(use.view(*use.shape, *(1,) * (old.dim() - 2)), new, old)

    return Prefixes(*(put(a, b) for a, b in zip(vars(pool).values(), vars(taken).values(), strict=True)))


def survivors(extended: Prefixes, k: int) -> tuple[Prefixes, Tensor]:
    """The best k that have not ended, in order, and their places among the extensions."""
    total = extended.total.masked_fill(extended.ended, -math.inf)
    order = total.topk(min(k, total.shape[1]), -1).indices
    live = Prefixes(*(widen(x, order) for x in vars(extended).values()))
    live.total = total.gather(1, order)
    return live, order


def gather(results: list[list[Hypothesis]], pool: Prefixes, rows: Tensor, done: Tensor) -> None:
    """Hand out the pools of the sentences that are done, best first."""
    finished = done.nonzero()[:, 0]
    columns = [x[finished].tolist() for x in (pool.tokens, pool.log_probs, pool.score, pool.length, pool.ended)]
    for row, *fields in zip(rows[finished].tolist(), *columns, strict=True):
        for tokens, log_probs, score, n, ended in zip(*fields, strict=True):
            if score > -math.inf:
                end = "end" if ended else "length"
                results[row].append(Hypothesis(tokens[:n], log_probs[: n + ended], score, end))
