"""Sampling: draw each token from the model's distribution, or from what is left of it when its tail is cut off.

    p ∝ p(y_t | y_<t, x)^(1/temperature)          y_t = the first token at which the running sum of p passes u ~ [0, 1)

Before the draw, tokens can be dropped: in the order below, each filter seeing what those before it left, renormalized.
At least one token always stays.

    top_k            keeps the k most probable
    top_p            keeps the most probable until they hold the mass top_p: the nucleus (Holtzman et al. 2020)
    min_p            keeps p ≥ min_p · max p (Nguyen et al. 2025)
    typical_p        keeps those whose surprise −log p is nearest to its mean H = −Σ p log p, until they hold that mass
                     (Meister et al. 2023)
    epsilon_cutoff   keeps p ≥ epsilon_cutoff (Hewitt et al. 2022)

The uniform numbers u of sample k come from a generator seeded by (seed, the sentence's index in the input, k): neither
the rest of the batch nor the number of samples changes a sample. Scores are the model's own log-probabilities, whatever
was sharpened or dropped.

B active sentences, K samples of each, R steps (the maximum length + 1), V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from dragoman.core.registry import NonNegativeInt, PositiveFloat, PositiveInt, UnitInterval
from dragoman.core.types import Hypothesis, Step
from dragoman.search import SearchConstraints, Start, searches
from dragoman.search.greedy import extend_independently

Mass = Annotated[float, Field(gt=0.0, le=1.0)]


@searches.register("sample")
class Sample:
    """y_t ~ p(y_t | y_<t, x)^(1/temperature), with or without its tail: `num_samples` samples, best score first."""

    is_sampling = True
    supports_trace = supports_force_phrases = needs_attention = False

    def __init__(
        self,
        *,
        num_samples: PositiveInt = 1,
        temperature: PositiveFloat = 1.0,
        top_k: NonNegativeInt = 0,
        top_p: Mass = 1.0,
        min_p: UnitInterval = 0.0,
        typical_p: Mass = 1.0,
        epsilon_cutoff: UnitInterval = 0.0,
        seed: NonNegativeInt = 0,
    ) -> None:
        self.num_hypotheses, self.temperature, self.seed = num_samples, temperature, seed
        self.top_k, self.top_p, self.min_p = top_k, top_p, min_p
        self.typical_p, self.epsilon_cutoff = typical_p, epsilon_cutoff

    def __call__(self, step: Step, start: Start, constraints: SearchConstraints) -> list[list[Hypothesis]]:
        max_lengths = constraints.max_lengths
        indices = constraints.input_indices or range(len(max_lengths))
        u = self.uniforms(indices, int(max_lengths.max()) + 1).to(max_lengths.device)  # (B, K, R)

        def draw(log_p: Tensor, rows: Tensor, t: int) -> tuple[Tensor, Tensor]:
            token = sample_tokens(self.distribution(log_p), u[rows, :, t])
            return log_p.gather(-1, token[..., None])[..., 0], token

        return extend_independently(step, start, constraints, self.num_hypotheses, draw)

    def uniforms(self, input_indices: Sequence[int], max_steps: int) -> Tensor:
        """Return uniform numbers (B, K, R), seeded by seed, input index and sample: they do not depend on the batch."""
        drawn = [
            [np.random.default_rng((self.seed, index, k)).random(max_steps) for k in range(self.num_hypotheses)]
            for index in input_indices
        ]
        return torch.from_numpy(np.array(drawn))

    def distribution(self, log_p: Tensor) -> Tensor:
        """Return the probabilities to sample with from log p (…, V): temperature, then top-k, top-p and the like."""
        log_p = log_p.double()
        log_p = log_p - log_p.amax(-1, keepdim=True)  # the best token stays finite at any temperature
        p = (log_p / self.temperature).softmax(-1)
        if self.top_k:
            p = renormalize(p, most_probable(p, self.top_k))
        if self.top_p < 1:
            p = renormalize(p, smallest_set(p, -p, self.top_p))
        if self.min_p:
            p = renormalize(p, p >= self.min_p * p.amax(-1, keepdim=True))
        if self.typical_p < 1:
            entropy = torch.special.entr(p).sum(-1, keepdim=True)
            p = renormalize(p, smallest_set(p, (-p.log() - entropy).abs(), self.typical_p))
        if self.epsilon_cutoff:
            p = renormalize(p, p >= p.amax(-1, keepdim=True).clamp(max=self.epsilon_cutoff))
        return p


def renormalize(p: Tensor, kept: Tensor) -> Tensor:
    """Set the probabilities of tokens that are not kept to 0, and rescale the others to sum to 1."""
    p = p * kept
    return p / p.sum(-1, keepdim=True)


def most_probable(p: Tensor, k: int) -> Tensor:
    """Return whether each token is among the k most probable, as a mask; of equal ones, the earlier."""
    order = p.sort(stable=True, dim=-1, descending=True).indices
    return torch.zeros_like(p, dtype=torch.bool).scatter(-1, order[..., :k], True)


def smallest_set(p: Tensor, key: Tensor, mass: float) -> Tensor:
    """Return a mask of the first tokens, by rising key, whose probabilities together reach `mass`."""
    order = key.sort(stable=True, dim=-1).indices
    before = p.gather(-1, order).cumsum(-1).roll(1, -1)  # the mass of those that come earlier
    before[..., 0] = 0.0
    return torch.zeros_like(p, dtype=torch.bool).scatter(-1, order, before < mass)


def sample_tokens(p: Tensor, u: Tensor) -> Tensor:
    """Return the token at which the running sum of p (…, V) passes u (…) from [0, 1), by inverse sampling."""
    sums = p.cumsum(-1)
    u = u[..., None] * sums[..., -1:]  # the whole sum may differ from 1 by rounding
    return torch.searchsorted(sums, u, right=True)[..., 0].clamp(max=p.shape[-1] - 1)
