"""Look at every result there is: the true argmax, for tiny problems and to hold other searches against.

    ŷ = argmax_y score(log p(y | x), |y|)          over all y that the limits and rules allow

Breadth first: all beginnings of t tokens, then all of t + 1, each a row of the model's state of its own. A beginning
that chose </s> is a result; one that reached its longest length and may not end there is cut, and comes after those
that ended. There are about V^longest beginnings, so more than `most` are refused.

N beginnings, t tokens each, V vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor

from dragoman.core import tree
from dragoman.core.errors import UserError
from dragoman.core.registry import Part, PositiveInt
from dragoman.core.types import BOS, EOS, Capacity, Hypothesis, Step
from dragoman.search import Limits, Start, searches
from dragoman.search.logits_processors import constrained
from dragoman.search.scoring import length_rules

ROWS = 256  # beginnings in one step of the model: a large vocabulary is refused before it fills the memory


@dataclass
class Block:
    """Some beginnings of equal length. The state is that of the beginnings they extend: rows are copied when needed."""

    tokens: Tensor  # (N, t)
    log_probs: Tensor  # (N, t), float64
    state: Any
    parents: Tensor  # (N,): the rows of the state


@searches.register("exhaustive")
class Exhaustive:
    """argmax over every result there is, for tiny problems: the truth that other searches are measured against."""

    draws = traces = looks = False
    seeks = True

    def __init__(
        self,
        *,
        size: PositiveInt = 5,
        length: Annotated[Part, length_rules] = Part("mean"),
        most: PositiveInt = 200_000,
    ) -> None:
        self.size, self.rule, self.most = size, length_rules.build(length), most

    def __call__(self, step: Step, start: Start, limits: Limits) -> list[list[Hypothesis]]:
        longest = limits.longest.tolist()
        state = start(Capacity(1, max(longest) + 1))
        return [self.one(step, state, limits, row, most_tokens) for row, most_tokens in enumerate(longest)]

    def one(self, step: Step, state: Any, limits: Limits, row: int, longest: int) -> list[Hypothesis]:
        """The best results of one sentence."""
        place = torch.tensor([row], device=limits.longest.device)
        nothing = place.new_zeros(1, 0)
        level, count = [Block(nothing, nothing.double(), state, place)], 1
        ended: list[Hypothesis] = []
        cut: list[Hypothesis] = []
        for t in range(longest + 1):
            following = []
            for block in level:
                token = block.tokens[:, -1:] if t else torch.full_like(block.parents[:, None], BOS)
                log_p, state = step(token, tree.select(block.state, block.parents))
                log_p = constrained(log_p, block.tokens[:, None], place.expand(len(token)), limits)
                log_p = log_p[:, 0].double()  # (N, V)
                ended += self.best(block.tokens, torch.cat([block.log_probs, log_p[:, EOS, None]], 1), "eos")
                if t == longest:
                    stuck = log_p[:, EOS] == -math.inf
                    cut += self.best(block.tokens[stuck], block.log_probs[stuck], "length")
                    continue
                allowed = (log_p > -math.inf).index_fill(1, place.new_tensor([EOS]), False)
                count += int(allowed.sum())
                if count > self.most:
                    raise UserError(
                        f"exhaustive search met more than {self.most:,} beginnings of at most {longest} tokens; "
                        "it is for tiny problems, so allow fewer tokens or take a beam"
                    )
                following += extensions(block, log_p, allowed, state)
            level = following
        return (by_score(ended)[: self.size] + by_score(cut))[: self.size]

    def best(self, tokens: Tensor, log_probs: Tensor, ended: str) -> list[Hypothesis]:
        """The best of some sequences of one length: tokens (N, t), log p (N, t), or t + 1 with that of </s>."""
        total = log_probs.sum(-1)  # (N,)
        score = self.rule(total, torch.full_like(total, max(log_probs.shape[1], 1)))
        order = score.argsort(descending=True, stable=True)[: self.size]
        order = order[total[order] > -math.inf]
        columns = (x[order].tolist() for x in (tokens, log_probs, score))
        return [Hypothesis(y, logs, value, ended) for y, logs, value in zip(*columns, strict=True)]


def extensions(block: Block, log_p: Tensor, allowed: Tensor, state: Any) -> list[Block]:
    """Every beginning of a block with every token allowed after it, ROWS to a block; log_p and allowed (N, V)."""
    parents, tokens = allowed.nonzero(as_tuple=True)
    blocks: list[Block] = []
    if not len(parents):  # which torch.split would make an empty block of
        return blocks
    for old, new in zip(torch.split(parents, ROWS), torch.split(tokens, ROWS), strict=True):
        said = torch.cat([block.tokens[old], new[:, None]], 1)
        logs = torch.cat([block.log_probs[old], log_p[old, new, None]], 1)
        blocks.append(Block(said, logs, state, old))
    return blocks


def by_score(found: list[Hypothesis]) -> list[Hypothesis]:
    return sorted(found, key=lambda hypothesis: -hypothesis.score)
