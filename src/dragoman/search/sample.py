"""Draw a result token by token: y_t ~ p(y_t | y_<t, x)^(1/τ), renormalized.

A sentence's draws come from a generator seeded by (seed, its place in the input), so that what else is in its batch
changes nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from dragoman.core import tree
from dragoman.core.interfaces import BOS, EOS, Capacity, Hypothesis, Step
from dragoman.core.registry import Count, Rate
from dragoman.search import Limits, Start, searches
from dragoman.search.rules import allowed


@searches.register("sample")
class Sample:
    """y_t ~ p(y_t | y_<t, x)^(1/temperature): one draw from the distribution itself."""

    size = 1

    def __init__(self, *, temperature: Rate = 1.0, seed: Count = 0) -> None:
        self.temperature, self.seed = temperature, seed

    def __call__(self, step: Step, start: Start, limits: Limits) -> list[list[Hypothesis]]:
        longest = limits.longest
        B, room = len(longest), int(longest.max()) + 1
        numbers = limits.numbers or range(B)
        chance = [np.random.default_rng((self.seed, number)) for number in numbers]
        state: Any = start(Capacity(1, room))
        rows, token = list(range(B)), longest.new_full((B, 1), BOS)
        tokens: list[list[int]] = [[] for _ in range(B)]
        log_probs: list[list[float]] = [[] for _ in range(B)]
        ended = ["length"] * B
        for t in range(room):
            log_p, state = step(token, state)
            log_p = allowed(log_p, t, limits.shortest)[:, 0]  # (rows, V)
            drawn = self.draw(log_p, [float(chance[row].random()) for row in rows])
            going = []
            for i, (row, y) in enumerate(zip(rows, drawn.tolist(), strict=True)):
                if y == EOS:
                    ended[row] = "end"
                elif t < int(longest[row]):  # at its limit a sentence may still end, but not go on
                    tokens[row].append(y)
                    going.append(i)
                else:
                    continue
                log_probs[row].append(float(log_p[i, y].double()))
            if not going:
                break
            kept = torch.tensor(going, device=longest.device)
            rows, token, state = [rows[i] for i in going], drawn[kept][:, None], tree.select(state, kept)
        return [[Hypothesis(tokens[b], log_probs[b], sum(log_probs[b]), ended[b])] for b in range(B)]

    def draw(self, log_p: Tensor, chance: list[float]) -> Tensor:
        """The token at which the running sum of probabilities passes a number from [0, 1), for each row."""
        p = (log_p.double() / self.temperature).softmax(-1).cumsum(-1)
        u = torch.tensor(chance, dtype=torch.float64, device=p.device)[:, None] * p[:, -1:]
        return torch.searchsorted(p, u, right=True)[:, 0].clamp(max=p.shape[-1] - 1)
