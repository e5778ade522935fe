"""Greedy and beam search for the CPU engine: rows of logits stay in torch, the few candidates of each are in numpy.

The same steps as search/greedy.py and search/beam.py, for requests without logits processors; those two define the
results. No history is ever copied: each step writes its choices as backpointers (R, B, k), and a finished hypothesis is
an entry there, whose tokens are read backwards.

    best n of V    they lie in the n blocks of BLOCK columns with the largest maxima: read n · BLOCK columns, not V
                   (320 rows of 8,000, the best 6: 1.3 ms instead of 3.4)

B sentences, k hypotheses, M = B·k rows, R the maximum number of tokens including </s>, V vocabulary, C candidates.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dragoman.core.types import BOS, EOS, PAD, Capacity, Hypothesis, Memory
from dragoman.engines.cpu.transformer_step import BLOCK, CPUTransformer
from dragoman.search.beam import Beam


@dataclass
class LengthLimits:
    """The maximum and minimum lengths of outputs, (B,) each, in tokens without </s>."""

    max_lengths: np.ndarray
    min_lengths: np.ndarray


def top_tokens(logits: Tensor, short: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """The n largest log p of each row (M, V) in order, and their tokens; no <pad>, <s>, nor </s> where `short` (M,)."""
    log_p = torch.log_softmax(logits, -1)
    values: np.ndarray = log_p.numpy()
    values[:, [PAD, BOS]] = -np.inf  # never generated, though they have a share of the probability
    if short.any():
        values[short, EOS] = -np.inf
    M, V = log_p.shape
    if n == 1:  # 64 rows of 8,000: numpy 35 µs, torch's max 440
        token = values.argmax(1)[:, None]
        return values[np.arange(M)[:, None], token], token
    n, blocks = min(n, V), V // BLOCK
    if n >= blocks:
        best = log_p.topk(n, -1)
        return best.values.numpy(), best.indices.numpy()
    top = log_p.view(M, blocks, BLOCK).amax(-1).topk(n, -1, sorted=False).indices  # (M, n)
    rows, chosen = np.arange(M)[:, None], top.numpy()
    block_rows = torch.from_numpy((rows * blocks + chosen).ravel())
    value, where = (x.numpy() for x in log_p.view(-1, BLOCK).index_select(0, block_rows).view(M, n * BLOCK).topk(n, -1))
    return value, chosen[rows, where // BLOCK] * BLOCK + where % BLOCK


# -- greedy ------------------------------------------------------------------------------------------------------------


def greedy_search(model: CPUTransformer, memory: Memory, lengths: LengthLimits) -> list[list[Hypothesis]]:
    """y_t = argmax p(y_t | y_<t, x), until it is </s> or the maximum length: one hypothesis per sentence."""
    B, R = len(lengths.max_lengths), int(lengths.max_lengths.max()) + 1
    cache = model.start(memory, Capacity(1, R))
    tokens, log_probs = np.full((B, R), EOS), np.zeros((B, R))
    has_eos, count = np.zeros(B, bool), lengths.max_lengths.copy()
    rows, active, token = np.arange(B), np.ones(B, bool), np.full((B, 1), BOS)
    for t in range(R):
        value, token = top_tokens(model.logits(torch.from_numpy(token), cache), t < lengths.min_lengths[rows], 1)
        is_eos, at_limit = token[:, 0] == EOS, lengths.max_lengths[rows] <= t
        keep = active & (is_eos | ~at_limit)  # at its limit a sentence may still end, but not continue
        tokens[rows[keep], t], log_probs[rows[keep], t] = token[keep, 0], value[keep, 0]
        ended = rows[active & is_eos]
        has_eos[ended], count[ended] = True, t
        active = active & ~is_eos & ~at_limit
        rows, (token,), active, kept = drop_finished(rows, (token,), active)
        if not len(rows):
            break
        if kept is not None:
            cache = cache.select(torch.from_numpy(kept))
    columns = (x.tolist() for x in (tokens, log_probs, count, has_eos))
    return [
        [Hypothesis(ids[:n], logs[: n + eos], sum(logs[: n + eos]), "eos" if eos else "length")]
        for ids, logs, n, eos in zip(*columns, strict=True)
    ]


def drop_finished(
    rows: np.ndarray, columns: tuple[np.ndarray, ...], active: np.ndarray
) -> tuple[np.ndarray, tuple[np.ndarray, ...], np.ndarray, np.ndarray | None]:
    """Once a quarter is finished, keep only the active sentences, and return their former indices (None: all kept)."""
    if active.sum() * 4 > len(active) * 3:
        return rows, columns, active, None
    kept = active.nonzero()[0]
    return rows[kept], tuple(x[kept] for x in columns), active[kept], kept


# -- beam --------------------------------------------------------------------------------------------------------------


@dataclass
class FinishedHypotheses:
    """The best finished hypotheses of each sentence, (B, k) each; −∞ where there is none."""

    score: np.ndarray
    t: np.ndarray  # the step at which it ended: its length without </s>
    parent: np.ndarray  # the hypothesis it was before that step
    last: np.ndarray  # log p of </s>
    has_eos: np.ndarray  # whether </s> was chosen

    def columns(self) -> list[np.ndarray]:
        return [self.score, self.t, self.parent, self.last, self.has_eos]

    def keep_best(self, new: FinishedHypotheses, done: np.ndarray) -> None:
        """Keep the best k of these and the new ones; sentences that are done stay as they are."""
        k = self.score.shape[1]
        order = np.argsort(-np.concatenate([self.score, new.score], 1), axis=1, kind="stable")[:, :k]
        order[done] = np.arange(k)
        rows = np.arange(len(order))[:, None]
        for old, other in zip(self.columns(), new.columns(), strict=True):
            old[:] = np.concatenate([old, other], 1)[rows, order]


def no_finished(B: int, k: int) -> FinishedHypotheses:
    """FinishedHypotheses of B sentences with k free slots each: all scores −∞."""
    zeros = np.zeros((B, k), np.int64)
    return FinishedHypotheses(np.full((B, k), -np.inf), zeros, zeros.copy(), np.zeros((B, k)), np.zeros((B, k), bool))


class Backpointers:
    """The token that was chosen at each step, the hypothesis it extends, and its log p: (R, B, k) each."""

    def __init__(self, R: int, B: int, k: int) -> None:
        self.token, self.parent = np.zeros((R, B, k), np.int64), np.zeros((R, B, k), np.int64)
        self.log_p = np.zeros((R, B, k))

    def trace_back(self, b: int, t: int, hypothesis: int) -> tuple[list[int], list[float]]:
        """The t tokens of a hypothesis after step t, and their log p."""
        tokens, log_probs = [], []
        for i in range(t - 1, -1, -1):
            tokens.append(int(self.token[i, b, hypothesis]))
            log_probs.append(float(self.log_p[i, b, hypothesis]))
            hypothesis = int(self.parent[i, b, hypothesis])
        return tokens[::-1], log_probs[::-1]


def beam_search(search: Beam, model: CPUTransformer, memory: Memory, lengths: LengthLimits) -> list[list[Hypothesis]]:
    """The n-best list of every sentence, by the steps of search/beam.py in their order."""
    k, B, R = search.num_hypotheses, len(lengths.max_lengths), int(lengths.max_lengths.max()) + 1
    cache = model.start(memory, Capacity(k, R))
    finished, backpointers = no_finished(B, k), Backpointers(R, B, k)
    total, score = np.full((B, k), -np.inf), np.full((B, k), -np.inf)
    total[:, 0] = score[:, 0] = 0.0  # one hypothesis, the empty one
    rows, active, token = np.arange(B), np.ones(B, bool), np.full((B, 1), BOS)
    for t in range(R):
        b, max_lengths = len(rows), lengths.max_lengths[rows]
        short = np.repeat(t < lengths.min_lengths[rows], token.shape[1])
        value, candidate = top_tokens(model.logits(torch.from_numpy(token), cache), short, k + 1)
        each = value.shape[1]
        value, candidate = (x.reshape(b, k, each) if t else np.repeat(x[:, None], k, 1) for x in (value, candidate))
        sums, each_row = (total[:, :, None] + value).reshape(b, -1), np.arange(b)[:, None]  # (B, C)
        order = np.argsort(-sums, axis=1, kind="stable")[:, : 2 * k]
        total_next, token_log_p = sums[each_row, order], value.reshape(b, -1)[each_row, order]
        parent, next_token = order // each, candidate.reshape(b, -1)[each_row, order]
        has_eos = (next_token == EOS) & (total_next > -np.inf)
        score_next = apply_length_rule(search, total_next, t + 1)

        slots = np.full((b, 1), k)
        if search.finished_policy == "shrink":
            slots = slots - (finished.score[rows] > -np.inf).sum(1, keepdims=True)
        first = np.arange(order.shape[1]) < slots
        newly_finished, at_limit = has_eos & first, active & (max_lengths == t)
        if newly_finished.any() or at_limit.any():  # at most steps nothing ends
            current = FinishedHypotheses(*(x[rows] for x in finished.columns()))
            at = np.full_like(parent, t)
            new = FinishedHypotheses(
                np.where(newly_finished, score_next, -np.inf), at, parent, token_log_p, newly_finished
            )
            current.keep_best(new, ~active)
            fill_with_truncated(current, np.where(total > -np.inf, score, -np.inf), parent, newly_finished, at_limit, t)
            for column, updated in zip(finished.columns(), current.columns(), strict=True):
                column[rows] = updated

        alive = ~has_eos & first if search.finished_policy == "shrink" else ~has_eos
        best = np.argsort(~alive, axis=1, kind="stable")[:, :k]
        total, score, parent, next_token, token_log_p = (
            x[each_row, best] for x in (total_next, score_next, parent, next_token, token_log_p)
        )
        total[~alive[each_row, best]] = -np.inf
        backpointers.token[t, rows], backpointers.parent[t, rows] = next_token, parent
        backpointers.log_p[t, rows] = token_log_p
        active = active & ~at_limit & ~is_done(search, total, finished.score[rows, -1], max_lengths, t)
        token = np.minimum(next_token, model.vocabulary_size - 1)  # that of a dead hypothesis may be a padding column
        rows, (token, total, score, parent), active, kept = drop_finished(rows, (token, total, score, parent), active)
        if not len(rows):
            break
        if kept is not None:
            cache = cache.select(torch.from_numpy(kept))
        cache = cache.reorder(torch.from_numpy(parent))
    return [read_results(finished, backpointers, i) for i in range(B)]


def apply_length_rule(search: Beam, total: np.ndarray, n: int | np.ndarray) -> np.ndarray:
    """The scores of hypotheses with these sums of log p and n tokens, by the search's length rule."""
    scores: np.ndarray = search.length_rule(torch.from_numpy(total), torch.as_tensor(n, dtype=torch.float64)).numpy()
    return scores


def fill_with_truncated(
    finished: FinishedHypotheses,
    score: np.ndarray,
    parent: np.ndarray,
    newly_finished: np.ndarray,
    at_limit: np.ndarray,
    t: int,
) -> None:
    """At the maximum length, active hypotheses that did not just finish fill the free slots after the finished ones."""
    just_finished = np.zeros(score.shape, bool)
    b, where = newly_finished.nonzero()
    just_finished[b, parent[b, where]] = True
    score = np.where(at_limit[:, None] & ~just_finished, score, -np.inf)
    order = np.argsort(-score, axis=1, kind="stable")
    for row in at_limit.nonzero()[0]:
        free = (finished.score[row] == -np.inf).nonzero()[0]
        for slot, hypothesis in zip(free, order[row], strict=False):
            if score[row, hypothesis] > -np.inf:
                finished.score[row, slot], finished.t[row, slot] = score[row, hypothesis], t
                finished.parent[row, slot], finished.has_eos[row, slot] = hypothesis, False


def is_done(search: Beam, total: np.ndarray, worst: np.ndarray, max_lengths: np.ndarray, t: int) -> np.ndarray:
    """(B,): whether each sentence may stop, by `early_stopping`, or has no active hypothesis left."""
    best: np.ndarray = total.max(1)
    dead: np.ndarray = best == -np.inf
    if search.finished_policy == "shrink":
        return dead
    is_full: np.ndarray = worst > -np.inf
    if search.early_stopping is True:
        return np.asarray(is_full | dead)
    if search.early_stopping == "never":
        soon, at_limit = (apply_length_rule(search, best, n) for n in (t + 2, max_lengths + 1))
        reachable = np.maximum(soon, at_limit)
    else:
        reachable = apply_length_rule(search, best, t + 1)
    done: np.ndarray = (is_full & ~(reachable > worst)) | dead
    return done


def read_results(finished: FinishedHypotheses, backpointers: Backpointers, b: int) -> list[Hypothesis]:
    """The finished hypotheses of a sentence, best first."""
    hypotheses = []
    for score, t, parent, last, has_eos in zip(*(x[b].tolist() for x in finished.columns()), strict=True):
        if score > -np.inf:
            tokens, log_probs = backpointers.trace_back(b, t, parent)
            if has_eos:
                log_probs.append(last)
            hypotheses.append(Hypothesis(tokens, log_probs, score, "eos" if has_eos else "length"))
    return hypotheses
