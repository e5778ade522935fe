"""Greedy and beam search beside a CPU's step: the wide rows stay in torch, what is left of them is small and in numpy.

What search/greedy.py and search/beam.py do at each step, for requests without rules; those two are the truth. Here
histories are never copied: each step leaves its choices in a trail, (R, B, k), and what has finished is a place in it,
from where one walks back when the sentence is done.

    best n of V    the n blocks of BLOCK columns with the largest maxima hold them: look at n · BLOCK columns, not at V
                   (320 rows of 8,000, the best 6: 1.3 ms instead of 3.4)

B sentences, k hypotheses, M = B·k rows, R room (the most tokens, and </s>), V vocabulary, C candidates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dragoman.core.types import BOS, EOS, PAD, Capacity, Hypothesis, Memory
from dragoman.engines.cpu.transformer_step import BLOCK, Cache, Transformer
from dragoman.search.beam import Beam

Numbers = np.ndarray[Any, np.dtype[Any]]


@dataclass
class Lengths:
    """The shortest and longest results, (B,) each, in tokens without </s>."""

    longest: Numbers
    shortest: Numbers


def best(logits: Tensor, short: Numbers, n: int) -> tuple[Numbers, Numbers]:
    """The n largest log p of each row (M, V) in order, and their tokens; rows in `short` (M,) may not end yet."""
    log_p = torch.log_softmax(logits, -1)
    whole: Numbers = log_p.numpy()
    whole[:, [PAD, BOS]] = -np.inf  # never results, though they have a share of the probability
    if short.any():
        whole[short, EOS] = -np.inf
    M, V = log_p.shape
    if n == 1:  # 64 rows of 8,000: numpy 35 µs, torch's max 440
        token = whole.argmax(1)[:, None]
        return whole[np.arange(M)[:, None], token], token
    n, blocks = min(n, V), V // BLOCK
    if n >= blocks:
        found = log_p.topk(n, -1)
        return found.values.numpy(), found.indices.numpy()
    top = log_p.view(M, blocks, BLOCK).amax(-1).topk(n, -1, sorted=False).indices  # (M, n)
    rows, chosen = np.arange(M)[:, None], top.numpy()
    near = torch.from_numpy((rows * blocks + chosen).ravel())
    value, where = (x.numpy() for x in log_p.view(-1, BLOCK).index_select(0, near).view(M, n * BLOCK).topk(n, -1))
    return value, chosen[rows, where // BLOCK] * BLOCK + where % BLOCK


# -- greedy ------------------------------------------------------------------------------------------------------------


def greedy(model: Transformer, memory: Memory, lengths: Lengths) -> list[list[Hypothesis]]:
    """y_t = argmax p(y_t | y_<t, x), until it is </s>."""
    B, room = len(lengths.longest), int(lengths.longest.max()) + 1
    cache = model.start(memory, Capacity(1, room))
    tokens, log_probs = np.full((B, room), EOS), np.zeros((B, room))
    ended, count = np.zeros(B, bool), lengths.longest.copy()
    rows, live, token = np.arange(B), np.ones(B, bool), np.full((B, 1), BOS)
    for t in range(room):
        value, found = best(model.logits(torch.from_numpy(token), cache), t < lengths.shortest[rows], 1)
        token, ending, limit = found, found[:, 0] == EOS, lengths.longest[rows] <= t
        keep = live & (ending | ~limit)  # at its limit a sentence may still end, but not go on
        tokens[rows[keep], t], log_probs[rows[keep], t] = found[keep, 0], value[keep, 0]
        over = rows[live & ending]
        ended[over], count[over] = True, t
        live = live & ~ending & ~limit
        rows, token, cache, live = together(rows, token, cache, live)
        if not len(rows):
            break
    return [
        [Hypothesis(words[:n], logs[: n + end], sum(logs[: n + end]), "eos" if end else "length")]
        for words, logs, n, end in zip(tokens.tolist(), log_probs.tolist(), count.tolist(), ended.tolist(), strict=True)
    ]


def together(rows: Numbers, token: Numbers, cache: Cache, live: Numbers) -> tuple[Numbers, Numbers, Cache, Numbers]:
    """Go on without the sentences that are done, once they are a quarter: moving the others has its cost, too."""
    if live.sum() * 4 > len(live) * 3:
        return rows, token, cache, live
    going = live.nonzero()[0]
    if len(going):
        cache = cache.select(torch.from_numpy(going))
    return rows[going], token[going], cache, live[going]


# -- beam --------------------------------------------------------------------------------------------------------------


@dataclass
class Pool:
    """The best finished hypotheses of each sentence, (B, k) each; −∞ where there is none."""

    score: Numbers
    t: Numbers  # the step it ended at: its length without </s>
    slot: Numbers  # the hypothesis it was before that step
    last: Numbers  # log p of </s>
    ended: Numbers  # whether </s> was chosen

    def columns(self) -> list[Numbers]:
        return [self.score, self.t, self.slot, self.last, self.ended]

    def keep_best(self, new: Pool, done: Numbers) -> None:
        """The best k of these and the new ones; what is done stays as it is."""
        k = self.score.shape[1]
        order = np.argsort(-np.concatenate([self.score, new.score], 1), axis=1, kind="stable")[:, :k]
        order[done] = np.arange(k)
        rows = np.arange(len(order))[:, None]
        for old, other in zip(self.columns(), new.columns(), strict=True):
            old[:] = np.concatenate([old, other], 1)[rows, order]


def no_pool(B: int, k: int) -> Pool:
    whole = np.zeros((B, k), np.int64)
    return Pool(np.full((B, k), -np.inf), whole, whole.copy(), np.zeros((B, k)), np.zeros((B, k), bool))


class Trail:
    """What was chosen at each step, from which hypothesis, and its log p: (R, B, k) each."""

    def __init__(self, room: int, B: int, k: int) -> None:
        self.token, self.parent = np.zeros((room, B, k), np.int64), np.zeros((room, B, k), np.int64)
        self.log_p = np.zeros((room, B, k))

    def back(self, b: int, t: int, slot: int) -> tuple[list[int], list[float]]:
        """The first t tokens of what is now hypothesis `slot`, and their log p."""
        tokens, log_probs = [], []
        for i in range(t - 1, -1, -1):
            tokens.append(int(self.token[i, b, slot]))
            log_probs.append(float(self.log_p[i, b, slot]))
            slot = int(self.parent[i, b, slot])
        return tokens[::-1], log_probs[::-1]


def beam(search: Beam, model: Transformer, memory: Memory, lengths: Lengths) -> list[list[Hypothesis]]:
    """The steps of search/beam.py, in their order."""
    k, B, room = search.size, len(lengths.longest), int(lengths.longest.max()) + 1
    cache = model.start(memory, Capacity(k, room))
    pool, trail = no_pool(B, k), Trail(room, B, k)
    total, score = np.full((B, k), -np.inf), np.full((B, k), -np.inf)
    total[:, 0] = score[:, 0] = 0.0  # one beginning, the empty one
    rows, live, token = np.arange(B), np.ones(B, bool), np.full((B, 1), BOS)
    for t in range(room):
        b, longest = len(rows), lengths.longest[rows]
        short = np.repeat(t < lengths.shortest[rows], token.shape[1])
        value, found = best(model.logits(torch.from_numpy(token), cache), short, k + 1)
        each = value.shape[1]
        value, found = (x.reshape(b, k, each) if t else np.repeat(x[:, None], k, 1) for x in (value, found))
        sums, each_row = (total[:, :, None] + value).reshape(b, -1), np.arange(b)[:, None]  # (B, C)
        order = np.argsort(-sums, axis=1, kind="stable")[:, : 2 * k]
        total_next, said = sums[each_row, order], value.reshape(b, -1)[each_row, order]
        parent, word = order // each, found.reshape(b, -1)[each_row, order]
        ended = (word == EOS) & (total_next > -np.inf)
        score_next = ruled(search, total_next, t + 1)

        places = np.full((b, 1), k)
        if search.shrinks:
            places = places - (pool.score[rows] > -np.inf).sum(1, keepdims=True)
        first = np.arange(order.shape[1]) < places
        finished, at_limit = ended & first, live & (longest == t)
        if finished.any() or at_limit.any():  # at most steps nothing ends
            here = Pool(*(x[rows] for x in pool.columns()))
            at = np.full_like(parent, t)
            here.keep_best(Pool(np.where(finished, score_next, -np.inf), at, parent, said, finished), ~live)
            fill_cut(here, np.where(total > -np.inf, score, -np.inf), parent, finished, at_limit, t)
            for column, new in zip(pool.columns(), here.columns(), strict=True):
                column[rows] = new

        alive = ~ended & first if search.shrinks else ~ended
        kept = np.argsort(~alive, axis=1, kind="stable")[:, :k]
        total, score, parent, word, said = (x[each_row, kept] for x in (total_next, score_next, parent, word, said))
        total[~alive[each_row, kept]] = -np.inf
        trail.token[t, rows], trail.parent[t, rows], trail.log_p[t, rows] = word, parent, said
        live = live & ~at_limit & ~is_done(search, total, pool.score[rows, -1], longest, t)
        token = np.minimum(word, model.size - 1)  # of what is dead it may be a column that only fills up a block
        rows, (token, total, score, parent), live, going = shrunk(rows, (token, total, score, parent), live)
        if not len(rows):
            break
        if going is not None:
            cache = cache.select(torch.from_numpy(going))
        cache = cache.reorder(torch.from_numpy(parent))
    return [results(pool, trail, i) for i in range(B)]


def ruled(search: Beam, total: Numbers, n: int | Numbers) -> Numbers:
    """Scores of sums of log p, by the search's length rule."""
    scores: Numbers = search.rule(torch.from_numpy(total), torch.as_tensor(n, dtype=torch.float64)).numpy()
    return scores


def fill_cut(pool: Pool, score: Numbers, parent: Numbers, finished: Numbers, at_limit: Numbers, t: int) -> None:
    """At the limit, live hypotheses that did not just end take the free places of the pool, after the others."""
    gone = np.zeros(score.shape, bool)
    b, where = finished.nonzero()
    gone[b, parent[b, where]] = True
    score = np.where(at_limit[:, None] & ~gone, score, -np.inf)
    order = np.argsort(-score, axis=1, kind="stable")
    for row in at_limit.nonzero()[0]:
        free = (pool.score[row] == -np.inf).nonzero()[0]
        for place, slot in zip(free, order[row], strict=False):
            if score[row, slot] > -np.inf:
                pool.score[row, place], pool.t[row, place], pool.slot[row, place] = score[row, slot], t, slot
                pool.ended[row, place] = False


def is_done(search: Beam, total: Numbers, worst: Numbers, longest: Numbers, t: int) -> Numbers:
    """(B,): whether nothing that is still alive could change the pool, as the search's stop has it."""
    hope: Numbers = total.max(1)
    dead: Numbers = hope == -np.inf
    if search.shrinks:
        return dead
    if search.exact:
        reach = np.maximum(ruled(search, hope, t + 2), ruled(search, hope, longest + 1))
    else:
        reach = ruled(search, hope, t + 1)
    done: Numbers = ((worst > -np.inf) & ~(reach > worst)) | dead
    return done


def shrunk(
    rows: Numbers, columns: tuple[Numbers, ...], live: Numbers
) -> tuple[Numbers, tuple[Numbers, ...], Numbers, Numbers | None]:
    """The rows that go on, once a quarter is done; and which they were, if any went."""
    if live.sum() * 4 > len(live) * 3:
        return rows, columns, live, None
    going = live.nonzero()[0]
    return rows[going], tuple(x[going] for x in columns), live[going], going


def results(pool: Pool, trail: Trail, b: int) -> list[Hypothesis]:
    """The finished hypotheses of a sentence, best first."""
    found = []
    for score, t, slot, last, ended in zip(*(x[b].tolist() for x in pool.columns()), strict=True):
        if score > -np.inf:
            tokens, log_probs = trail.back(b, t, slot)
            found.append(
                Hypothesis(tokens, [*log_probs, last] if ended else log_probs, score, "eos" if ended else "length")
            )
    return found
