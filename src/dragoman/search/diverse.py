"""Diverse beam search: groups of beams that avoid each other's tokens (Vijayakumar et al. 2018).

    group g keeps the best by    log p(y_≤t) − λ Σ_{h<g} #{active hypotheses of group h that chose y_t at this step}

A group that is done and a hypothesis that ends count for nothing. The penalty decides what is kept at a step; it is no
part of a score, so outputs compare with those of other searches.

B sentences, G groups of k/G hypotheses, R steps (the maximum length + 1), V vocabulary.
"""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from dragoman.core.errors import PartError
from dragoman.core.registry import Part, PositiveInt
from dragoman.core.types import BOS, Capacity, Hypothesis, Step
from dragoman.search import SearchConstraints, Start, searches
from dragoman.search.beam import (
    Beam,
    BeamState,
    candidate_ranks,
    collect_hypotheses,
    empty_beam,
    merge_finished,
    reorder_state,
    select_active,
)
from dragoman.search.logits_processors import apply_constraints
from dragoman.search.scoring import length_rules


@searches.register("diverse")
class Diverse:
    """Groups of beams, each kept from choosing what the groups before it choose at the same step."""

    is_sampling = supports_trace = needs_attention = False
    supports_force_phrases = True

    def __init__(
        self,
        *,
        beam: PositiveInt = 5,
        num_beam_groups: PositiveInt | None = None,  # None: one per hypothesis
        diversity_penalty: Annotated[float, Field(ge=0.0)] = 0.5,
        length_rule: Annotated[Part, length_rules] = Part("mean"),
    ) -> None:
        """Divide the beam evenly into groups (default: one hypothesis each), or raise PartError."""
        groups = num_beam_groups or beam
        if beam % groups:
            raise PartError(f"a diverse beam of {beam} cannot be divided evenly into {groups} groups")
        self.num_hypotheses, self.num_beam_groups, self.diversity_penalty = beam, groups, diversity_penalty
        self.group_search = Beam(beam=beam // groups, length_rule=length_rule)

    def __call__(self, step: Step, start: Start, constraints: SearchConstraints) -> list[list[Hypothesis]]:
        """Search with all groups in turn at each step; return the outputs of all groups, best first."""
        max_lengths, k, group_size = constraints.max_lengths, self.num_hypotheses, self.group_search.num_hypotheses
        B, R = len(max_lengths), int(max_lengths.max()) + 1
        state, rows = start(Capacity(k, R)), torch.arange(B, device=max_lengths.device)
        active_groups = [empty_beam(B, group_size, R, max_lengths.device) for _ in range(self.num_beam_groups)]
        finished_groups = [empty_beam(B, group_size, R, max_lengths.device) for _ in range(self.num_beam_groups)]
        done = [torch.zeros(B, dtype=torch.bool, device=max_lengths.device) for _ in range(self.num_beam_groups)]
        for active in active_groups:
            active.total[:, 0] = active.score[:, 0] = 0.0
        token = max_lengths.new_full((B, k), BOS)
        for t in range(R):
            log_p, state = step(token, state)
            counts = torch.zeros_like(log_p[:, :1])  # (B, 1, V): how often the groups before chose each token
            parents = []
            for g in range(self.num_beam_groups):
                group_log_p = log_p[:, g * group_size : (g + 1) * group_size]
                active_groups[g], finished_groups[g], done[g], order = self.advance(
                    group_log_p, active_groups[g], finished_groups[g], done[g], counts, t, rows, constraints
                )
                parents.append(order + g * group_size)
                chosen, alive = active_groups[g].tokens[:, None, :, t], active_groups[g].total[:, None] > -torch.inf
                counts = counts.scatter_add(-1, chosen, (alive & ~done[g][:, None, None]).to(counts.dtype))
            state, token = (
                reorder_state(state, torch.cat(parents, 1)),
                torch.cat([active.tokens[:, :, t] for active in active_groups], 1),
            )
            if bool(torch.stack(done).all()):
                break
        return merge_groups(finished_groups, rows)

    def advance(
        self,
        log_p: Tensor,
        active: BeamState,
        finished: BeamState,
        done: Tensor,
        counts: Tensor,
        t: int,
        rows: Tensor,
        constraints: SearchConstraints,
    ) -> tuple[BeamState, BeamState, Tensor, Tensor]:
        """Advance one group by a step: return its active and finished hypotheses, what is done, and the parents."""
        beam = self.group_search
        log_p = apply_constraints(log_p, active.tokens[:, :, :t], rows, constraints)
        extended, parents = beam.extend(active, log_p, t, rows, constraints, self.diversity_penalty * counts)
        newly_finished = extended.has_eos & (candidate_ranks(extended) < beam.num_hypotheses)
        finished = merge_finished(finished, extended, newly_finished, done)
        at_limit = (constraints.max_lengths == t) & ~done
        if bool(at_limit.any()):
            finished = beam.add_truncated(finished, active, parents, newly_finished, at_limit, t, rows, constraints)
        active, order = select_active(extended, None, beam.num_hypotheses)
        return (
            active,
            finished,
            done | at_limit | beam.is_done(active, finished, constraints.max_lengths, t),
            parents.gather(1, order),
        )


def merge_groups(finished_groups: list[BeamState], rows: Tensor) -> list[list[Hypothesis]]:
    """Return the outputs of all groups of each sentence, best first; finished ones come before truncated ones."""
    results: list[list[Hypothesis]] = [[] for _ in rows]
    for finished in finished_groups:
        collect_hypotheses(results, finished, rows, torch.ones_like(rows, dtype=torch.bool))
    return [sorted(hypotheses, key=lambda one: (one.finish_reason != "eos", -one.score)) for hypotheses in results]
