"""One step of greedy search and one of beam search on the tensors of slot_search.py, and the tracing back of results.

    greedy_step    y_t = argmax p(y_t | y_<t, x), and whether the sentence is done    one program for each sentence
    beam_step      the extensions of k hypotheses that continue and that finish       one for each sentence
    trace_back     a finished hypothesis, from its last token to its first            one for each hypothesis

A beam's step is numbered as in search/beam.py; ranking.py computes 1, the k + 1 best tokens of every hypothesis.

The finished hypotheses (B, k) are sorted, best first: score, step at which each ended, its parent, log p of </s>, and
whether it ended in </s>. The backpointers (B, R, k) hold token, parent and log p of every step.
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
    encode_rank,
    index_of_rank,
    is_allowed,
    load_summary,
    logit_of_rank,
    summarize_logits,
    top_tokens,
)

# -- greedy search -----------------------------------------------------------------------------------------------------


@triton.jit
def _greedy_step(
    Z, TOPS, PARTS, T, TOKEN, DONE, REASON, MAX_LENGTH, MIN_LENGTH, TOKENS, LOG_PROBS, V, stride, parts, R,
    SIZE: tl.constexpr, PG: tl.constexpr, PP: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """One sentence per program: append its most probable allowed token, or mark it done with a reason."""
    b = tl.program_id(0)
    if tl.load(DONE + b) == 0:
        t = tl.load(T + b)
        Z += b.to(tl.int64) * stride
        never = tl.where(t < tl.load(MIN_LENGTH + b), EOS_, PAD_)
        lse, tops = load_summary(Z, TOPS, PARTS, b, V, never, parts, SIZE, PG, PP, GROUP)
        y = index_of_rank(tl.max(tops, 0)) * GROUP + tl.arange(0, GROUP)
        z = tl.load(Z + y, mask=is_allowed(y, V, never), other=-INFINITY).to(tl.float32)
        rank = tl.max(encode_rank(z, y), 0)
        most, token = logit_of_rank(rank), index_of_rank(rank)
        is_blocked = most == -INFINITY
        is_eos = (token == EOS_) & (most > -INFINITY)
        at_limit = t >= tl.load(MAX_LENGTH + b)
        if is_eos | (at_limit == 0) & (is_blocked == 0):
            tl.store(TOKENS + b * R + t, token)
            tl.store(LOG_PROBS + b * R + t, most - lse)
        if is_eos | is_blocked | at_limit:
            tl.store(REASON + b, tl.where(is_eos, 1, tl.where(at_limit, 0, 2)))
            tl.store(DONE + b, 1)
        else:
            tl.store(TOKEN + b, token)
            tl.store(T + b, t + 1)


def greedy_step(
    z: Tensor, V: int, t: Tensor, token: Tensor, done: Tensor, reason: Tensor, max_length: Tensor, min_length: Tensor,
    tokens: Tensor, log_probs: Tensor,
) -> None:  # fmt: skip
    """Take a step of greedy search in every slot: logits (B, ≥ V) update the other tensors; see GreedySlotSearch."""
    tops, sums = summarize_logits(z, V, done, 1)
    size, parts = power(tops.shape[1]), sums.shape[1]
    _greedy_step[(len(z),)](
        z, tops, sums, t, token, done, reason, max_length, min_length, tokens, log_probs, V, z.stride(0), parts,
        tokens.shape[1], GROUPS, size, power(parts), GROUP, num_warps=min(max(size // 1024, 1), 8),
    )  # fmt: skip


# -- beam search -------------------------------------------------------------------------------------------------------


@triton.jit
def _top_extensions(
    total, VALUES, CANDIDATES, rows, j, r, k: tl.constexpr, PK: tl.constexpr, PN: tl.constexpr, P2: tl.constexpr
):
    """The 2k best extensions in order: sum of log p, token, parent, and log p of the token, (P2,) each."""
    at = rows[:, None] * PN + tl.arange(0, PN)[None, :]
    values = tl.load(VALUES + at, mask=(j < k)[:, None], other=-INFINITY)
    candidates = tl.load(CANDIDATES + at, mask=(j < k)[:, None], other=EOS_)
    parents = tl.reshape(j[:, None] + tl.zeros((PK, PN), tl.int32), (PK * PN,))
    sums = tl.reshape(total[:, None] + values.to(tl.float64), (PK * PN,))
    values, candidates = tl.reshape(values, (PK * PN,)), tl.reshape(candidates, (PK * PN,))
    each = tl.arange(0, PK * PN)
    top = tl.full((P2,), -INFINITY, tl.float64)
    token = tl.full((P2,), EOS_, tl.int32)
    parent = tl.zeros((P2,), tl.int32)
    token_log_p = tl.full((P2,), -INFINITY, tl.float32)
    for i in range(2 * k):
        most = tl.max(sums, 0)
        is_best = each == tl.argmax(sums, 0)
        is_ith = r == tl.where(most > -INFINITY, i, -1)
        top = tl.where(is_ith, most, top)
        token = tl.where(is_ith, tl.sum(tl.where(is_best, candidates, 0), 0), token)
        parent = tl.where(is_ith, tl.sum(tl.where(is_best, parents, 0), 0), parent)
        token_log_p = tl.where(is_ith, tl.sum(tl.where(is_best, values, 0.0), 0), token_log_p)
        sums = tl.where(is_best, -INFINITY, sums)
    return top, token, parent, token_log_p


@triton.jit
def _insert(x, value, index, j, nothing):
    """x (PK,) with a value inserted at an index: the entries from there on move by one, the last drops out."""
    before = tl.sum(tl.where(j[None, :] == j[:, None] - 1, x[None, :], 0), 1)  # x_{j-1}; sums of one entry each
    before = tl.where(j == 0, nothing, before)
    return tl.where(j < index, x, tl.where(j == index, value, before)).to(x.dtype)


@triton.jit
def _add_finished(
    finished, step, origin, last, ended_by_eos, new, parent, token_log_p, t, j, r, k: tl.constexpr, PK: tl.constexpr
):
    """Insert those with a score in `new` into the sorted finished ones, and mark the hypotheses that they extend."""
    extended = tl.zeros((PK,), tl.int32)
    for _ in range(tl.sum((new > -INFINITY).to(tl.int32), 0)):
        most = tl.max(new, 0)
        is_best = r == tl.argmax(new, 0)
        from_ = tl.sum(tl.where(is_best, parent, 0), 0)
        log_p = tl.sum(tl.where(is_best, token_log_p, 0.0), 0)
        extended = tl.where(j == from_, 1, extended)
        index = tl.sum((finished >= most).to(tl.int32), 0)  # after all that score as much
        finished = _insert(finished, most, index, j, -INFINITY)
        step = _insert(step, t, index, j, 0)
        origin = _insert(origin, from_, index, j, 0)
        last = _insert(last, log_p, index, j, 0.0)
        ended_by_eos = _insert(ended_by_eos, 1, index, j, 0)
        finished = tl.where(j < k, finished, -INFINITY)
        new = tl.where(is_best, -INFINITY, new)
    return finished, step, origin, last, ended_by_eos, extended


@triton.jit
def _fill_with_truncated(finished, step, origin, ended_by_eos, truncated, t, j, k: tl.constexpr):
    """Fill the free finished slots with the best of the truncated hypotheses."""
    free = tl.sum((finished > -INFINITY).to(tl.int32), 0)
    for _ in range(k):
        most = tl.max(truncated, 0)
        best = tl.argmax(truncated, 0)
        put = (j == tl.where(most > -INFINITY, free, -1)) & (j < k)
        finished = tl.where(put, most, finished)
        step = tl.where(put, t, step)
        origin = tl.where(put, best, origin)
        ended_by_eos = tl.where(put, 0, ended_by_eos)
        truncated = tl.where(j == best, -INFINITY, truncated)
        free += 1
    return finished, step, origin, ended_by_eos


@triton.jit
def _reorder_ancestry(ANCESTRY, b, parent, rows, t, C, j, k: tl.constexpr, BLOCK: tl.constexpr):
    """a[j, s] ← a[parent of j, s] for s < t, and at t the parent itself, in place, for all k of sentence b."""
    for start in range(0, t + 1, BLOCK):
        s = start + tl.arange(0, BLOCK)
        theirs = ANCESTRY + (b * k + parent)[:, None] * C + s[None, :]
        a = tl.load(theirs, mask=(j < k)[:, None] & (s < t)[None, :], other=0).to(tl.int32)
        a = tl.where(s[None, :] == t, parent[:, None], a)
        tl.debug_barrier()  # all of a block is read before any of it is written
        ours = ANCESTRY + rows[:, None] * C + s[None, :]
        tl.store(ours, a.to(ANCESTRY.dtype.element_ty), mask=(j < k)[:, None] & (s <= t)[None, :])


@triton.jit
def _beam_step(
    VALUES, CANDIDATES, T, TOKEN, PARENT, TOTAL, SCORE, DONE, MAX_LENGTH, FACTORS, TOKENS, PARENTS, LOG_PROBS,
    FINISHED_SCORE, FINISHED_STEP, FINISHED_PARENT, FINISHED_LOG_PROB, FINISHED_HAS_EOS, COUNT, ANCESTRY, C, R,
    k: tl.constexpr, PK: tl.constexpr, PN: tl.constexpr, P2: tl.constexpr, EXACT: tl.constexpr,
    MAX_FINISHED: tl.constexpr, ANCESTORS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One sentence per program: steps 2 to 5 of the header, from candidates to hypotheses, finished ones and DONE."""
    b = tl.program_id(0)
    if tl.load(DONE + b) == 0:
        t = tl.load(T + b)
        max_length = tl.load(MAX_LENGTH + b)
        j, r = tl.arange(0, PK), tl.arange(0, P2)
        rows = b * k + j
        total = tl.load(TOTAL + rows, mask=j < k, other=-INFINITY)  # (PK,) float64
        top, token, parent, token_log_p = _top_extensions(total, VALUES, CANDIDATES, rows, j, r, k, PK, PN, P2)  # 2
        has_eos = (token == EOS_) & (top > -INFINITY)
        factor = tl.load(FACTORS + t + 1)

        # 3
        finished = tl.load(FINISHED_SCORE + rows, mask=j < k, other=-INFINITY)
        step = tl.load(FINISHED_STEP + rows, mask=j < k, other=0)
        origin = tl.load(FINISHED_PARENT + rows, mask=j < k, other=0)
        last = tl.load(FINISHED_LOG_PROB + rows, mask=j < k, other=0.0)
        ended_by_eos = tl.load(FINISHED_HAS_EOS + rows, mask=j < k, other=0)
        new = tl.where(has_eos & (r < k), top * factor, -INFINITY)
        count = tl.load(COUNT + b) + tl.sum((new > -INFINITY).to(tl.int32), 0)
        tl.store(COUNT + b, count)
        finished, step, origin, last, ended_by_eos, extended = _add_finished(
            finished, step, origin, last, ended_by_eos, new, parent, token_log_p, t, j, r, k, PK
        )
        # 5: at the maximum length, active hypotheses that did not just finish fill the free finished slots
        at_limit = t == max_length
        if at_limit:
            truncated = tl.load(SCORE + rows, mask=j < k, other=-INFINITY)
            truncated = tl.where((extended == 0) & (total > -INFINITY), truncated, -INFINITY)
            finished, step, origin, ended_by_eos = _fill_with_truncated(
                finished, step, origin, ended_by_eos, truncated, t, j, k
            )
        tl.store(FINISHED_SCORE + rows, finished, mask=j < k)
        tl.store(FINISHED_STEP + rows, step, mask=j < k)
        tl.store(FINISHED_PARENT + rows, origin, mask=j < k)
        tl.store(FINISHED_LOG_PROB + rows, last, mask=j < k)
        tl.store(FINISHED_HAS_EOS + rows, ended_by_eos, mask=j < k)

        # 4
        is_active = (has_eos == 0) & (r < 2 * k) & (top > -INFINITY)
        order = tl.cumsum(is_active.to(tl.int32), 0) - 1
        kept = is_active[:, None] & (order[:, None] == j[None, :])  # (P2, PK)
        exists = tl.sum(kept.to(tl.int32), 0) > 0
        total = tl.where(exists, tl.sum(tl.where(kept, top[:, None], 0.0), 0), -INFINITY)
        token_ = tl.where(exists, tl.sum(tl.where(kept, token[:, None], 0), 0), EOS_)
        parent_ = tl.where(exists, tl.sum(tl.where(kept, parent[:, None], 0), 0), 0)
        token_log_p_ = tl.sum(tl.where(kept, token_log_p[:, None], 0.0), 0)
        tl.store(TOTAL + rows, total, mask=j < k)
        tl.store(SCORE + rows, total * factor, mask=j < k)
        tl.store(TOKEN + rows, token_, mask=j < k)
        tl.store(PARENT + rows, parent_, mask=j < k)
        at = (b * R + t) * k + j
        tl.store(TOKENS + at, token_, mask=j < k)
        tl.store(PARENTS + at, parent_, mask=j < k)
        tl.store(LOG_PROBS + at, token_log_p_, mask=j < k)

        # 5
        most = tl.max(tl.where(j < k, total, -INFINITY), 0)
        reachable = most * factor
        if EXACT:
            reachable = tl.maximum(most * tl.load(FACTORS + t + 2), most * tl.load(FACTORS + max_length + 1))
        worst = tl.sum(tl.where(j == k - 1, finished, 0.0), 0)
        is_enough = (worst > -INFINITY) & (reachable <= worst)
        if MAX_FINISHED > 0:
            is_enough = count >= MAX_FINISHED
        is_done = at_limit | is_enough | (most == -INFINITY)
        if is_done:
            tl.store(DONE + b, 1)
        else:
            tl.store(T + b, t + 1)
            if ANCESTORS:
                _reorder_ancestry(ANCESTRY, b, parent_, rows, t, C, j, k, BLOCK)


def beam_step(
    z: Tensor, V: int, t: Tensor, token: Tensor, parent: Tensor, total: Tensor, score: Tensor, done: Tensor,
    max_length: Tensor, min_length: Tensor, candidates: Sequence[Tensor], factors: Tensor,
    backpointers: Sequence[Tensor], finished: Sequence[Tensor], count: Tensor, ancestry: Tensor | None, exact: bool,
    max_finished: int,
) -> None:  # fmt: skip
    """Take a step of beam search in every slot: logits (B · k, ≥ V) update the other tensors; see BeamSlotSearch."""
    (B, k), (values, tokens) = token.shape, candidates
    top_tokens(z, V, t, min_length, done, k, values, tokens)
    a = tokens if ancestry is None else ancestry
    _beam_step[(B,)](
        values, tokens, t, token, parent, total, score, done, max_length, factors, *backpointers, *finished,
        count, a, a.shape[-1], backpointers[0].shape[1], k, power(k), values.shape[-1], power(2 * k),
        exact, max_finished, ancestry is not None, 64, num_warps=1 if k < 9 else 4,
    )  # fmt: skip


# -- results -----------------------------------------------------------------------------------------------------------


@triton.jit
def _trace_back(
    SLOTS, SCORE, STEP, PARENT, LAST, HAS_EOS, TOKENS, PARENTS, LOG_PROBS, BUFFER, SCORES, FLOATS, R, length, k
):
    """One hypothesis per program: its score, length, </s> flag, tokens and log p, read backwards, into the buffer."""
    # The results are one buffer, behind one pointer for each type: five pointers into it would be aligned differently
    # from call to call, and Triton would compile the kernel for each alignment.
    i, count = tl.program_id(0), tl.num_programs(0)
    OUT, LOGS = BUFFER + 4 * count + i * length, FLOATS + (4 + length) * count + i * length
    slot = tl.load(SLOTS + i // k).to(tl.int32)
    at = slot * k + i % k
    score = tl.load(SCORE + at)
    tl.store(SCORES + i, score)
    if score > -INFINITY:
        n = tl.load(STEP + at)
        j = tl.load(PARENT + at)
        has_eos = tl.load(HAS_EOS + at)
        tl.store(BUFFER + 2 * count + i, n)
        tl.store(BUFFER + 3 * count + i, has_eos)
        if has_eos == 1:
            tl.store(LOGS + n, tl.load(LAST + at))
        for back in range(1, n + 1):
            at = (slot * R + n - back) * k + j
            tl.store(OUT + n - back, tl.load(TOKENS + at))
            tl.store(LOGS + n - back, tl.load(LOG_PROBS + at))
            j = tl.load(PARENTS + at)


def trace_back(
    slots: Tensor, finished: Sequence[Tensor], backpointers: Sequence[Tensor], buffer: Tensor, length: int
) -> None:
    """Write the finished hypotheses of some slots to `buffer`, as `split_results` in slot_search.py reads it."""
    R, k = backpointers[0].shape[1:]
    views = buffer, buffer.view(torch.float64), buffer.view(torch.float32)
    _trace_back[(len(slots) * k,)](slots, *finished, *backpointers, *views, R, length, k, num_warps=1)
