"""Keep the k most probable beginnings; compare what ends by a length rule.

At each step, for every sentence at once:
    1. extend every live hypothesis by its k + 1 best tokens (of those at most one is </s>)
    2. rank all extensions by log p of the whole beginning: the best k of each are enough, since no more can be kept
    3. those among the first k that chose </s> are finished: the best k finished ones stay in the pool, by score
    4. the best k others live on
    5. a sentence is done at its length limit, where live ones fill what is free in the pool, cut off; or before:

       usual   k have finished and no live one scores higher now
       exact   k have finished and no live one can still score higher: log p only falls, so what a live one can reach
               is the better of ending now and keeping its log p up to the longest length (a score divides by length)

With the ending `shrink` a finished hypothesis takes its place in the beam with it, until none is left.

    score = rule(log p, n) + β Σ_j log min(Σ_t a_tj, 1)          β: `coverage`, what of the source was looked at

Required phrases (phrases.py) change the ranking in 2: places are shared among beginnings that have met as many required
tokens, and tokens that would meet more are tried besides the best.

Live beginnings and the pool are themselves trees of (sentence, hypothesis) tensors, like the model's state, and are
reordered by the same function. A sentence that is done is frozen: what else is in the batch never changes it.

B sentences, k hypotheses, R room (the most tokens), S source positions, V vocabulary, C candidates.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from dragoman.core import tree
from dragoman.core.errors import UserError
from dragoman.core.registry import Part, PositiveInt
from dragoman.core.types import BOS, EOS, Capacity, Hypothesis, Step
from dragoman.search import Limits, Start, searches
from dragoman.search.force_phrases import Required, banks
from dragoman.search.logits_processors import constrained
from dragoman.search.scoring import covered, length_rules
from dragoman.search.tracing import record

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
    looked: Tensor  # (B, k, S): Σ_t a_tj, or S = 0 where nobody asks
    node: Tensor  # its number in a trace

    def at(self, places: Tensor) -> Prefixes:
        """Those at `places` (B, K), which may be more or fewer than there are."""
        rows = torch.arange(len(places), device=places.device)[:, None]
        return Prefixes(*(getattr(self, field.name)[rows, places] for field in fields(self)))


@searches.register("beam")
class Beam:
    """The k most probable beginnings at each step; finished ones ranked by a length rule."""

    draws = False
    traces = seeks = True

    def __init__(
        self,
        *,
        size: PositiveInt = 5,
        length: Annotated[Part, length_rules] = Part("mean"),
        ending: Literal["pool", "shrink"] = "pool",
        stop: Literal["usual", "exact"] = "usual",
        coverage: Annotated[float, Field(ge=0.0)] = 0.0,
    ) -> None:
        self.size, self.rule, self.coverage = size, length_rules.build(length), coverage
        self.shrinks, self.exact = ending == "shrink", stop == "exact"

    @property
    def looks(self) -> bool:
        """For a coverage penalty."""
        return self.coverage > 0

    def __call__(self, step: Step, start: Start, limits: Limits) -> list[list[Hypothesis]]:
        longest, k = limits.longest, self.size
        ends = set(longest.tolist())  # the steps at which some sentence is at its limit: no need to ask the device then
        B, room = len(longest), max(ends) + 1
        state = start(Capacity(k, room))
        live, pool = empty(B, k, room, longest.device), empty(B, k, room, longest.device)
        live.total[:, 0] = live.score[:, 0] = 0.0  # one beginning, the empty one
        token = longest.new_full((B, k), BOS)
        rows = torch.arange(B, device=longest.device)  # which sentence each row is
        done = torch.zeros(B, dtype=torch.bool, device=longest.device)
        results: list[list[Hypothesis]] = [[] for _ in range(B)]

        for t in range(room):
            log_p, state = step(token, state)
            live = self.look(live, state)
            log_p = constrained(log_p, live.tokens[:, :, :t], rows, limits)
            extended, parents = self.extend(live, log_p, t, rows, limits)
            finished = extended.ended & (rank(extended) < self.places(pool))  # (B, 2k)
            room_left, pool = self.places(pool), keep_best(pool, extended, finished, done)
            at_limit = (longest[rows] == t) & ~done
            if t in ends:
                pool = self.fill_cut(pool, live, parents, finished, at_limit, t, rows, limits)
            kept, order = survivors(extended, room_left if self.shrinks else None, k)
            if limits.traces is not None:
                record(
                    limits.traces, rows, t, live, extended, parents, finished, pool, kept, room_left, ~done, at_limit
                )

            live, parents = kept, parents.gather(1, order)
            state, token = moved(state, parents), live.tokens[:, :, t]
            done = done | at_limit | self.is_done(live, pool, longest[rows], t)

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

    # -- the steps above, one by one -------------------------------------------------------------------------------

    def look(self, live: Prefixes, state: Any) -> Prefixes:
        """Add where each hypothesis just looked."""
        if not self.looks:
            return live
        a = getattr(state, "attention", None)  # (B, k, S), 1 on padding
        if a is None:
            raise UserError("a coverage penalty needs a model that looks at its source; leave coverage at 0")
        return replace(live, looked=a.double() if live.looked.shape[2] == 0 else live.looked + a)

    def scored(self, total: Tensor, n: Tensor, looked: Tensor) -> Tensor:
        score = self.rule(total, n)
        return score if not self.looks else score + self.coverage * covered(looked)

    def extend(
        self, live: Prefixes, log_p: Tensor, t: int, rows: Tensor, limits: Limits, lowered: Tensor | None = None
    ) -> tuple[Prefixes, Tensor]:
        """The 2k best extensions of each sentence in order, and the hypothesis each descends from.

        `lowered` (B, 1, V) is taken off for the ranking alone.
        """
        k, ranked = log_p.shape[1], log_p if lowered is None else log_p - lowered
        best, tokens = ranked.topk(min(k + 1, log_p.shape[2]), -1)  # (B, k, k+1)
        required = [rule for rule in limits.rules if isinstance(rule, Required)]
        if required:
            best, tokens = with_wanted(best, tokens, ranked, live, required[0], t, rows)
        sums = (live.total[..., None] + best.double()).flatten(1)  # (B, C)
        said = log_p.gather(-1, tokens).masked_fill(best == -math.inf, -math.inf).double()  # (B, k, k+1)
        tokens = tokens.flatten(1)
        count, each = min(2 * k, sums.shape[1]), sums.shape[1] // k
        if required:
            order = by_banks(sums, tokens, live, each, required[0], t, rows, k)[:, :count]
        else:
            order = sums.topk(count, -1).indices
        total = (live.total[..., None] + said).flatten(1).gather(1, order)
        parents, token = order // each, tokens.gather(1, order)
        wide = live.at(parents)
        wide.tokens[:, :, t] = token
        wide.log_probs[:, :, t] = said.flatten(1).gather(1, order)
        ended = (token == EOS) & (total > -math.inf)
        score = self.scored(total, torch.full_like(total, t + 1), wide.looked)
        node = 1 + 2 * k * t + torch.arange(count, device=order.device).expand_as(order)
        length = torch.full_like(wide.length, t) + ~ended
        return replace(wide, total=total, score=score, length=length, ended=ended, node=node), parents

    def places(self, pool: Prefixes) -> Tensor:
        """How many hypotheses there is room for, (B, 1)."""
        k = torch.full_like(pool.length[:, :1], self.size)
        return k - (pool.score > -math.inf).sum(-1, keepdim=True) if self.shrinks else k

    def fill_cut(
        self,
        pool: Prefixes,
        live: Prefixes,
        parents: Tensor,
        finished: Tensor,
        at_limit: Tensor,
        t: int,
        rows: Tensor,
        limits: Limits,
    ) -> Prefixes:
        """At the limit, live hypotheses that did not just end take the free places of the pool, after the others.

        Those that have met all required phrases come first.
        """
        gone = torch.zeros_like(live.length).scatter_add(1, parents, finished.long()) > 0  # these just ended
        score = live.score.masked_fill(~(at_limit[:, None] & ~gone & (live.total > -math.inf)), -math.inf)
        order = score.argsort(-1, descending=True)
        for required in (rule for rule in limits.rules if isinstance(rule, Required)):
            late = (score == -math.inf) | lacking(live, required, t, rows)
            order = order.gather(1, late.gather(1, order).to(torch.int8).argsort(dim=-1, stable=True))
        cut = replace(live, score=score, length=torch.full_like(live.length, t), ended=torch.zeros_like(live.ended))
        free = pool.score == -math.inf  # (B, k), the last ones
        place = (free.cumsum(-1) - 1).clamp(min=0)  # the i-th free place takes the i-th cut one
        taken = cut.at(order.gather(1, place))
        use = free & (taken.score > -math.inf)

        def put(old: Tensor, new: Tensor) -> Tensor:
            return torch.where(use.view(*use.shape, *(1,) * (old.dim() - 2)), new, old)

        pool = same_looks(pool, live)
        return Prefixes(*(put(getattr(pool, f.name), getattr(taken, f.name)) for f in fields(pool)))

    def is_done(self, live: Prefixes, pool: Prefixes, longest: Tensor, t: int) -> Tensor:
        """(B,): whether nothing that is still alive could change the pool, as the stop has it."""
        best = live.total.max(-1).values
        if self.shrinks:
            return best == -math.inf
        hope = self.rule(best, torch.full_like(best, t + 1))
        if self.exact:  # what coverage adds is at most 0
            hope = torch.maximum(self.rule(best, torch.full_like(best, t + 2)), self.rule(best, (longest + 1).to(best)))
        return ((pool.score[:, -1] > -math.inf) & ~(hope > pool.score[:, -1])) | (best == -math.inf)


def empty(B: int, k: int, room: int, device: Any) -> Prefixes:
    """No hypotheses yet: every sum and score is −∞."""
    numbers = torch.full((B, k), -math.inf, dtype=torch.float64, device=device)
    zeros = torch.zeros(B, k, dtype=torch.long, device=device)
    tokens = torch.full((B, k, room), EOS, device=device)
    log_probs = torch.zeros(B, k, room, dtype=torch.float64, device=device)
    return Prefixes(
        tokens, log_probs, numbers.clone(), numbers.clone(), zeros, zeros.bool(), log_probs[:, :, :0], zeros.clone()
    )


def rank(extended: Prefixes) -> Tensor:
    return torch.arange(extended.total.shape[1], device=extended.total.device)


def same_looks(pool: Prefixes, live: Prefixes) -> Prefixes:
    """A pool that was made before the first look has no column for any."""
    if pool.looked.shape[2] == live.looked.shape[2]:
        return pool
    return replace(pool, looked=pool.looked.new_zeros(*pool.score.shape, live.looked.shape[2]))


def keep_best(pool: Prefixes, extended: Prefixes, which: Tensor, done: Tensor) -> Prefixes:
    """The pool with the extensions in `which`, cut to the best k by score; what is done stays, and in its order."""
    k, pool = pool.score.shape[1], same_looks(pool, extended)
    both = Prefixes(*(torch.cat([getattr(pool, f.name), getattr(extended, f.name)], 1) for f in fields(pool)))
    both.score[:, k:].masked_fill_(~which, -math.inf)
    best = torch.where(done[:, None], torch.arange(k, device=done.device), both.score.topk(k, -1).indices)
    return both.at(best)


def survivors(extended: Prefixes, places: Tensor | None, k: int) -> tuple[Prefixes, Tensor]:
    """The first k that have not ended (of the first `places`, if that is given), and where they stood."""
    alive = ~extended.ended
    if places is not None:
        alive = alive & (rank(extended) < places)
    order = (~alive).to(torch.int8).argsort(dim=-1, stable=True)[:, :k]
    live = extended.at(order)
    return replace(live, total=live.total.masked_fill(~alive.gather(1, order), -math.inf)), order


def moved(state: Any, parents: Tensor) -> Any:
    """The state with every hypothesis where its child now stands; nothing is copied where none has moved."""
    k = parents.shape[1]
    if k == 1:
        return state
    if parents.device.type == "cpu" and bool((parents == torch.arange(k)).all()):
        return state
    return tree.reorder(state, parents)


def gather(results: list[list[Hypothesis]], pool: Prefixes, rows: Tensor, done: Tensor) -> None:
    """Hand out the pools of the sentences that are done, best first."""
    finished = done.nonzero()[:, 0]
    columns = [x[finished].tolist() for x in (pool.tokens, pool.log_probs, pool.score, pool.length, pool.ended)]
    for row, *values in zip(rows[finished].tolist(), *columns, strict=True):
        for tokens, log_probs, score, n, ended in zip(*values, strict=True):
            if score > -math.inf:
                end = "eos" if ended else "length"
                results[row].append(Hypothesis(tokens[:n], log_probs[: n + ended], score, end))


# -- required phrases --------------------------------------------------------------------------------------------------


def lacking(live: Prefixes, required: Required, t: int, rows: Tensor) -> Tensor:
    """(B, k): true for a hypothesis that has not met all its phrases."""
    histories = live.tokens[:, :, :t].tolist()
    unmet = [
        [bool(required.standing(h, row).unmet) for h in hs] for hs, row in zip(histories, rows.tolist(), strict=True)
    ]
    return torch.tensor(unmet, device=rows.device)


def with_wanted(
    best: Tensor, tokens: Tensor, log_p: Tensor, live: Prefixes, required: Required, t: int, rows: Tensor
) -> tuple[Tensor, Tensor]:
    """The best tokens (B, k, k+1) of each hypothesis, and those that would meet more of its required phrases."""
    histories, numbers = live.tokens[:, :, :t].tolist(), rows.tolist()
    wanted = [[required.wanted(h, row) for h in hs] for hs, row in zip(histories, numbers, strict=True)]
    most = max((len(one) for ones in wanted for one in ones), default=0)
    if not most:
        return best, tokens
    extra = torch.tensor([[[*one, *[-1] * (most - len(one))] for one in ones] for ones in wanted]).to(tokens)
    known = (extra[..., None] == tokens[..., None, :]).any(-1) | (extra < 0)
    extra = extra.clamp(min=0)
    value = log_p.gather(-1, extra).masked_fill(known, -math.inf)
    return torch.cat([best, value], -1), torch.cat([tokens, extra], -1)


def by_banks(
    sums: Tensor, tokens: Tensor, live: Prefixes, each: int, required: Required, t: int, rows: Tensor, k: int
) -> Tensor:
    """The order of all candidates (B, C) when places are shared by how much of the phrases they have met."""
    orders = []
    histories = live.tokens[:, :, :t].tolist()
    for row, totals, said, before in zip(rows.tolist(), sums.tolist(), tokens.tolist(), histories, strict=True):
        met = [
            required.progress([*before[c // each], token] if token != EOS else before[c // each], row)
            for c, token in enumerate(said)
        ]
        orders.append(banks(totals, met, required.total(row), k))
    return torch.tensor(orders, device=sums.device)
