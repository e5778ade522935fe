"""Greedy and beam search whose every number stays on the device: a step is a fixed sequence of kernels.

A board has B slots for sentences. Each stands at a step t of its own, so that a slot whose sentence is done can be
given to another while the others go on. What search/greedy.py and search/beam.py do at step t, a board does for every
slot that is not done; these are the truth, in words and in equations.

    logits (B·k, V) ─advance→ token (B, k) for the next step, and the hypotheses they descend from, parent (B, k)

Histories are never copied. A step leaves its choices in a trail, (B, R, k); what has finished is a place in it, from
where one walks back when the sentence is done.

    beam   rank extensions by log p; the best k of them that ended join the pool; the best k others live on

What was found goes to the host in one piece; a Hypothesis is made of it when somebody asks for one.

A length rule enters as a table of factors, score = f[n] · log p. B slots, of which the first b are in use, k
hypotheses, R room (the most tokens, and </s>), V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, overload

import numpy as np
import torch
from torch import Tensor

from dragoman.core.types import BOS, EOS, PAD, Hypothesis
from dragoman.search import Search
from dragoman.search.beam import Beam
from dragoman.search.greedy import Greedy

ENDS = ("length", "eos", "no_valid_token")  # how a result ended, by number


class Board(Protocol):
    """The state of a search over B slots; `done` (B,) is 1 where a slot has nothing left to do, or is empty."""

    k: int
    t: Tensor  # (B,)
    token: Tensor  # (B, k): what the next step reads
    done: Tensor

    @property
    def parent(self) -> Tensor | None:
        """(B, k): which hypothesis each one was before; None: itself."""
        ...

    def reset(self, slots: Tensor, limits: Tensor) -> None:
        """New sentences in these slots, with the most and the fewest tokens of each, (2, N)."""
        ...

    def advance(self, logits: Tensor, b: int, ancestry: Tensor | None) -> None: ...

    def move(self, source: Tensor, to: Tensor) -> None: ...

    def taken(self, slots: Tensor, room: int) -> Tensor:
        """What has been found in some slots, up to `room` tokens of it, in one piece as `columns` reads it."""
        ...

    def results(self, found: Tensor, room: int) -> list[NBest]:
        """What was taken, on the host, as the results of each slot."""
        ...


class GreedyBoard:
    """y_t = argmax p(y_t | y_<t, x), for every slot."""

    k = 1
    parent = None

    def __init__(self, B: int, R: int, V: int, device: torch.device, kernels: Any) -> None:
        self.V, self.kernels = V, kernels
        self.state, self.limits = standing(B, device)
        self.t, self.done, self.how = self.state.unbind(0)
        self.longest, self.shortest = self.limits.unbind(0)
        self.token = torch.full((B, 1), BOS, dtype=torch.int32, device=device)
        self.tokens = torch.zeros(B, R, dtype=torch.int32, device=device)
        self.log_probs = torch.zeros(B, R, device=device)

    def reset(self, slots: Tensor, limits: Tensor) -> None:
        self.state.index_fill_(1, slots, 0)
        self.limits.index_copy_(1, slots, limits)
        self.token.index_fill_(0, slots, BOS)

    def advance(self, logits: Tensor, b: int, ancestry: Tensor | None) -> None:
        first = [x[:b] for x in (self.t, self.token, self.done, self.how, self.longest, self.shortest)]
        if self.kernels is not None:
            self.kernels.pick(logits, self.V, *first, self.tokens, self.log_probs)
            return
        t, token, done, how, longest, shortest = first
        log_p = allowed(logits[:, : self.V], t, shortest)
        value, best = log_p.max(-1)
        stuck, going = value == -math.inf, done == 0
        ends, last = (best == EOS) & ~stuck, t >= longest
        said = going & (ends | (~last & ~stuck))
        row = torch.arange(b, device=t.device)
        self.tokens[row, t.long()] = torch.where(said, best, self.tokens[row, t.long()]).int()
        self.log_probs[row, t.long()] = torch.where(said, value, self.log_probs[row, t.long()])
        over = going & (ends | stuck | last)
        how.copy_(torch.where(over, torch.where(ends, 1, torch.where(last, 0, 2)), how))
        on = going & ~over
        token[:, 0] = torch.where(on, best, token[:, 0]).int()
        t += on.int()
        done += over.int()

    def move(self, source: Tensor, to: Tensor) -> None:
        for x in (self.token, self.tokens, self.log_probs):
            x[to] = x[source]
        for x in (self.state, self.limits):
            x[:, to] = x[:, source]
        self.done[source] = 1

    def taken(self, slots: Tensor, room: int) -> Tensor:
        found = empty(len(slots), room, slots.device)
        here = (self.t, self.how, self.tokens[:, :room], self.log_probs[:, :room])
        for column, x in zip(columns(found, 1, room)[1:], here, strict=True):
            column.copy_(x[slots].view_as(column))
        return found

    def results(self, found: Tensor, room: int) -> list[NBest]:
        _, n, how, said, logs = (column.numpy() for column in columns(found, 1, room))
        counted = np.arange(room) < (n + (how == 1))[..., None]
        score = np.where(counted, logs, 0.0).sum(-1, dtype=np.float64)
        whole = Columns(score, n, how, said, logs)
        return [NBest(whole, row, 1) for row in range(len(n))]


class BeamBoard:
    """The k most probable beginnings of every slot, and the pool of those that ended."""

    def __init__(self, B: int, k: int, R: int, V: int, exact: bool, device: torch.device, kernels: Any) -> None:
        self.k, self.V, self.exact, self.kernels = k, V, exact, kernels
        self.state, self.limits = standing(B, device)
        self.t, self.done, _ = self.state.unbind(0)
        self.longest, self.shortest = self.limits.unbind(0)
        each = torch.zeros(B, k, dtype=torch.int32, device=device)
        self.token, self.parent = torch.full_like(each, BOS), each.clone()
        self.sums = torch.full((3, B, k), -math.inf, dtype=torch.float64, device=device)
        self.begun = self.sums[:, :1].clone()
        self.begun[:2, :, 0] = 0.0  # one beginning, the empty one, and an empty pool
        self.total, self.score, self.pool_score = self.sums.unbind(0)
        # The pool, best first: the score, the step at which each ended (its length), from which hypothesis, and how.
        self.pool_log_prob = torch.zeros(B, k, device=device)
        self.pool_step, self.pool_parent, self.pool_ended = (each.clone() for _ in range(3))
        # The trail.
        self.tokens, self.parents = (torch.zeros(B, R, k, dtype=torch.int32, device=device) for _ in range(2))
        self.log_probs = torch.zeros(B, R, k, device=device)
        self.factors = torch.ones(R + 3, dtype=torch.float64, device=device)
        wide = 1 << k.bit_length()  # k + 1, rounded up to a power of two
        self.values = torch.zeros(B * k, wide, device=device)
        self.candidates = torch.zeros(B * k, wide, dtype=torch.int32, device=device)

    @property
    def pool(self) -> tuple[Tensor, ...]:
        return self.pool_score, self.pool_step, self.pool_parent, self.pool_log_prob, self.pool_ended

    @property
    def trail(self) -> tuple[Tensor, ...]:
        return self.tokens, self.parents, self.log_probs

    def reset(self, slots: Tensor, limits: Tensor) -> None:
        self.state.index_fill_(1, slots, 0)
        self.limits.index_copy_(1, slots, limits)
        self.token.index_fill_(0, slots, BOS)
        self.sums.index_copy_(1, slots, self.begun.expand(-1, len(slots), -1))

    def advance(self, logits: Tensor, b: int, ancestry: Tensor | None) -> None:
        if self.kernels is None:
            self._advance(logits, b)
            return
        steps = self.t, self.token, self.parent, self.total, self.score, self.done, self.longest, self.shortest
        first, rows = [x[:b] for x in steps], b * self.k
        candidates = self.values[:rows], self.candidates[:rows]
        self.kernels.choose(
            logits, self.V, *first, candidates, self.factors, self.trail, self.pool, ancestry, self.exact
        )

    def move(self, source: Tensor, to: Tensor) -> None:
        for x in (self.token, self.parent, *self.pool[1:], *self.trail):
            x[to] = x[source]
        for x in (self.state, self.limits, self.sums):
            x[:, to] = x[:, source]
        self.done[source] = 1

    def taken(self, slots: Tensor, room: int) -> Tensor:
        found = empty(len(slots) * self.k, room, slots.device)
        walk = walked if self.kernels is None else self.kernels.walk
        walk(slots, self.pool, self.trail, found, room)
        return found

    def results(self, found: Tensor, room: int) -> list[NBest]:
        whole = Columns(*(column.numpy() for column in columns(found, self.k, room)))
        sizes = (whole.score > -math.inf).sum(1).tolist()
        return [NBest(whole, row, size) for row, size in enumerate(sizes)]

    # -- the same as the kernels of `choose` in torch's own operations: what they are tested against -------------------

    def _advance(self, logits: Tensor, b: int) -> None:
        k, t = self.k, self.t[:b].long()
        going, f = self.done[:b] == 0, self.factors
        log_p = allowed(logits[:, : self.V], t.repeat_interleave(k), self.shortest[:b].repeat_interleave(k))
        best, tokens = log_p.topk(min(k + 1, self.V), -1)  # (B·k, k+1)
        live, each = self.total[:b], best.shape[-1]
        sums = (live[..., None] + best.view(b, k, each).double()).flatten(1)
        total, order = sums.topk(min(2 * k, sums.shape[1]), -1)  # (B, 2k)
        parent, token = order // each, tokens.view(b, -1).gather(1, order)
        said = best.reshape(b, -1).gather(1, order)
        ended = (token == EOS) & (total > -math.inf)
        finished = ended & (torch.arange(order.shape[1], device=order.device) < k)
        at_limit = t == self.longest[:b]

        def merged(pool: list[Tensor], new: list[Tensor], by: Tensor) -> list[Tensor]:
            place = by.topk(k, -1).indices
            return [torch.cat([old, x.to(old.dtype)], 1).gather(1, place) for old, x in zip(pool, new, strict=True)]

        pool, scores = [x[:b] for x in self.pool], (total * f[t + 1, None]).masked_fill(~finished, -math.inf)
        now = t[:, None].expand_as(order)
        pool = merged(pool, [scores, now, parent, said, torch.ones_like(now)], torch.cat([pool[0], scores], 1))
        gone = torch.zeros_like(parent[:, :k]).scatter_add(1, parent, finished.long()) > 0
        cut = self.score[:b].masked_fill(~(at_limit[:, None] & ~gone & (live > -math.inf)), -math.inf)
        own = torch.arange(k, device=t.device).expand_as(live)
        new = [cut, t[:, None].expand_as(cut), own, torch.zeros_like(cut), torch.zeros_like(own)]
        # Those already in the pool come first, whatever they score.
        rank = torch.cat([pool[0].masked_fill(pool[0] > -math.inf, math.inf), cut], 1)
        first = rank.sort(dim=-1, descending=True, stable=True).indices[:, :k]
        pool = [torch.cat([old, x.to(old.dtype)], 1).gather(1, first) for old, x in zip(pool, new, strict=True)]

        alive = ~ended
        kept = (~alive).to(torch.int8).argsort(dim=-1, stable=True)[:, :k]
        total = total.masked_fill(~alive, -math.inf).gather(1, kept)
        token, parent, said = (x.gather(1, kept) for x in (token, parent, said))
        most = total.max(-1).values
        hope = most * f[t + 1]
        if self.exact:
            hope = torch.maximum(most * f[t + 2], most * f[self.longest[:b].long() + 1])
        worst = pool[0][:, -1]
        over = at_limit | ((worst > -math.inf) & ~(hope > worst)) | (most == -math.inf)

        def put(old: Tensor, new: Tensor) -> None:
            old.copy_(torch.where(going.view(-1, *(1,) * (old.dim() - 1)), new.to(old.dtype), old))

        row = torch.arange(b, device=t.device)
        for trail, x in zip(self.trail, (token, parent, said), strict=True):
            trail[row, t] = torch.where(going[:, None], x.to(trail.dtype), trail[row, t])
        for old, x in zip(self.pool, pool, strict=True):
            put(old[:b], x)
        put(self.token[:b], token)
        put(self.parent[:b], parent)
        put(self.total[:b], total)
        put(self.score[:b], total * f[t + 1, None])
        put(self.t[:b], t + ~over)
        put(self.done[:b], over)


def walked(slots: Tensor, pool: Sequence[Tensor], trail: Sequence[Tensor], found: Tensor, room: int) -> None:
    """The kernel `walk` in torch's own operations: all hypotheses go back together, a step at a time."""
    score, step, parent, last, ended = (x[slots] for x in pool)  # (N, k) each
    tokens, parents, log_probs = (x[slots, :room] for x in trail)  # (N, room, k) each
    *ends, said, logs = columns(found, score.shape[1], room)
    for column, x in zip(ends, (score, step, ended), strict=True):
        column.copy_(x)
    step, j, row = torch.where(score > -math.inf, step, 0), parent.long(), torch.arange(len(slots))[:, None]
    logs.scatter_(2, step[..., None].long(), (last * ended)[..., None])
    for s in range(room - 1, -1, -1):
        inside = s < step
        said[:, :, s] = tokens[row, s, j]
        logs[:, :, s] = torch.where(inside, log_probs[row, s, j], logs[:, :, s])
        j = torch.where(inside, parents[row, s, j].long(), j)


def allowed(logits: Tensor, t: Tensor, shortest: Tensor) -> Tensor:
    """log p (N, V) with −∞ for what is no result: padding, <s>, and </s> before the result is long enough."""
    log_p = torch.log_softmax(logits.float(), -1)
    log_p[:, [PAD, BOS]] = -math.inf
    log_p[:, EOS] = torch.where(t < shortest, -math.inf, log_p[:, EOS])
    return log_p


def standing(B: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Where each slot stands: its step, whether it is done, and how it ended; and its longest and shortest result.

    They lie together so that a slot is made new with one call for each kind of number, not with ten.
    """
    state = torch.zeros(3, B, dtype=torch.int32, device=device)
    state[1] = 1
    return state, torch.zeros(2, B, dtype=torch.long, device=device)


# -- from the device to results ----------------------------------------------------------------------------------------


def empty(hypotheses: int, room: int, device: torch.device) -> Tensor:
    """Room for so many hypotheses in one piece: one copy to the host costs less than five."""
    return torch.empty(hypotheses * (4 + 2 * room), dtype=torch.int32, device=device)


def columns(found: Tensor, k: int, room: int) -> tuple[Tensor, ...]:
    """Its parts: score (N, k) in float64, −∞ for none, length, how it ended, tokens (N, k, room), and their log p."""
    n = len(found) // (4 + 2 * room)
    score, length, how, said, logs = torch.split(found, [2 * n, n, n, n * room, n * room])
    score, logs = score.view(torch.float64), logs.view(torch.float32)
    return *(x.view(-1, k) for x in (score, length, how)), *(x.view(-1, k, room) for x in (said, logs))


class Columns(NamedTuple):
    """What `columns` says, on the host."""

    score: np.ndarray
    length: np.ndarray
    how: np.ndarray
    tokens: np.ndarray
    log_probs: np.ndarray


class NBest(Sequence[Hypothesis]):
    """The results of a sentence, best first, each made when somebody asks for it.

    Nobody asks for most of a beam's; to make all of them took 7.4 of 28 ms for beam 5 × 256.
    """

    def __init__(self, found: Columns, row: int, size: int) -> None:
        self.found, self.row, self.size = found, row, size

    def __len__(self) -> int:
        return self.size

    @overload
    def __getitem__(self, i: int) -> Hypothesis: ...

    @overload
    def __getitem__(self, i: slice) -> list[Hypothesis]: ...

    def __getitem__(self, i: int | slice) -> Hypothesis | list[Hypothesis]:
        these = range(self.size)[i]  # which knows of negative numbers, and where a list ends
        return self.made(these) if isinstance(these, int) else [self.made(j) for j in these]

    def made(self, j: int) -> Hypothesis:
        score, length, how, tokens, log_probs = (column[self.row, j] for column in self.found)
        said: list[int] = tokens[:length].tolist()
        logs: list[float] = log_probs[: length + (how == 1)].tolist()
        return Hypothesis(said, logs, float(score), ENDS[how])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(list(self))


# -- which searches these are ------------------------------------------------------------------------------------------


def serves(search: Search) -> bool:
    """Whether a board does what this search does."""
    if type(search) is Greedy:
        return True
    if type(search) is not Beam:
        return False
    return not search.shrinks and not search.looks and search.size <= 64 and scales(search)


def scales(search: Beam) -> bool:
    """Whether the length rule multiplies log p by what depends on the length alone, as far as a few numbers tell."""
    n = torch.arange(1, 40, dtype=torch.float64)
    one = search.rule(torch.full_like(n, -1.0), n)
    return all(
        bool(torch.isclose(search.rule(torch.full_like(n, -x), n), one * x, rtol=1e-9).all()) for x in (0.01, 700.0)
    )


def key(search: Search) -> tuple[int, bool]:
    """What boards of two searches must have in common to be the same; the length rule is but a table."""
    return (search.size, search.exact) if isinstance(search, Beam) else (0, False)


def board(search: Search, B: int, R: int, V: int, device: torch.device, kernels: Any) -> Board:
    """A board with at least B slots."""
    B = -(-B // 4) * 4  # so that the rows of its tensors are aligned: Triton compiles anew for those that are not
    if isinstance(search, Beam):
        return BeamBoard(B, search.size, R, V, search.exact, device, kernels)
    return GreedyBoard(B, R, V, device, kernels)


def prepare(board: Board, search: Search) -> None:
    """Take over the length rule of a search."""
    if isinstance(board, BeamBoard) and isinstance(search, Beam):
        n = torch.arange(len(board.factors), dtype=torch.float64).clamp(min=1)
        board.factors.copy_(search.rule(torch.ones_like(n), n))
