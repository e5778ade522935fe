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

from dragoman.core.errors import PartError
from dragoman.core.registry import Part, PositiveInt
from dragoman.core.types import BOS, Capacity, Hypothesis, Step
from dragoman.search import SearchConstraints, Start, searches
from dragoman.search.beam import Beam, collect_hypotheses, empty_beam, empty_hypothesis, reorder_state
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
        groups = num_beam_groups or beam
        if beam % groups:
            raise PartError(f"a diverse beam of {beam} cannot be divided evenly into {groups} groups")
        self.num_hypotheses, self.num_beam_groups, self.diversity_penalty = beam, groups, diversity_penalty
        self.group_search = Beam(beam=beam // groups, length_rule=length_rule, early_stopping=False)

    def __call__(self, step: Step, start: Start, constraints: SearchConstraints) -> list[list[Hypothesis]]:
        max_lengths, G, size = constraints.max_lengths, self.num_beam_groups, self.group_search.num_hypotheses
        B, R, device = len(max_lengths), max(constraints.limit_steps) + 1, max_lengths.device
        state, rows = start(Capacity(self.num_hypotheses, R)), torch.arange(B, device=device)
        active = [empty_hypothesis(B, size, R, device) for _ in range(G)]
        finished = [empty_beam(B, size, R, device) for _ in range(G)]
        done = [torch.zeros(B, dtype=torch.bool, device=device) for _ in range(G)]
        token = max_lengths.new_full((B, self.num_hypotheses), BOS)
        for t in range(R):
            log_p, state = step(token, state)
            counts = torch.zeros_like(log_p[:, :1])  # (B, 1, V): how often the groups before chose each token
            parents = []
            for g in range(G):
                group_log_p, penalty = log_p[:, g * size : (g + 1) * size], self.diversity_penalty * counts
                active[g], finished[g], done[g], order = self.group_search.advance(
                    group_log_p, active[g], finished[g], done[g], t, rows, constraints, penalty
                )
                parents.append(order + g * size)
                chosen, alive = active[g].tokens[:, None, :, t], active[g].total[:, None] > -torch.inf
                counts = counts.scatter_add(-1, chosen, (alive & ~done[g][:, None, None]).to(counts.dtype))
            state = reorder_state(state, torch.cat(parents, 1))
            token = torch.cat([group.tokens[:, :, t] for group in active], 1)
            if bool(torch.stack(done).all()):
                break
        results: list[list[Hypothesis]] = [[] for _ in rows]
        for group in finished:
            collect_hypotheses(results, group, rows, torch.ones_like(rows, dtype=torch.bool), size)
        return [sorted(hypotheses, key=lambda one: (one.finish_reason != "eos", -one.score)) for hypotheses in results]
