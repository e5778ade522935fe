"""Beam search: keep the k most probable hypotheses at each step; rank the finished ones by a length rule.

At each step, for every sentence at once:
    1. extend every active hypothesis by its k + 1 best tokens (at most one of them is </s>)
    2. rank all extensions by log p of the whole hypothesis: the best k of each suffice, since no more can be kept
    3. those among the first k that chose </s> are finished: the best k finished ones are kept, by score
    4. the best k others stay active
    5. a sentence is done at its maximum length, where active hypotheses fill the free slots among the finished ones,
       truncated; or earlier, by `early_stopping`:

       false   k have finished, and no active hypothesis currently beats the worst of them
       never   k have finished, and no active hypothesis can still beat the worst of them: log p only falls, so the
               best it can reach is to end now or to keep its log p up to the maximum length
       true    k have finished

With `finished_policy: shrink` every finished hypothesis narrows the beam by one, until none is active.

    score = length rule(log p, n) + β Σ_j log min(Σ_t a_tj, 1)          β: `coverage_penalty`

Forced phrases (force_phrases.py) change the ranking in 2: slots are shared among hypotheses that have met equally many
forced tokens, and tokens that would meet more are tried besides the best.

Active and finished hypotheses are trees of (sentence, hypothesis) tensors, like the decoder's state, and are reordered
by the same function. A sentence that is done is frozen: the rest of the batch never changes it.

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
from dragoman.search.force_phrases import ForcePhrasesProcessor, share_slots
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
    coverage: Tensor  # (B, k, S): Σ_t a_tj; S = 0 without a coverage penalty
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
        early_stopping: bool | Literal["never"] = False,
        coverage_penalty: Annotated[float, Field(ge=0.0)] = 0.0,
    ) -> None:
        """Hold the options and build the length rule; `beam` is k."""
        self.num_hypotheses, self.length_rule = beam, length_rules.build(length_rule)
        self.finished_policy, self.early_stopping = finished_policy, early_stopping
        self.coverage_penalty = coverage_penalty

    @property
    def needs_attention(self) -> bool:
        """Whether there is a coverage penalty, which needs the attention weights of each step."""
        return self.coverage_penalty > 0

    def __call__(self, step: Step, start: Start, constraints: SearchConstraints) -> list[list[Hypothesis]]:
        """Search all sentences in parallel; return the finished hypotheses of each, best first."""
        max_lengths, k = constraints.max_lengths, self.num_hypotheses
        limit_steps = set(max_lengths.tolist())  # steps at which some sentence is at its limit, known without a sync
        B, R = len(max_lengths), max(limit_steps) + 1
        state = start(Capacity(k, R))
        active, finished = empty_beam(B, k, R, max_lengths.device), empty_beam(B, k, R, max_lengths.device)
        active.total[:, 0] = active.score[:, 0] = 0.0  # one hypothesis, the empty one
        token = max_lengths.new_full((B, k), BOS)
        rows = torch.arange(B, device=max_lengths.device)  # the sentence of each row
        done = torch.zeros(B, dtype=torch.bool, device=max_lengths.device)
        results: list[list[Hypothesis]] = [[] for _ in range(B)]

        for t in range(R):
            log_p, state = step(token, state)
            active = self.add_coverage(active, state)
            log_p = apply_constraints(log_p, active.tokens[:, :, :t], rows, constraints)
            extended, parents = self.extend(active, log_p, t, rows, constraints)
            slots = self.count_slots(finished)  # (B, 1)
            newly_finished = extended.has_eos & (candidate_ranks(extended) < slots)  # (B, 2k)
            finished = merge_finished(finished, extended, newly_finished, done)
            at_limit = (max_lengths[rows] == t) & ~done
            if t in limit_steps:
                finished = self.add_truncated(finished, active, parents, newly_finished, at_limit, t, rows, constraints)
            kept, order = select_active(extended, slots if self.finished_policy == "shrink" else None, k)
            if constraints.traces is not None:
                record_step(
                    constraints.traces,
                    rows,
                    t,
                    active,
                    extended,
                    parents,
                    newly_finished,
                    finished,
                    kept,
                    slots,
                    ~done,
                    at_limit,
                )

            active, parents = kept, parents.gather(1, order)
            state, token = reorder_state(state, parents), active.tokens[:, :, t]
            done = done | at_limit | self.is_done(active, finished, max_lengths[rows], t)

            if done.device.type != "cpu" and t % SYNC_EVERY and t + 1 < R:
                continue
            if bool(done.all()) or int(done.sum()) * 2 >= len(done):  # half are done: continue with the others alone
                collect_hypotheses(results, finished, rows, done)
                remaining = (~done).nonzero()[:, 0]
                if not len(remaining):
                    break
                rows, token, done = rows[remaining], token[remaining], done[remaining]
                active, finished, state = tree.select((active, finished, state), remaining)
        return results

    # -- the steps above, one by one -------------------------------------------------------------------------------

    def add_coverage(self, active: BeamState, state: Any) -> BeamState:
        """Return `active` with the attention of the last step added to its coverage, if there is a coverage penalty."""
        if not self.needs_attention:
            return active
        a = getattr(state, "attention", None)  # (B, k, S), 1 on padding
        if a is None:
            raise UserError("coverage_penalty needs a decoder that attends to the source; leave it at 0")
        return replace(active, coverage=a.double() if active.coverage.shape[2] == 0 else active.coverage + a)

    def compute_score(self, total: Tensor, n: Tensor, coverage: Tensor) -> Tensor:
        """Return the sums of log p under the length rule for n tokens, plus the coverage penalty."""
        score = self.length_rule(total, n)
        return score if not self.needs_attention else score + self.coverage_penalty * log_coverage(coverage)

    def extend(
        self,
        active: BeamState,
        log_p: Tensor,
        t: int,
        rows: Tensor,
        constraints: SearchConstraints,
        penalty: Tensor | None = None,
    ) -> tuple[BeamState, Tensor]:
        """Return the 2k best extensions of each sentence in order, and which hypothesis each of them extends.

        `penalty` (B, 1, V) is subtracted for the ranking alone.
        """
        k, ranked = log_p.shape[1], log_p if penalty is None else log_p - penalty
        best, tokens = ranked.topk(min(k + 1, log_p.shape[2]), -1)  # (B, k, k+1)
        forced = [one for one in constraints.processors if isinstance(one, ForcePhrasesProcessor)]
        if forced:
            best, tokens = add_phrase_tokens(best, tokens, ranked, active, forced[0], t, rows)
        sums = (active.total[..., None] + best.double()).flatten(1)  # (B, C)
        token_log_p = log_p.gather(-1, tokens).masked_fill(best == -math.inf, -math.inf).double()  # (B, k, k+1)
        tokens = tokens.flatten(1)
        count, per_hypothesis = min(2 * k, sums.shape[1]), sums.shape[1] // k
        if forced:
            order = rank_by_bank(sums, tokens, active, per_hypothesis, forced[0], t, rows, k)[:, :count]
        else:
            order = sums.topk(count, -1).indices
        total = (active.total[..., None] + token_log_p).flatten(1).gather(1, order)
        parents, token = order // per_hypothesis, tokens.gather(1, order)
        extended = active.select(parents)
        extended.tokens[:, :, t] = token
        extended.log_probs[:, :, t] = token_log_p.flatten(1).gather(1, order)
        has_eos = (token == EOS) & (total > -math.inf)
        score = self.compute_score(total, torch.full_like(total, t + 1), extended.coverage)
        node = 1 + 2 * k * t + torch.arange(count, device=order.device).expand_as(order)
        length = torch.full_like(extended.length, t) + ~has_eos
        return replace(extended, total=total, score=score, length=length, has_eos=has_eos, node=node), parents

    def count_slots(self, finished: BeamState) -> Tensor:
        """Return how many hypotheses may stay, (B, 1): k, or under "shrink" k less the finished ones."""
        k = torch.full_like(finished.length[:, :1], self.num_hypotheses)
        if self.finished_policy == "collect":
            return k
        return k - (finished.score > -math.inf).sum(-1, keepdim=True)

    def add_truncated(
        self,
        finished: BeamState,
        active: BeamState,
        parents: Tensor,
        newly_finished: Tensor,
        at_limit: Tensor,
        t: int,
        rows: Tensor,
        constraints: SearchConstraints,
    ) -> BeamState:
        """Put active hypotheses at the maximum length that did not just finish into free finished slots.

        Those that contain all forced phrases come first.
        """
        just_finished = torch.zeros_like(active.length).scatter_add(1, parents, newly_finished.long()) > 0
        usable = at_limit[:, None] & ~just_finished & (active.total > -math.inf)
        score = active.score.masked_fill(~usable, -math.inf)
        order = score.argsort(-1, descending=True)
        for forced in (one for one in constraints.processors if isinstance(one, ForcePhrasesProcessor)):
            late = (score == -math.inf) | lacks_phrases(active, forced, t, rows)
            order = order.gather(1, late.gather(1, order).to(torch.int8).argsort(dim=-1, stable=True))
        no_eos = torch.zeros_like(active.has_eos)
        truncated = replace(active, score=score, length=torch.full_like(active.length, t), has_eos=no_eos)
        free = finished.score == -math.inf  # (B, k), the last ones
        slot = (free.cumsum(-1) - 1).clamp(min=0)  # the i-th free slot takes the i-th truncated hypothesis
        added = truncated.select(order.gather(1, slot))
        use = free & (added.score > -math.inf)

        def put(old: Tensor, new: Tensor) -> Tensor:
            """Take `new` where a slot is used, else `old`."""
            return torch.where(use.view(*use.shape, *(1,) * (old.dim() - 2)), new, old)

        finished = match_coverage(finished, active)
        return BeamState(*(put(getattr(finished, f.name), getattr(added, f.name)) for f in fields(finished)))

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


def candidate_ranks(extended: BeamState) -> Tensor:
    """Return 0, 1, 2, … for the extensions, which are sorted already."""
    return torch.arange(extended.total.shape[1], device=extended.total.device)


def match_coverage(finished: BeamState, active: BeamState) -> BeamState:
    """Return `finished` with zeros for coverage if it has another number of source positions than `active`."""
    if finished.coverage.shape[2] == active.coverage.shape[2]:
        return finished
    return replace(finished, coverage=finished.coverage.new_zeros(*finished.score.shape, active.coverage.shape[2]))


def merge_finished(finished: BeamState, extended: BeamState, newly_finished: Tensor, done: Tensor) -> BeamState:
    """Return the best k of the finished and newly finished, by score; sentences that are done stay as they are."""
    k, finished = finished.score.shape[1], match_coverage(finished, extended)
    both = BeamState(*(torch.cat([getattr(finished, f.name), getattr(extended, f.name)], 1) for f in fields(finished)))
    both.score[:, k:].masked_fill_(~newly_finished, -math.inf)
    best = torch.where(done[:, None], torch.arange(k, device=done.device), both.score.topk(k, -1).indices)
    return both.select(best)


def select_active(extended: BeamState, slots: Tensor | None, k: int) -> tuple[BeamState, Tensor]:
    """Return the first k extensions without </s> (only among the first `slots`, if given), and their indices."""
    is_active = ~extended.has_eos
    if slots is not None:
        is_active = is_active & (candidate_ranks(extended) < slots)
    order = (~is_active).to(torch.int8).argsort(dim=-1, stable=True)[:, :k]
    active = extended.select(order)
    return replace(active, total=active.total.masked_fill(~is_active.gather(1, order), -math.inf)), order


def reorder_state(state: Any, parents: Tensor) -> Any:
    """Reorder the decoder's state by the parent of each extension; it is not copied if nothing moves."""
    k = parents.shape[1]
    if k == 1:
        return state
    if parents.device.type == "cpu" and bool((parents == torch.arange(k)).all()):
        return state
    return tree.reorder(state, parents)


def collect_hypotheses(results: list[list[Hypothesis]], finished: BeamState, rows: Tensor, done: Tensor) -> None:
    """Append the finished hypotheses of the sentences that are done to `results`, best first."""
    indices = done.nonzero()[:, 0]
    columns = (finished.tokens, finished.log_probs, finished.score, finished.length, finished.has_eos)
    for row, *values in zip(rows[indices].tolist(), *(x[indices].tolist() for x in columns), strict=True):
        for tokens, log_probs, score, n, has_eos in zip(*values, strict=True):
            if score > -math.inf:
                reason = "eos" if has_eos else "length"
                results[row].append(Hypothesis(tokens[:n], log_probs[: n + has_eos], score, reason))


# -- forced phrases ----------------------------------------------------------------------------------------------------


def lacks_phrases(active: BeamState, forced: ForcePhrasesProcessor, t: int, rows: Tensor) -> Tensor:
    """Return whether each hypothesis lacks some of its forced phrases, (B, k)."""
    histories = active.tokens[:, :, :t].tolist()
    unmet = [
        [bool(forced.match(history, row).unmet) for history in hypotheses]
        for hypotheses, row in zip(histories, rows.tolist(), strict=True)
    ]
    return torch.tensor(unmet, device=rows.device)


def add_phrase_tokens(
    best: Tensor, tokens: Tensor, log_p: Tensor, active: BeamState, forced: ForcePhrasesProcessor, t: int, rows: Tensor
) -> tuple[Tensor, Tensor]:
    """Append to the best tokens (B, k, k+1) and their log p those that would continue a forced phrase."""
    histories = active.tokens[:, :, :t].tolist()
    needed = [
        [forced.next_tokens(history, row) for history in hypotheses]
        for hypotheses, row in zip(histories, rows.tolist(), strict=True)
    ]
    most = max((len(ids) for hypotheses in needed for ids in hypotheses), default=0)
    if not most:
        return best, tokens
    padded = [[[*ids, *[-1] * (most - len(ids))] for ids in hypotheses] for hypotheses in needed]
    extra = torch.tensor(padded).to(tokens)
    is_known = (extra[..., None] == tokens[..., None, :]).any(-1) | (extra < 0)
    extra = extra.clamp(min=0)
    value = log_p.gather(-1, extra).masked_fill(is_known, -math.inf)
    return torch.cat([best, value], -1), torch.cat([tokens, extra], -1)


def rank_by_bank(
    sums: Tensor,
    tokens: Tensor,
    active: BeamState,
    per_hypothesis: int,
    forced: ForcePhrasesProcessor,
    t: int,
    rows: Tensor,
    k: int,
) -> Tensor:
    """Return the order of all candidates (B, C) when slots are shared by how many forced tokens they have met."""
    orders = []
    histories = active.tokens[:, :, :t].tolist()
    for row, totals, ids, before in zip(rows.tolist(), sums.tolist(), tokens.tolist(), histories, strict=True):
        met = [
            forced.count_met(
                [*before[c // per_hypothesis], token] if token != EOS else before[c // per_hypothesis], row
            )
            for c, token in enumerate(ids)
        ]
        orders.append(share_slots(totals, met, forced.count_forced(row), k))
    return torch.tensor(orders, device=sums.device)
