"""Draw results token by token, from the model's distribution or from what is left of it when its tail is cut off.

    p ∝ p(y_t | y_<t, x)^(1/temperature)          y_t = the first token at which the running sum of p passes u ~ [0, 1)

Before the draw, tokens can be dropped: in the order below, each filter seeing what those before it left, renormalized.
At least one token always stays.

    top_k     keeps the k most probable
    top_p     keeps the most probable until they hold the mass top_p: the nucleus (Holtzman et al. 2020)
    min_p     keeps p ≥ min_p · max p (Nguyen et al. 2025)
    typical   keeps those whose surprise −log p is nearest to its mean H = −Σ p log p, until they hold that mass
              (Meister et al. 2023)
    epsilon   keeps p ≥ epsilon (Hewitt et al. 2022)

The numbers u of draw k come from a generator seeded by (seed, the sentence's place in the input, k): neither what else
is in the batch nor the number of draws changes a draw. Scores are what the model says, whatever was sharpened or cut.

B sentences still going, K draws of each, R room (the most tokens), V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from dragoman.core import tree
from dragoman.core.registry import NonNegativeInt, PositiveFloat, PositiveInt, UnitInterval
from dragoman.core.types import BOS, EOS, Capacity, Hypothesis, Step
from dragoman.search import Limits, Start, searches
from dragoman.search.logits_processors import constrained

Mass = Annotated[float, Field(gt=0.0, le=1.0)]


@searches.register("sample")
class Sample:
    """y_t ~ p(y_t | y_<t, x)^(1/temperature), with or without its tail: `size` independent draws, best score first."""

    draws = True
    traces = seeks = looks = False

    def __init__(
        self,
        *,
        size: PositiveInt = 1,
        temperature: PositiveFloat = 1.0,
        top_k: NonNegativeInt = 0,
        top_p: Mass = 1.0,
        min_p: UnitInterval = 0.0,
        typical: Mass = 1.0,
        epsilon: UnitInterval = 0.0,
        seed: NonNegativeInt = 0,
    ) -> None:
        self.size, self.temperature, self.seed = size, temperature, seed
        self.top_k, self.top_p, self.min_p, self.typical, self.epsilon = top_k, top_p, min_p, typical, epsilon

    def __call__(self, step: Step, start: Start, limits: Limits) -> list[list[Hypothesis]]:
        longest, K = limits.longest, self.size
        B, room = len(longest), int(longest.max()) + 1
        u = self.chances(limits.numbers or range(B), room).to(longest.device)  # (B, K, R)
        state = start(Capacity(K, room))
        rows = torch.arange(B, device=longest.device)  # which sentence each row is
        token = longest.new_full((B, K), BOS)
        tokens = longest.new_full((B, K, room), EOS)
        log_probs = torch.zeros_like(u)
        live = torch.ones(B, K, dtype=torch.bool, device=longest.device)
        ended, length = ~live, longest.new_zeros(B, K)
        for t in range(room):
            log_p, state = step(token, state)
            log_p = constrained(log_p, tokens[rows, :, :t], rows, limits)  # (B, K, V)
            token = draw(self.distribution(log_p), u[rows, :, t])
            chosen = log_p.gather(-1, token[..., None])[..., 0].double()  # (B, K)
            live = live & (chosen > -math.inf)  # where nothing may come next, a draw is cut
            ending = live & (token == EOS)
            live = live & (token != EOS) & (t < longest[rows])[:, None]  # at its limit one may still end, not go on
            token = torch.where(live, token, EOS)
            tokens[rows, :, t], log_probs[rows, :, t] = token, torch.where(live | ending, chosen, 0.0)
            ended[rows] |= ending
            length[rows] += live
            going = live.any(-1)
            if not going.all():
                rows, token, live, state = (
                    rows[going],
                    token[going],
                    live[going],
                    tree.select(state, going.nonzero()[:, 0]),
                )
                if not len(rows):
                    break
        columns = (x.tolist() for x in (tokens, log_probs, length, ended, longest))
        return [ranked(*fields) for fields in zip(*columns, strict=True)]

    def chances(self, numbers: Sequence[int], room: int) -> Tensor:
        """(B, K, R): the numbers from [0, 1) that every draw will use; the first of them do not depend on R."""
        drawn = [
            [np.random.default_rng((self.seed, number, k)).random(room) for k in range(self.size)] for number in numbers
        ]
        return torch.from_numpy(np.array(drawn))

    def distribution(self, log_p: Tensor) -> Tensor:
        """log p (…, V) → the probabilities that tokens are drawn with, as the header has it."""
        log_p = log_p.double()
        log_p = log_p - log_p.amax(-1, keepdim=True)  # the best token stays finite at any temperature
        p = (log_p / self.temperature).softmax(-1)
        if self.top_k:
            p = keep(p, first(p, self.top_k))
        if self.top_p < 1:
            p = keep(p, until(p, -p, self.top_p))
        if self.min_p:
            p = keep(p, p >= self.min_p * p.amax(-1, keepdim=True))
        if self.typical < 1:
            entropy = torch.special.entr(p).sum(-1, keepdim=True)
            p = keep(p, until(p, (-p.log() - entropy).abs(), self.typical))
        if self.epsilon:
            p = keep(p, p >= p.amax(-1, keepdim=True).clamp(max=self.epsilon))
        return p


def keep(p: Tensor, which: Tensor) -> Tensor:
    p = p * which
    return p / p.sum(-1, keepdim=True)


def first(p: Tensor, k: int) -> Tensor:
    """Whether each token is among the k most probable; of equal ones the earlier."""
    order = p.sort(stable=True, dim=-1, descending=True).indices
    return torch.zeros_like(p, dtype=torch.bool).scatter(-1, order[..., :k], True)


def until(p: Tensor, key: Tensor, mass: float) -> Tensor:
    """Whether each token is in the smallest set, taken by rising key, that holds the mass."""
    order = key.sort(stable=True, dim=-1).indices
    before = p.gather(-1, order).cumsum(-1).roll(1, -1)  # the mass of those that come earlier
    before[..., 0] = 0.0
    return torch.zeros_like(p, dtype=torch.bool).scatter(-1, order, before < mass)


def draw(p: Tensor, u: Tensor) -> Tensor:
    """The token at which the running sum of p (…, V) passes u (…) from [0, 1)."""
    sums = p.cumsum(-1)
    u = u[..., None] * sums[..., -1:]  # the whole sum may differ from 1 by rounding
    return torch.searchsorted(sums, u, right=True)[..., 0].clamp(max=p.shape[-1] - 1)


def ranked(
    tokens: list[list[int]], log_probs: list[list[float]], lengths: list[int], ended: list[bool], longest: int
) -> list[Hypothesis]:
    """The draws of one sentence, best score first; the same result may be there more than once."""
    found = []
    for y, logs, n, end in zip(tokens, log_probs, lengths, ended, strict=True):
        kept = logs[: n + end]
        why = "eos" if end else "length" if n == longest else "no_valid_token"
        found.append(Hypothesis(y[:n], kept, sum(kept), why))
    return sorted(found, key=lambda hypothesis: -hypothesis.score)
