"""One step of greedy search and one of a beam on the tensors of a board (device_search.py), and the way back.

    pick      y_t = argmax p(y_t | y_<t, x), and whether that was the last      one program for each sentence
    choose    the extensions of k hypotheses that live on, and that end         one for each sentence
    walk      a hypothesis of the pool, from its end to its beginning           one for each hypothesis

A beam's step, numbered as in search/beam.py:

    1      the k + 1 best tokens of every hypothesis (ranking.py)
    2      the 2k best of log p(y_<t) + log p(y_t | y_<t, x), in order
    3      those of the first k that end go into the pool, by score
    4      the first k others live on
    5      done at the limit, where live ones take what is free in the pool, or when nothing alive can change the pool

The pool (B, k) is sorted, best first: score, step at which each ended, from which hypothesis, log p of </s>, and how.
The trail (B, R, k) holds token, parent and log p of every step.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton import next_power_of_2 as power

from dragoman.engines.cuda.kernels.ranking import (
    EOS_,
    GROUP,
    GROUPS,
    INFINITY,
    PAD_,
    best,
    logit_of,
    place_of,
    ranked,
    sayable,
    survey,
    surveyed,
)

# -- greedy search -----------------------------------------------------------------------------------------------------


@triton.jit
def _pick(
    Z, TOPS, PARTS, T, TOKEN, DONE, HOW, LONGEST, SHORTEST, TOKENS, LOG_PROBS, V, wide, parts, R,
    SIZE: tl.constexpr, PG: tl.constexpr, PP: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0)
    if tl.load(DONE + b) == 0:
        t = tl.load(T + b)
        Z += b.to(tl.int64) * wide
        never = tl.where(t < tl.load(SHORTEST + b), EOS_, PAD_)
        lse, tops = surveyed(Z, TOPS, PARTS, b, V, never, parts, SIZE, PG, PP, GROUP)
        y = place_of(tl.max(tops, 0)) * GROUP + tl.arange(0, GROUP)
        z = tl.load(Z + y, mask=sayable(y, V, never), other=-INFINITY).to(tl.float32)
        rank = tl.max(ranked(z, y), 0)
        most, token = logit_of(rank), place_of(rank)
        stuck = most == -INFINITY
        ends = (token == EOS_) & (most > -INFINITY)
        last = t >= tl.load(LONGEST + b)
        if ends | (last == 0) & (stuck == 0):
            tl.store(TOKENS + b * R + t, token)
            tl.store(LOG_PROBS + b * R + t, most - lse)
        if ends | stuck | last:
            tl.store(HOW + b, tl.where(ends, 1, tl.where(last, 0, 2)))
            tl.store(DONE + b, 1)
        else:
            tl.store(TOKEN + b, token)
            tl.store(T + b, t + 1)


def pick(
    z: Tensor, V: int, t: Tensor, token: Tensor, done: Tensor, how: Tensor, longest: Tensor, shortest: Tensor,
    tokens: Tensor, log_probs: Tensor,
) -> None:  # fmt: skip
    """A step of greedy search for every sentence: logits (B, ≥ V) into all the other tensors, see GreedyBoard."""
    tops, sums = survey(z, V, done, 1)
    size, parts = power(tops.shape[1]), sums.shape[1]
    _pick[(len(z),)](
        z, tops, sums, t, token, done, how, longest, shortest, tokens, log_probs, V, z.stride(0), parts,
        tokens.shape[1], GROUPS, size, power(parts), GROUP, num_warps=min(max(size // 1024, 1), 8),
    )  # fmt: skip


# -- a beam ------------------------------------------------------------------------------------------------------------


@triton.jit
def _longer(
    total, VALUES, CANDIDATES, mine, j, r, k: tl.constexpr, PK: tl.constexpr, PN: tl.constexpr, P2: tl.constexpr
):
    """Of all extensions the 2k best, in order: sum of log p, token, parent, and the log p of the token, (P2,) each."""
    at = mine[:, None] * PN + tl.arange(0, PN)[None, :]
    values = tl.load(VALUES + at, mask=(j < k)[:, None], other=-INFINITY)
    candidates = tl.load(CANDIDATES + at, mask=(j < k)[:, None], other=EOS_)
    parents = tl.reshape(j[:, None] + tl.zeros((PK, PN), tl.int32), (PK * PN,))
    sums = tl.reshape(total[:, None] + values.to(tl.float64), (PK * PN,))
    values, candidates = tl.reshape(values, (PK * PN,)), tl.reshape(candidates, (PK * PN,))
    each = tl.arange(0, PK * PN)
    top = tl.full((P2,), -INFINITY, tl.float64)
    token = tl.full((P2,), EOS_, tl.int32)
    parent = tl.zeros((P2,), tl.int32)
    said = tl.full((P2,), -INFINITY, tl.float32)
    for i in range(2 * k):
        most = tl.max(sums, 0)
        here = each == tl.argmax(sums, 0)
        found = r == tl.where(most > -INFINITY, i, -1)
        top = tl.where(found, most, top)
        token = tl.where(found, tl.sum(tl.where(here, candidates, 0), 0), token)
        parent = tl.where(found, tl.sum(tl.where(here, parents, 0), 0), parent)
        said = tl.where(found, tl.sum(tl.where(here, values, 0.0), 0), said)
        sums = tl.where(here, -INFINITY, sums)
    return top, token, parent, said


@triton.jit
def _insert(x, value, place, j, nothing):
    """x (PK,) with a value put in at a place; what stood there and behind it moves on by one."""
    before = tl.sum(tl.where(j[None, :] == j[:, None] - 1, x[None, :], 0), 1)  # x_{j-1}; sums of one entry each
    before = tl.where(j == 0, nothing, before)
    return tl.where(j < place, x, tl.where(j == place, value, before)).to(x.dtype)


@triton.jit
def _pooled(pool, step, origin, last, closed, new, parent, said, t, j, r, k: tl.constexpr, PK: tl.constexpr):
    """The pool with those whose score in `new` is no −∞, sorted as it was, and which hypotheses they come from."""
    gone = tl.zeros((PK,), tl.int32)
    for _ in range(tl.sum((new > -INFINITY).to(tl.int32), 0)):
        most = tl.max(new, 0)
        here = r == tl.argmax(new, 0)
        from_ = tl.sum(tl.where(here, parent, 0), 0)
        log_p = tl.sum(tl.where(here, said, 0.0), 0)
        gone = tl.where(j == from_, 1, gone)
        place = tl.sum((pool >= most).to(tl.int32), 0)  # behind all that score as much
        pool = _insert(pool, most, place, j, -INFINITY)
        step = _insert(step, t, place, j, 0)
        origin = _insert(origin, from_, place, j, 0)
        last = _insert(last, log_p, place, j, 0.0)
        closed = _insert(closed, 1, place, j, 0)
        pool = tl.where(j < k, pool, -INFINITY)
        new = tl.where(here, -INFINITY, new)
    return pool, step, origin, last, closed, gone


@triton.jit
def _filled(pool, step, origin, closed, cut, t, j, k: tl.constexpr):
    """The pool with what is free in it taken by the best of `cut`, hypotheses that have not ended."""
    free = tl.sum((pool > -INFINITY).to(tl.int32), 0)
    for _ in range(k):
        most = tl.max(cut, 0)
        here = tl.argmax(cut, 0)
        put = (j == tl.where(most > -INFINITY, free, -1)) & (j < k)
        pool = tl.where(put, most, pool)
        step = tl.where(put, t, step)
        origin = tl.where(put, here, origin)
        closed = tl.where(put, 0, closed)
        cut = tl.where(j == here, -INFINITY, cut)
        free += 1
    return pool, step, origin, closed


@triton.jit
def _inherit(ANCESTRY, b, parent, mine, t, C, j, k: tl.constexpr, BLOCK: tl.constexpr):
    """a[j, s] ← a[parent of j, s] for s < t, and at t the parent itself."""
    for start in range(0, t + 1, BLOCK):
        s = start + tl.arange(0, BLOCK)
        theirs = ANCESTRY + (b * k + parent)[:, None] * C + s[None, :]
        a = tl.load(theirs, mask=(j < k)[:, None] & (s < t)[None, :], other=0).to(tl.int32)
        a = tl.where(s[None, :] == t, parent[:, None], a)
        tl.debug_barrier()  # all of a block is read before any of it is written
        ours = ANCESTRY + mine[:, None] * C + s[None, :]
        tl.store(ours, a.to(ANCESTRY.dtype.element_ty), mask=(j < k)[:, None] & (s <= t)[None, :])


@triton.jit
def _choose(
    VALUES, CANDIDATES, T, TOKEN, PARENT, TOTAL, SCORE, DONE, LONGEST, FACTORS, TOKENS, PARENTS, LOG_PROBS,
    POOL_SCORE, POOL_STEP, POOL_PARENT, POOL_LOG_PROB, POOL_ENDED, ANCESTRY, C, R,
    k: tl.constexpr, PK: tl.constexpr, PN: tl.constexpr, P2: tl.constexpr, EXACT: tl.constexpr,
    ANCESTORS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0)
    if tl.load(DONE + b) == 0:
        t = tl.load(T + b)
        longest = tl.load(LONGEST + b)
        j, r = tl.arange(0, PK), tl.arange(0, P2)
        mine = b * k + j
        total = tl.load(TOTAL + mine, mask=j < k, other=-INFINITY)  # (PK,) float64
        top, token, parent, said = _longer(total, VALUES, CANDIDATES, mine, j, r, k, PK, PN, P2)  # 2
        ended = (token == EOS_) & (top > -INFINITY)
        factor = tl.load(FACTORS + t + 1)

        # 3
        pool = tl.load(POOL_SCORE + mine, mask=j < k, other=-INFINITY)
        step = tl.load(POOL_STEP + mine, mask=j < k, other=0)
        origin = tl.load(POOL_PARENT + mine, mask=j < k, other=0)
        last = tl.load(POOL_LOG_PROB + mine, mask=j < k, other=0.0)
        closed = tl.load(POOL_ENDED + mine, mask=j < k, other=0)
        new = tl.where(ended & (r < k), top * factor, -INFINITY)
        pool, step, origin, last, closed, gone = _pooled(
            pool, step, origin, last, closed, new, parent, said, t, j, r, k, PK
        )
        # 5: at the limit, live ones that did not just end take what is free in the pool
        at_limit = t == longest
        if at_limit:
            cut = tl.load(SCORE + mine, mask=j < k, other=-INFINITY)
            cut = tl.where((gone == 0) & (total > -INFINITY), cut, -INFINITY)
            pool, step, origin, closed = _filled(pool, step, origin, closed, cut, t, j, k)
        tl.store(POOL_SCORE + mine, pool, mask=j < k)
        tl.store(POOL_STEP + mine, step, mask=j < k)
        tl.store(POOL_PARENT + mine, origin, mask=j < k)
        tl.store(POOL_LOG_PROB + mine, last, mask=j < k)
        tl.store(POOL_ENDED + mine, closed, mask=j < k)

        # 4
        alive = (ended == 0) & (r < 2 * k) & (top > -INFINITY)
        order = tl.cumsum(alive.to(tl.int32), 0) - 1
        kept = alive[:, None] & (order[:, None] == j[None, :])  # (P2, PK)
        some = tl.sum(kept.to(tl.int32), 0) > 0
        total = tl.where(some, tl.sum(tl.where(kept, top[:, None], 0.0), 0), -INFINITY)
        token_ = tl.where(some, tl.sum(tl.where(kept, token[:, None], 0), 0), EOS_)
        parent_ = tl.where(some, tl.sum(tl.where(kept, parent[:, None], 0), 0), 0)
        said_ = tl.sum(tl.where(kept, said[:, None], 0.0), 0)
        tl.store(TOTAL + mine, total, mask=j < k)
        tl.store(SCORE + mine, total * factor, mask=j < k)
        tl.store(TOKEN + mine, token_, mask=j < k)
        tl.store(PARENT + mine, parent_, mask=j < k)
        trail = (b * R + t) * k + j
        tl.store(TOKENS + trail, token_, mask=j < k)
        tl.store(PARENTS + trail, parent_, mask=j < k)
        tl.store(LOG_PROBS + trail, said_, mask=j < k)

        # 5
        most = tl.max(tl.where(j < k, total, -INFINITY), 0)
        hope = most * factor
        if EXACT:
            hope = tl.maximum(most * tl.load(FACTORS + t + 2), most * tl.load(FACTORS + longest + 1))
        worst = tl.sum(tl.where(j == k - 1, pool, 0.0), 0)
        over = at_limit | ((worst > -INFINITY) & (hope <= worst)) | (most == -INFINITY)
        if over:
            tl.store(DONE + b, 1)
        else:
            tl.store(T + b, t + 1)
            if ANCESTORS:
                _inherit(ANCESTRY, b, parent_, mine, t, C, j, k, BLOCK)


def choose(
    z: Tensor, V: int, t: Tensor, token: Tensor, parent: Tensor, total: Tensor, score: Tensor, done: Tensor,
    longest: Tensor, shortest: Tensor, candidates: Sequence[Tensor], factors: Tensor, trail: Sequence[Tensor],
    pool: Sequence[Tensor], ancestry: Tensor | None, exact: bool,
) -> None:  # fmt: skip
    """A step of a beam for every sentence: logits (B · k, ≥ V) into all the other tensors, see BeamBoard."""
    (B, k), (values, tokens) = token.shape, candidates
    best(z, V, t, shortest, done, k, values, tokens)
    a = tokens if ancestry is None else ancestry
    _choose[(B,)](
        values, tokens, t, token, parent, total, score, done, longest, factors, *trail, *pool,
        a, a.shape[-1], trail[0].shape[1], k, power(k), values.shape[-1], power(2 * k),
        exact, ancestry is not None, 64, num_warps=1 if k < 9 else 4,
    )  # fmt: skip


# -- results -----------------------------------------------------------------------------------------------------------


@triton.jit
def _walk(SLOTS, SCORE, STEP, PARENT, LAST, ENDED, TOKENS, PARENTS, LOG_PROBS, FOUND, SCORES, FLOATS, R, room, k):
    # What is found lies in one piece, behind one pointer for each type: five pointers into it would be aligned now in
    # one way and now in another, and Triton would compile the kernel for each.
    i, count = tl.program_id(0), tl.num_programs(0)
    SAID, LOGS = FOUND + 4 * count + i * room, FLOATS + (4 + room) * count + i * room
    slot = tl.load(SLOTS + i // k).to(tl.int32)
    at = slot * k + i % k
    score = tl.load(SCORE + at)
    tl.store(SCORES + i, score)
    if score > -INFINITY:
        n = tl.load(STEP + at)
        j = tl.load(PARENT + at)
        ended = tl.load(ENDED + at)
        tl.store(FOUND + 2 * count + i, n)
        tl.store(FOUND + 3 * count + i, ended)
        if ended == 1:
            tl.store(LOGS + n, tl.load(LAST + at))
        for back in range(1, n + 1):
            here = (slot * R + n - back) * k + j
            tl.store(SAID + n - back, tl.load(TOKENS + here))
            tl.store(LOGS + n - back, tl.load(LOG_PROBS + here))
            j = tl.load(PARENTS + here)


def walk(slots: Tensor, pool: Sequence[Tensor], trail: Sequence[Tensor], found: Tensor, room: int) -> None:
    """All hypotheses in the pools of some slots to `found`, as `columns` in device_search.py reads it."""
    R, k = trail[0].shape[1:]
    views = found, found.view(torch.float64), found.view(torch.float32)
    _walk[(len(slots) * k,)](slots, *pool, *trail, *views, R, room, k, num_warps=1)
