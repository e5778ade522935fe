"""Beam search: keep the k most probable hypotheses at each step; rank the finished ones by a length rule.

At each step, for every sentence at once:
    1. extend every active hypothesis by its k + 1 best tokens (at most one of them is </s>)
    2. rank all extensions by log p of the whole hypothesis: the best k of each suffice, since no more can be kept
    3. those among the first k that chose </s> are finished: the best k finished ones are kept, by score
    4. the best k others stay active
    5. a sentence is done at its maximum length, where active hypotheses fill the free slots among the finished ones,
       truncated; or earlier, by `early_stopping`:

       true    round(patience · k) have finished; of these the best k are the results
       false   k have finished, and no active hypothesis currently beats the worst of them
       never   k have finished, and no active hypothesis can still beat the worst of them: log p only falls, so the
               best it can reach is to end now or to keep its log p up to the maximum length

With `finished_policy: shrink` every finished hypothesis narrows the beam by one, until none is active.

    score = length rule(log p, n) + β Σ_j log min(Σ_t a_tj, 1)          β: `coverage_penalty`

Forced phrases (force_phrases.py) change the ranking in 2: slots are shared among hypotheses that have met equally many
forced tokens, and tokens that would meet more are tried besides the best.

A sentence that is done is frozen: the rest of the batch never changes it.

B sentences, k hypotheses, R steps (the maximum length + 1), S source positions, V vocabulary, C candidates.
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
from dragoman.search import SearchConstraints, Start, searches
from dragoman.search.force_phrases import ForcePhrasesProcessor
from dragoman.search.logits_processors import apply_constraints
from dragoman.search.scoring import length_rules, log_coverage
from dragoman.search.tracing import record_step

SYNC_EVERY = 8  # steps between two reads of `done` from a GPU: each read waits for the device


@dataclass
class BeamState:
    """Some hypotheses of each sentence: tokens and their log p (B, k, R), sums, scores and lengths (B, k)."""

    tokens: Tensor
    log_probs: Tensor  # float64
    total: Tensor
    score: Tensor
    length: Tensor  # tokens without </s>
    has_eos: Tensor  # whether </s> was chosen
    coverage: Tensor  # (B, k, S): Σ_t a_tj; S = 0 without a coverage penalty and for finished ones
    node: Tensor  # its id in a trace

    def select(self, indices: Tensor) -> BeamState:
        """Return the hypotheses at `indices` (B, K) of each sentence; an index may come several times."""
        rows = torch.arange(len(indices), device=indices.device)[:, None]
        return BeamState(*(getattr(self, field.name)[rows, indices] for field in fields(self)))


@searches.register("beam")
class Beam:
    """The k most probable hypotheses at each step; finished ones ranked by a length rule."""

    is_sampling = False
    supports_trace = supports_force_phrases = True

    def __init__(
        self,
        *,
        beam: PositiveInt = 5,
        length_rule: Annotated[Part, length_rules] = Part("mean"),
        finished_policy: Literal["collect", "shrink"] = "collect",
        early_stopping: bool | Literal["never"] = True,
        patience: Annotated[float, Field(ge=1.0)] = 2.0,
        coverage_penalty: Annotated[float, Field(ge=0.0)] = 0.0,
    ) -> None:
        self.num_hypotheses, self.length_rule = beam, length_rules.build(length_rule)
        self.finished_policy, self.early_stopping = finished_policy, early_stopping
        # Finished hypotheses that are kept until the end: that many stop the search where `early_stopping` is true.
        self.max_finished = round(patience * beam) if early_stopping is True else beam
        self.coverage_penalty, self.needs_attention = coverage_penalty, coverage_penalty > 0

    def __call__(self, step: Step, start: Start, constraints: SearchConstraints) -> list[list[Hypothesis]]:
        max_lengths, k = constraints.max_lengths, self.num_hypotheses
        B, R = len(max_lengths), max(constraints.limit_steps) + 1
        state = start(Capacity(k, R))
        active, finished = self.start_beams(B, R, max_lengths.device)
        token = max_lengths.new_full((B, k), BOS)
        rows = torch.arange(B, device=max_lengths.device)  # the sentence of each row
        done = torch.zeros(B, dtype=torch.bool, device=max_lengths.device)
        results: list[list[Hypothesis]] = [[] for _ in range(B)]

        for t in range(R):
            log_p, state = step(token, state)
            active = self.add_coverage(active, state)
            active, finished, done, parents = self.advance(log_p, active, finished, done, t, rows, constraints)
            state, token = reorder_state(state, parents), active.tokens[:, :, t]

            if done.device.type != "cpu" and t % SYNC_EVERY and t + 1 < R:
                continue
            if bool(done.all()) or int(done.sum()) * 2 >= len(done):  # half are done: continue with the others alone
                collect_hypotheses(results, finished, rows, done, k)
                remaining = (~done).nonzero()[:, 0]
                if not len(remaining):
                    break
                rows, token, done = rows[remaining], token[remaining], done[remaining]
                active, finished, state = tree.select((active, finished, state), remaining)
        return results

    def start_beams(self, B: int, R: int, device: Any) -> tuple[BeamState, BeamState]:
        """Return the active and the finished hypotheses before the first step."""
        return empty_hypothesis(B, self.num_hypotheses, R, device), empty_beam(B, self.max_finished, R, device)

    def advance(
        self,
        log_p: Tensor,
        active: BeamState,
        finished: BeamState,
        done: Tensor,
        t: int,
        rows: Tensor,
        constraints: SearchConstraints,
        penalty: Tensor | None = None,  # (B, 1, V), subtracted from log p for the ranking alone
    ) -> tuple[BeamState, BeamState, Tensor, Tensor]:
        """Take a step in every sentence: return active and finished hypotheses, what is done, and the parents."""
        max_lengths, k, history = constraints.max_lengths[rows], self.num_hypotheses, active.tokens[:, :, :t]
        forced = next((one for one in constraints.processors if isinstance(one, ForcePhrasesProcessor)), None)
        log_p = apply_constraints(log_p, history, rows, constraints)
        extended, parents = self.extend(active, log_p, t, rows, forced, penalty)
        slots = torch.full_like(finished.length[:, :1], k)  # (B, 1)
        if self.finished_policy == "shrink":
            slots = slots - (finished.score > -math.inf).sum(-1, keepdim=True)
        is_first = torch.arange(extended.total.shape[1], device=slots.device) < slots  # extensions are sorted
        newly_finished = extended.has_eos & is_first  # (B, 2k)
        finished = merge_finished(finished, extended, newly_finished, done)
        at_limit = (max_lengths == t) & ~done
        if t in constraints.limit_steps:
            is_late = None if forced is None else forced.lacks_phrases(history, rows)
            finished = add_truncated(finished, active, parents, newly_finished, at_limit, t, is_late)
        may_stay = ~extended.has_eos & is_first if self.finished_policy == "shrink" else ~extended.has_eos
        kept, order = select_active(extended, may_stay, k)
        if (traces := constraints.traces) is not None:
            chosen = (active, extended, parents, newly_finished, finished, kept)
            record_step(traces, rows, t, *chosen, slots, ~done, at_limit)
        return kept, finished, done | at_limit | self.is_done(kept, finished, max_lengths, t), parents.gather(1, order)

    # -- the steps above, one by one -------------------------------------------------------------------------------

    def add_coverage(self, active: BeamState, state: Any) -> BeamState:
        """Return `active` with the attention of the last step added to its coverage, if there is a coverage penalty."""
        if not self.needs_attention:
            return active
        a = getattr(state, "attention", None)  # (B, k, S), 1 on padding
        if a is None:
            raise UserError("coverage_penalty needs a decoder that attends to the source; leave it at 0")
        return replace(active, coverage=a.double() if active.coverage.shape[2] == 0 else active.coverage + a)

    def extend(
        self,
        active: BeamState,
        log_p: Tensor,
        t: int,
        rows: Tensor,
        forced: ForcePhrasesProcessor | None,
        penalty: Tensor | None,
    ) -> tuple[BeamState, Tensor]:
        """Return the 2k best extensions of each sentence in order, and which hypothesis each of them extends."""
        k, ranked = log_p.shape[1], log_p if penalty is None else log_p - penalty
        best, tokens = ranked.topk(min(k + 1, log_p.shape[2]), -1)  # (B, k, k+1)
        if forced is not None:
            best, tokens = forced.add_phrase_tokens(best, tokens, ranked, active.tokens[:, :, :t], rows)
        sums = (active.total[..., None] + best.double()).flatten(1)  # (B, C)
        token_log_p = log_p.gather(-1, tokens).masked_fill(best == -math.inf, -math.inf).double()  # (B, k, k+1)
        tokens = tokens.flatten(1)
        count, per_hypothesis = min(2 * k, sums.shape[1]), sums.shape[1] // k
        if forced is not None:
            order = forced.rank_by_bank(sums, tokens, active.tokens[:, :, :t], rows)[:, :count]
        else:
            order = sums.topk(count, -1).indices
        total = (active.total[..., None] + token_log_p).flatten(1).gather(1, order)
        parents, token = order // per_hypothesis, tokens.gather(1, order)
        extended = active.select(parents)
        extended.tokens[:, :, t] = token
        extended.log_probs[:, :, t] = token_log_p.flatten(1).gather(1, order)
        has_eos = (token == EOS) & (total > -math.inf)
        score = self.length_rule(total, torch.full_like(total, t + 1))
        if self.needs_attention:
            score = score + self.coverage_penalty * log_coverage(extended.coverage)
        node = 1 + 2 * k * t + torch.arange(count, device=order.device).expand_as(order)
        length = torch.full_like(extended.length, t) + ~has_eos
        return replace(extended, total=total, score=score, length=length, has_eos=has_eos, node=node), parents

    def is_done(self, active: BeamState, finished: BeamState, max_lengths: Tensor, t: int) -> Tensor:
        """Return whether each sentence's search may stop, (B,), by `early_stopping` or if nothing is active."""
        best = active.total.max(-1).values
        if self.finished_policy == "shrink":
            return best == -math.inf
        worst = finished.score[:, -1]
        is_full = worst > -math.inf
        if self.early_stopping is True:
            return is_full | (best == -math.inf)
        reachable = self.length_rule(best, torch.full_like(best, t + 1))
        if self.early_stopping == "never":  # what coverage adds is at most 0
            soon = self.length_rule(best, torch.full_like(best, t + 2))
            reachable = torch.maximum(soon, self.length_rule(best, (max_lengths + 1).to(best)))
        return (is_full & ~(reachable > worst)) | (best == -math.inf)


def empty_beam(B: int, k: int, R: int, device: Any) -> BeamState:
    """Create B × k empty slots for R tokens: every sum and score is −∞."""
    numbers = torch.full((B, k), -math.inf, dtype=torch.float64, device=device)
    zeros = torch.zeros(B, k, dtype=torch.long, device=device)
    tokens = torch.full((B, k, R), EOS, device=device)
    log_probs = torch.zeros(B, k, R, dtype=torch.float64, device=device)
    return BeamState(
        tokens, log_probs, numbers.clone(), numbers.clone(), zeros, zeros.bool(), log_probs[:, :, :0], zeros.clone()
    )


def empty_hypothesis(B: int, k: int, R: int, device: Any) -> BeamState:
    """Create the beam before the first step: one active hypothesis, the empty one."""
    active = empty_beam(B, k, R, device)
    active.total[:, 0] = active.score[:, 0] = 0.0
    return active


def merge_finished(finished: BeamState, extended: BeamState, newly_finished: Tensor, done: Tensor) -> BeamState:
    """Return the best of the finished and newly finished, by score; sentences that are done stay as they are."""
    slots, extended = finished.score.shape[1], replace(extended, coverage=extended.coverage[:, :, :0])
    both = BeamState(*(torch.cat([getattr(finished, f.name), getattr(extended, f.name)], 1) for f in fields(finished)))
    both.score[:, slots:].masked_fill_(~newly_finished, -math.inf)
    best = torch.where(done[:, None], torch.arange(slots, device=done.device), both.score.topk(slots, -1).indices)
    return both.select(best)


def add_truncated(
    finished: BeamState,
    active: BeamState,
    parents: Tensor,
    newly_finished: Tensor,
    at_limit: Tensor,
    t: int,
    is_late: Tensor | None,
) -> BeamState:
    """Put active hypotheses at the maximum length that did not just finish into free slots, late ones (B, k) last."""
    just_finished = torch.zeros_like(active.length).scatter_add(1, parents, newly_finished.long()) > 0
    usable = at_limit[:, None] & ~just_finished & (active.total > -math.inf)
    score = active.score.masked_fill(~usable, -math.inf)
    order = score.argsort(-1, descending=True)
    if is_late is not None:
        is_late = (score == -math.inf) | is_late
        order = order.gather(1, is_late.gather(1, order).to(torch.int8).argsort(dim=-1, stable=True))
    no_eos = torch.zeros_like(active.has_eos)
    length = torch.full_like(active.length, t)
    truncated = replace(active, score=score, length=length, has_eos=no_eos, coverage=active.coverage[:, :, :0])
    free = finished.score == -math.inf  # (B, slots), the last ones
    free[:, active.score.shape[1] :] = False  # no more than k results
    slot = (free.cumsum(-1) - 1).clamp(min=0)  # the i-th free slot takes the i-th truncated hypothesis
    added = truncated.select(order.gather(1, slot))
    use = free & (added.score > -math.inf)

    def put(old: Tensor, new: Tensor) -> Tensor:
        return torch.where(use.view(*use.shape, *(1,) * (old.dim() - 2)), new, old)

    return BeamState(*(put(getattr(finished, f.name), getattr(added, f.name)) for f in fields(finished)))


def select_active(extended: BeamState, may_stay: Tensor, k: int) -> tuple[BeamState, Tensor]:
    """Return the first k extensions that may stay (B, 2k), and their indices."""
    order = (~may_stay).to(torch.int8).argsort(dim=-1, stable=True)[:, :k]
    active = extended.select(order)
    return replace(active, total=active.total.masked_fill(~may_stay.gather(1, order), -math.inf)), order


def reorder_state(state: Any, parents: Tensor) -> Any:
    """Reorder the decoder's state by the parent of each extension; it is not copied if nothing moves."""
    k = parents.shape[1]
    if k == 1:
        return state
    if parents.device.type == "cpu" and bool((parents == torch.arange(k)).all()):
        return state
    return tree.reorder(state, parents)


def collect_hypotheses(
    results: list[list[Hypothesis]], finished: BeamState, rows: Tensor, done: Tensor, k: int
) -> None:
    """Append the k best finished hypotheses of the sentences that are done to `results`, best first."""
    indices = done.nonzero()[:, 0]
    columns = (finished.tokens, finished.log_probs, finished.score, finished.length, finished.has_eos)
    for row, *values in zip(rows[indices].tolist(), *(x[indices, :k].tolist() for x in columns), strict=True):
        for tokens, log_probs, score, n, has_eos in zip(*values, strict=True):
            if score > -math.inf:
                reason = "eos" if has_eos else "length"
                results[row].append(Hypothesis(tokens[:n], log_probs[: n + has_eos], score, reason))
