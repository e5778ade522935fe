"""Greedy and beam search over slots, with all state on the device: a step is a fixed sequence of kernels.

Each of B slots holds one sentence, at a step t of its own, so that a slot whose sentence is done can be given to
another while the others continue. A step computes what search/greedy.py and search/beam.py compute, for every slot that
is not done; those two define the results.

    logits (B·k, V) ─advance→ token (B, k), the input of the next step, and parent (B, k), the hypothesis it extends

No history is ever copied. A step writes its choices as backpointers (B, R, k). A finished hypothesis is an entry there,
and its tokens are read backwards from it once the sentence is done.

    beam   rank extensions by log p; of the best k, those with </s> join the finished ones; the best k others continue

Results are copied to the host in one piece; a Hypothesis is made of it only when one is read.

A length rule is a table of factors, score = f[n] · log p. B slots of which the first b are in use, k hypotheses, R the
maximum number of tokens including </s>, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import ModuleType
from typing import NamedTuple, Protocol, overload

import numpy as np
import torch
from torch import Tensor

from dragoman.core.types import BOS, EOS, PAD, Hypothesis
from dragoman.search import Search
from dragoman.search.beam import Beam
from dragoman.search.greedy import Greedy

FINISH_REASONS = ("length", "eos", "no_valid_token")  # by the number that stands for each on the device
MAX_BEAM = 64


class SlotSearch(Protocol):
    """A search over B slots; `done` (B,) is 1 where a slot is free or its sentence is finished."""

    k: int
    t: Tensor  # (B,)
    token: Tensor  # (B, k): the input of the next step
    done: Tensor

    @property
    def parent(self) -> Tensor | None:
        """(B, k): the hypothesis that each one extends; None: itself."""
        ...

    def reset(self, slots: Tensor, limits: Tensor) -> None:
        """Start new sentences in these slots, with the maximum and minimum length of each, (2, N)."""
        ...

    def advance(self, logits: Tensor, b: int, ancestry: Tensor | None) -> None:
        """Take one step in the first b slots; `ancestry` (B, k, C) of the key-value cache follows the parents."""
        ...

    def move_slots(self, source: Tensor, to: Tensor) -> None:
        """Move the sentences of the slots `source` to the slots `to`, and mark `source` as done."""
        ...

    def gather_results(self, slots: Tensor, length: int) -> Tensor:
        """The results of some slots, up to `length` tokens each, in one piece for `split_results`."""
        ...

    def read_results(self, buffer: Tensor, length: int) -> list[NBest]:
        """The n-best list of each slot, from what `gather_results` returned, on the host."""
        ...


class GreedySlotSearch:
    """y_t = argmax p(y_t | y_<t, x), for every slot."""

    k = 1
    parent = None

    def __init__(self, B: int, R: int, V: int, device: torch.device, kernels: ModuleType | None) -> None:
        self.V, self.kernels = V, kernels
        self.state, self.limits = allocate_slot_state(B, device)
        self.t, self.done, self.reason = self.state.unbind(0)
        self.max_length, self.min_length = self.limits.unbind(0)
        self.token = torch.full((B, 1), BOS, dtype=torch.int32, device=device)
        self.tokens = torch.zeros(B, R, dtype=torch.int32, device=device)
        self.log_probs = torch.zeros(B, R, device=device)

    def reset(self, slots: Tensor, limits: Tensor) -> None:
        """Start new sentences in these slots, with the maximum and minimum length of each, (2, N)."""
        self.state.index_fill_(1, slots, 0)
        self.limits.index_copy_(1, slots, limits)
        self.token.index_fill_(0, slots, BOS)

    def advance(self, logits: Tensor, b: int, ancestry: Tensor | None) -> None:
        """Append the most probable token in the first b slots, or mark them done; `ancestry` is ignored."""
        first = [x[:b] for x in (self.t, self.token, self.done, self.reason, self.max_length, self.min_length)]
        if self.kernels is not None:
            self.kernels.greedy_step(logits, self.V, *first, self.tokens, self.log_probs)
            return
        t, token, done, reason, max_length, min_length = first
        log_p = masked_log_softmax(logits[:, : self.V], t, min_length)
        value, best = log_p.max(-1)
        is_blocked, is_active = value == -math.inf, done == 0
        is_eos, at_limit = (best == EOS) & ~is_blocked, t >= max_length
        is_written = is_active & (is_eos | (~at_limit & ~is_blocked))
        row = torch.arange(b, device=t.device)
        self.tokens[row, t.long()] = torch.where(is_written, best, self.tokens[row, t.long()]).int()
        self.log_probs[row, t.long()] = torch.where(is_written, value, self.log_probs[row, t.long()])
        ends = is_active & (is_eos | is_blocked | at_limit)
        reason.copy_(torch.where(ends, torch.where(is_eos, 1, torch.where(at_limit, 0, 2)), reason))
        continues = is_active & ~ends
        token[:, 0] = torch.where(continues, best, token[:, 0]).int()
        t += continues.int()
        done += ends.int()

    def move_slots(self, source: Tensor, to: Tensor) -> None:
        """Move the sentences of the slots `source` to the slots `to`, and mark `source` as done."""
        for x in (self.token, self.tokens, self.log_probs):
            x[to] = x[source]
        for x in (self.state, self.limits):
            x[:, to] = x[:, source]
        self.done[source] = 1

    def gather_results(self, slots: Tensor, length: int) -> Tensor:
        """The results of some slots, up to `length` tokens each, in one piece for `split_results`."""
        buffer = allocate_results(len(slots), length, slots.device)
        columns = (self.t, self.reason, self.tokens[:, :length], self.log_probs[:, :length])
        for column, x in zip(split_results(buffer, 1, length)[1:], columns, strict=True):
            column.copy_(x[slots].view_as(column))
        return buffer

    def read_results(self, buffer: Tensor, length: int) -> list[NBest]:
        """The one result of each slot, from what `gather_results` returned, on the host."""
        _, n, reason, tokens, log_probs = (column.numpy() for column in split_results(buffer, 1, length))
        is_counted = np.arange(length) < (n + (reason == 1))[..., None]
        score = np.where(is_counted, log_probs, 0.0).sum(-1, dtype=np.float64)
        arrays = ResultArrays(score, n, reason, tokens, log_probs)
        return [NBest(arrays, row, 1) for row in range(len(n))]


class BeamSlotSearch:
    """The k most probable hypotheses of every slot, and the best k finished ones."""

    def __init__(
        self, B: int, k: int, R: int, V: int, exact: bool, device: torch.device, kernels: ModuleType | None
    ) -> None:
        """`exact`: stop only when no active hypothesis can ever beat a finished one (early_stopping: never)."""
        self.k, self.V, self.exact, self.kernels = k, V, exact, kernels
        self.state, self.limits = allocate_slot_state(B, device)
        self.t, self.done, _ = self.state.unbind(0)
        self.max_length, self.min_length = self.limits.unbind(0)
        zeros = torch.zeros(B, k, dtype=torch.int32, device=device)
        self.token, self.parent = torch.full_like(zeros, BOS), zeros.clone()
        self.sums = torch.full((3, B, k), -math.inf, dtype=torch.float64, device=device)
        self.initial_sums = self.sums[:, :1].clone()
        self.initial_sums[:2, :, 0] = 0.0  # one hypothesis, the empty one, and none finished
        self.total, self.score, self.finished_score = self.sums.unbind(0)
        # Of the finished ones, best first: the step at which each ended (its length), its parent, log p of </s>, and
        # whether it ended by </s>.
        self.finished_log_prob = torch.zeros(B, k, device=device)
        self.finished_step, self.finished_parent, self.finished_has_eos = (zeros.clone() for _ in range(3))
        # The backpointers.
        self.tokens, self.parents = (torch.zeros(B, R, k, dtype=torch.int32, device=device) for _ in range(2))
        self.log_probs = torch.zeros(B, R, k, device=device)
        self.factors = torch.ones(R + 3, dtype=torch.float64, device=device)
        candidates = 1 << k.bit_length()  # k + 1, rounded up to a power of two
        self.values = torch.zeros(B * k, candidates, device=device)
        self.candidates = torch.zeros(B * k, candidates, dtype=torch.int32, device=device)

    @property
    def finished(self) -> tuple[Tensor, ...]:
        """The finished hypotheses, (B, k) each: score, step, parent, log p of </s>, and whether there is one."""
        return (
            self.finished_score,
            self.finished_step,
            self.finished_parent,
            self.finished_log_prob,
            self.finished_has_eos,
        )

    @property
    def backpointers(self) -> tuple[Tensor, ...]:
        """Token, parent and log p of every step, (B, R, k) each."""
        return self.tokens, self.parents, self.log_probs

    def reset(self, slots: Tensor, limits: Tensor) -> None:
        """Start new sentences in these slots, with the maximum and minimum length of each, (2, N)."""
        self.state.index_fill_(1, slots, 0)
        self.limits.index_copy_(1, slots, limits)
        self.token.index_fill_(0, slots, BOS)
        self.sums.index_copy_(1, slots, self.initial_sums.expand(-1, len(slots), -1))

    def advance(self, logits: Tensor, b: int, ancestry: Tensor | None) -> None:
        """Take one beam step in the first b slots; `ancestry` follows the parents (kernels only)."""
        if self.kernels is None:
            self._advance(logits, b)
            return
        lengths = self.max_length, self.min_length
        state = self.t, self.token, self.parent, self.total, self.score, self.done, *lengths
        first, rows = [x[:b] for x in state], b * self.k
        candidates = self.values[:rows], self.candidates[:rows]
        self.kernels.beam_step(
            logits, self.V, *first, candidates, self.factors, self.backpointers, self.finished, ancestry, self.exact
        )

    def move_slots(self, source: Tensor, to: Tensor) -> None:
        """Move the sentences of the slots `source` to the slots `to`, and mark `source` as done."""
        for x in (self.token, self.parent, *self.finished[1:], *self.backpointers):
            x[to] = x[source]
        for x in (self.state, self.limits, self.sums):
            x[:, to] = x[:, source]
        self.done[source] = 1

    def gather_results(self, slots: Tensor, length: int) -> Tensor:
        """The finished hypotheses of some slots, up to `length` tokens each, in one piece for `split_results`."""
        buffer = allocate_results(len(slots) * self.k, length, slots.device)
        trace = trace_back if self.kernels is None else self.kernels.trace_back
        trace(slots, self.finished, self.backpointers, buffer, length)
        return buffer

    def read_results(self, buffer: Tensor, length: int) -> list[NBest]:
        """The finished hypotheses of each slot, best first, from what `gather_results` returned, on the host."""
        arrays = ResultArrays(*(column.numpy() for column in split_results(buffer, self.k, length)))
        sizes = (arrays.score > -math.inf).sum(1).tolist()
        return [NBest(arrays, row, size) for row, size in enumerate(sizes)]

    # -- the kernel `beam_step` in torch operations: its tests compare the two -----------------------------------------

    def _advance(self, logits: Tensor, b: int) -> None:
        """One beam step in the first b slots, in torch operations; the kernel `beam_step` is tested against it."""
        k, t = self.k, self.t[:b].long()
        is_active, f = self.done[:b] == 0, self.factors
        min_length = self.min_length[:b].repeat_interleave(k)
        log_p = masked_log_softmax(logits[:, : self.V], t.repeat_interleave(k), min_length)
        best, tokens = log_p.topk(min(k + 1, self.V), -1)  # (B·k, k+1)
        active_total, each = self.total[:b], best.shape[-1]
        sums = (active_total[..., None] + best.view(b, k, each).double()).flatten(1)
        total, order = sums.topk(min(2 * k, sums.shape[1]), -1)  # (B, 2k)
        parent, token = order // each, tokens.view(b, -1).gather(1, order)
        token_log_p = best.reshape(b, -1).gather(1, order)
        has_eos = (token == EOS) & (total > -math.inf)
        newly_finished = has_eos & (torch.arange(order.shape[1], device=order.device) < k)
        at_limit = t == self.max_length[:b]

        def merge(finished: list[Tensor], new: list[Tensor], rank: Tensor) -> list[Tensor]:
            index = rank.topk(k, -1).indices
            pairs = zip(finished, new, strict=True)
            return [torch.cat([old, x.to(old.dtype)], 1).gather(1, index) for old, x in pairs]

        finished = [x[:b] for x in self.finished]
        scores = (total * f[t + 1, None]).masked_fill(~newly_finished, -math.inf)
        now = t[:, None].expand_as(order)
        new = [scores, now, parent, token_log_p, torch.ones_like(now)]
        finished = merge(finished, new, torch.cat([finished[0], scores], 1))
        just_finished = torch.zeros_like(parent[:, :k]).scatter_add(1, parent, newly_finished.long()) > 0
        is_truncated = at_limit[:, None] & ~just_finished & (active_total > -math.inf)
        truncated = self.score[:b].masked_fill(~is_truncated, -math.inf)
        own = torch.arange(k, device=t.device).expand_as(active_total)
        new = [truncated, t[:, None].expand_as(truncated), own, torch.zeros_like(truncated), torch.zeros_like(own)]
        # Finished hypotheses come before truncated ones, whatever they score.
        rank = torch.cat([finished[0].masked_fill(finished[0] > -math.inf, math.inf), truncated], 1)
        first = rank.sort(dim=-1, descending=True, stable=True).indices[:, :k]
        pairs = zip(finished, new, strict=True)
        finished = [torch.cat([old, x.to(old.dtype)], 1).gather(1, first) for old, x in pairs]

        kept = has_eos.to(torch.int8).argsort(dim=-1, stable=True)[:, :k]
        total = total.masked_fill(has_eos, -math.inf).gather(1, kept)
        token, parent, token_log_p = (x.gather(1, kept) for x in (token, parent, token_log_p))
        best_total = total.max(-1).values
        reachable = best_total * f[t + 1]
        if self.exact:
            reachable = torch.maximum(best_total * f[t + 2], best_total * f[self.max_length[:b].long() + 1])
        worst = finished[0][:, -1]
        is_done = at_limit | ((worst > -math.inf) & ~(reachable > worst)) | (best_total == -math.inf)

        def put(old: Tensor, new: Tensor) -> None:
            old.copy_(torch.where(is_active.view(-1, *(1,) * (old.dim() - 1)), new.to(old.dtype), old))

        row = torch.arange(b, device=t.device)
        for pointers, x in zip(self.backpointers, (token, parent, token_log_p), strict=True):
            pointers[row, t] = torch.where(is_active[:, None], x.to(pointers.dtype), pointers[row, t])
        for old, x in zip(self.finished, finished, strict=True):
            put(old[:b], x)
        put(self.token[:b], token)
        put(self.parent[:b], parent)
        put(self.total[:b], total)
        put(self.score[:b], total * f[t + 1, None])
        put(self.t[:b], t + ~is_done)
        put(self.done[:b], is_done)


def trace_back(
    slots: Tensor, finished: Sequence[Tensor], backpointers: Sequence[Tensor], buffer: Tensor, length: int
) -> None:
    """The kernel `trace_back` in torch operations: all hypotheses go back together, one step at a time."""
    score, step, parent, last, has_eos = (x[slots] for x in finished)  # (N, k) each
    tokens, parents, log_probs = (x[slots, :length] for x in backpointers)  # (N, length, k) each
    *ends, out_tokens, out_log_probs = split_results(buffer, score.shape[1], length)
    for column, x in zip(ends, (score, step, has_eos), strict=True):
        column.copy_(x)
    step, j, row = torch.where(score > -math.inf, step, 0), parent.long(), torch.arange(len(slots))[:, None]
    out_log_probs.scatter_(2, step[..., None].long(), (last * has_eos)[..., None])
    for s in range(length - 1, -1, -1):
        exists = s < step
        out_tokens[:, :, s] = tokens[row, s, j]
        out_log_probs[:, :, s] = torch.where(exists, log_probs[row, s, j], out_log_probs[:, :, s])
        j = torch.where(exists, parents[row, s, j].long(), j)


def masked_log_softmax(logits: Tensor, t: Tensor, min_length: Tensor) -> Tensor:
    """log p (N, V) with −∞ for padding, for <s>, and for </s> before the minimum length."""
    log_p = torch.log_softmax(logits.float(), -1)
    log_p[:, [PAD, BOS]] = -math.inf
    log_p[:, EOS] = torch.where(t < min_length, -math.inf, log_p[:, EOS])
    return log_p


def allocate_slot_state(B: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """(3, B) the step, whether it is done and the finish reason of each slot; (2, B) its maximum and minimum length.

    They share two tensors, so that a slot is reset with one call for each and not with ten.
    """
    state = torch.zeros(3, B, dtype=torch.int32, device=device)
    state[1] = 1
    return state, torch.zeros(2, B, dtype=torch.long, device=device)


# -- from the device to results ----------------------------------------------------------------------------------------


def allocate_results(hypotheses: int, length: int, device: torch.device) -> Tensor:
    """A buffer for the results of so many hypotheses in one piece: one copy to the host costs less than five."""
    return torch.empty(hypotheses * (4 + 2 * length), dtype=torch.int32, device=device)


def split_results(buffer: Tensor, k: int, length: int) -> tuple[Tensor, ...]:
    """Views: score (N, k) in float64, −∞ for none; length; finish reason; tokens (N, k, length); and their log p."""
    n = len(buffer) // (4 + 2 * length)
    score, lengths, reason, tokens, log_probs = torch.split(buffer, [2 * n, n, n, n * length, n * length])
    score, log_probs = score.view(torch.float64), log_probs.view(torch.float32)
    return *(x.view(-1, k) for x in (score, lengths, reason)), *(x.view(-1, k, length) for x in (tokens, log_probs))


class ResultArrays(NamedTuple):
    """What `split_results` returns, on the host."""

    score: np.ndarray
    length: np.ndarray
    reason: np.ndarray
    tokens: np.ndarray
    log_probs: np.ndarray


class NBest(Sequence[Hypothesis]):
    """The results of a sentence, best first; each Hypothesis is made when it is read.

    Most of a beam's are never read; making all of them took 7.4 of 28 ms for beam 5 × 256.
    """

    def __init__(self, arrays: ResultArrays, row: int, size: int) -> None:
        self.arrays, self.row, self.size = arrays, row, size

    def __len__(self) -> int:
        return self.size

    @overload
    def __getitem__(self, i: int) -> Hypothesis: ...

    @overload
    def __getitem__(self, i: slice) -> list[Hypothesis]: ...

    def __getitem__(self, i: int | slice) -> Hypothesis | list[Hypothesis]:
        indices = range(self.size)[i]  # handles negative indices and the end of the list
        return self._hypothesis(indices) if isinstance(indices, int) else [self._hypothesis(j) for j in indices]

    def _hypothesis(self, j: int) -> Hypothesis:
        """The j-th best hypothesis, made from the arrays."""
        score, length, reason, tokens, log_probs = (column[self.row, j] for column in self.arrays)
        counted = length + (reason == 1)
        return Hypothesis(tokens[:length].tolist(), log_probs[:counted].tolist(), float(score), FINISH_REASONS[reason])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    def __repr__(self) -> str:
        return repr(list(self))


# -- which searches these are ------------------------------------------------------------------------------------------


def slot_search_blocker(search: Search) -> str | None:
    """Why no slot search computes what this search does; None: one does."""
    if type(search) is Greedy:
        return None
    if type(search) is not Beam:
        return f"it runs greedy and beam search, not {type(search).__name__}"
    if search.finished_policy == "shrink":
        return "its beam keeps its size (finished_policy: collect)"
    if search.early_stopping is True:
        return "its beam does not stop at the first k finished hypotheses (early_stopping: true)"
    if search.needs_attention:
        return "a coverage penalty needs the attention weights"
    if search.num_hypotheses > MAX_BEAM:
        return f"its beam has at most {MAX_BEAM} hypotheses, not {search.num_hypotheses}"
    if not is_length_factor(search):
        return "the length rule is not a factor that depends on the length alone"
    return None


def is_length_factor(search: Beam) -> bool:
    """Whether the length rule multiplies log p by a function of the length alone, judged by a few numbers."""
    n = torch.arange(1, 40, dtype=torch.float64)
    factors = search.length_rule(torch.full_like(n, -1.0), n)
    scores = ((x, search.length_rule(torch.full_like(n, -x), n)) for x in (0.01, 700.0))
    return all(bool(torch.isclose(score, factors * x, rtol=1e-9).all()) for x, score in scores)


def slot_search_key(search: Search) -> tuple[int, bool]:
    """Beam size and whether it never stops early, (0, False) for greedy: equal keys can share one slot search."""
    return (search.num_hypotheses, search.early_stopping == "never") if isinstance(search, Beam) else (0, False)


def build_slot_search(
    search: Search, B: int, R: int, V: int, device: torch.device, kernels: ModuleType | None
) -> SlotSearch:
    """A greedy or beam slot search with at least B slots; `kernels` is kernels/search.py, None: torch operations."""
    B = -(-B // 4) * 4  # so that the rows of its tensors are aligned: Triton compiles again for those that are not
    if isinstance(search, Beam):
        exact = search.early_stopping == "never"
        return BeamSlotSearch(B, search.num_hypotheses, R, V, exact, device, kernels)
    return GreedySlotSearch(B, R, V, device, kernels)


def load_length_rule(slot_search: SlotSearch, search: Search) -> None:
    """Write the length rule of a beam search into the slot search's table of factors; greedy search has none."""
    if isinstance(slot_search, BeamSlotSearch) and isinstance(search, Beam):
        n = torch.arange(len(slot_search.factors), dtype=torch.float64).clamp(min=1)
        slot_search.factors.copy_(search.length_rule(torch.ones_like(n), n))
