"""Several beams side by side, each kept from saying what the earlier ones just said (Vijayakumar et al. 2018).

    group g keeps the best by    log p(y_≤t) − λ Σ_{h<g} #{hypotheses of group h that live on with y_t at this step}

A group that is done and a hypothesis that ends count for nothing. The penalty decides what is kept at a step; it is no
part of a score, so results compare with those of other searches.

B sentences, G groups of k/G hypotheses, V vocabulary.
"""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from dragoman.core.errors import PartError
from dragoman.core.registry import Part, PositiveInt
from dragoman.core.types import BOS, Capacity, Hypothesis, Step
from dragoman.search import Limits, Start, searches
from dragoman.search.beam import Beam, Prefixes, empty, gather, keep_best, moved, rank, survivors
from dragoman.search.logits_processors import constrained
from dragoman.search.scoring import length_rules


@searches.register("diverse")
class Diverse:
    """Groups of beams, each kept from choosing what the groups before it choose at the same step."""

    draws = traces = looks = False
    seeks = True

    def __init__(
        self,
        *,
        size: PositiveInt = 6,
        groups: PositiveInt = 3,
        strength: Annotated[float, Field(ge=0.0)] = 0.5,
        length: Annotated[Part, length_rules] = Part("mean"),
    ) -> None:
        if size % groups:
            raise PartError(f"a diverse beam of {size} cannot be shared evenly by {groups} groups")
        self.size, self.groups, self.strength = size, groups, strength
        self.beam = Beam(size=size // groups, length=length)

    def __call__(self, step: Step, start: Start, limits: Limits) -> list[list[Hypothesis]]:
        longest, k, each = limits.longest, self.size, self.beam.size
        B, room = len(longest), int(longest.max()) + 1
        state, rows = start(Capacity(k, room)), torch.arange(B, device=longest.device)
        lives = [empty(B, each, room, longest.device) for _ in range(self.groups)]
        pools = [empty(B, each, room, longest.device) for _ in range(self.groups)]
        done = [torch.zeros(B, dtype=torch.bool, device=longest.device) for _ in range(self.groups)]
        for live in lives:
            live.total[:, 0] = live.score[:, 0] = 0.0
        token = longest.new_full((B, k), BOS)
        for t in range(room):
            log_p, state = step(token, state)
            said = torch.zeros_like(log_p[:, :1])  # (B, 1, V): how often the groups before chose each token
            parents = []
            for g in range(self.groups):
                mine = log_p[:, g * each : (g + 1) * each]
                lives[g], pools[g], done[g], order = self.advance(
                    mine, lives[g], pools[g], done[g], said, t, rows, limits
                )
                parents.append(order + g * each)
                chosen, alive = lives[g].tokens[:, None, :, t], lives[g].total[:, None] > -torch.inf
                said = said.scatter_add(-1, chosen, (alive & ~done[g][:, None, None]).to(said.dtype))
            state, token = moved(state, torch.cat(parents, 1)), torch.cat([live.tokens[:, :, t] for live in lives], 1)
            if bool(torch.stack(done).all()):
                break
        return merged(pools, rows)

    def advance(
        self,
        log_p: Tensor,
        live: Prefixes,
        pool: Prefixes,
        done: Tensor,
        said: Tensor,
        t: int,
        rows: Tensor,
        limits: Limits,
    ) -> tuple[Prefixes, Prefixes, Tensor, Tensor]:
        """One step of one group."""
        beam = self.beam
        log_p = constrained(log_p, live.tokens[:, :, :t], rows, limits)
        extended, parents = beam.extend(live, log_p, t, rows, limits, self.strength * said)
        finished = extended.ended & (rank(extended) < beam.size)
        pool = keep_best(pool, extended, finished, done)
        at_limit = (limits.longest == t) & ~done
        if bool(at_limit.any()):
            pool = beam.fill_cut(pool, live, parents, finished, at_limit, t, rows, limits)
        live, order = survivors(extended, None, beam.size)
        return live, pool, done | at_limit | beam.is_done(live, pool, limits.longest, t), parents.gather(1, order)


def merged(pools: list[Prefixes], rows: Tensor) -> list[list[Hypothesis]]:
    """The results of all groups, best first; what ended comes before what was cut, as in a beam."""
    results: list[list[Hypothesis]] = [[] for _ in rows]
    for pool in pools:
        gather(results, pool, rows, torch.ones_like(rows, dtype=torch.bool))
    return [sorted(found, key=lambda one: (one.finish_reason != "eos", -one.score)) for found in results]
