"""Exhaustive search: score every output there is. The true argmax, for tiny problems and to check other searches.

    ŷ = argmax_y score(log p(y | x), |y|)          over all y that the constraints allow

Breadth first: all prefixes of t tokens, then all of t + 1, each a row of the decoder's state. A prefix that chose </s>
is an output; one of the maximum length that may not end there is truncated, and comes after those that ended. There are
about V^max_length prefixes, so more than `max_hypotheses` are refused.

N prefixes, t tokens each, V vocabulary.
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
from dragoman.search import SearchConstraints, Start, searches
from dragoman.search.logits_processors import apply_constraints
from dragoman.search.scoring import length_rules

ROWS = 256  # prefixes in one step of the model: a large vocabulary is refused before it fills the memory


@dataclass
class Block:
    """Some prefixes of equal length. The state is that of the prefixes they extend: rows are copied when needed."""

    tokens: Tensor  # (N, t)
    log_probs: Tensor  # (N, t), float64
    state: Any
    parents: Tensor  # (N,): the rows of the state


@searches.register("exhaustive")
class Exhaustive:
    """argmax over every output there is, for tiny problems: the truth that other searches are measured against."""

    is_sampling = supports_trace = needs_attention = False
    supports_force_phrases = True

    def __init__(
        self,
        *,
        beam: PositiveInt = 5,
        length_rule: Annotated[Part, length_rules] = Part("mean"),
        max_hypotheses: PositiveInt = 200_000,
    ) -> None:
        self.num_hypotheses, self.max_hypotheses = beam, max_hypotheses
        self.length_rule = length_rules.build(length_rule)

    def __call__(self, step: Step, start: Start, constraints: SearchConstraints) -> list[list[Hypothesis]]:
        max_lengths: list[int] = constraints.max_lengths.tolist()
        state = start(Capacity(1, max(max_lengths) + 1))
        return [
            self.search_sentence(step, state, constraints, row, max_length)
            for row, max_length in enumerate(max_lengths)
        ]

    def search_sentence(
        self, step: Step, state: Any, constraints: SearchConstraints, row: int, max_length: int
    ) -> list[Hypothesis]:
        """Return the best outputs of sentence `row`; raise UserError above max_hypotheses prefixes."""
        index = torch.tensor([row], device=constraints.max_lengths.device)
        empty = index.new_zeros(1, 0)
        level, count = [Block(empty, empty.double(), state, index)], 1
        finished: list[Hypothesis] = []
        truncated: list[Hypothesis] = []
        for t in range(max_length + 1):
            following = []
            for block in level:
                token = block.tokens[:, -1:] if t else torch.full_like(block.parents[:, None], BOS)
                log_p, state = step(token, tree.select(block.state, block.parents))
                log_p = apply_constraints(log_p, block.tokens[:, None], index.expand(len(token)), constraints)
                log_p = log_p[:, 0].double()  # (N, V)
                finished += self.best_sequences(
                    block.tokens, torch.cat([block.log_probs, log_p[:, EOS, None]], 1), "eos"
                )
                if t == max_length:
                    blocked = log_p[:, EOS] == -math.inf
                    truncated += self.best_sequences(block.tokens[blocked], block.log_probs[blocked], "length")
                    continue
                allowed = (log_p > -math.inf).index_fill(1, index.new_tensor([EOS]), False)
                count += int(allowed.sum())
                if count > self.max_hypotheses:
                    raise UserError(
                        f"exhaustive search met over {self.max_hypotheses:,} prefixes of up to {max_length} tokens; "
                        "it is for tiny problems, so allow fewer tokens or take a beam"
                    )
                following += extend_block(block, log_p, allowed, state)
            level = following
        best_first = [*sorted(finished, key=lambda one: -one.score), *sorted(truncated, key=lambda one: -one.score)]
        return best_first[: self.num_hypotheses]

    def best_sequences(self, tokens: Tensor, log_probs: Tensor, reason: str) -> list[Hypothesis]:
        """Return the best of some sequences (N, t) of one length as hypotheses; log_probs may include that of </s>."""
        total = log_probs.sum(-1)  # (N,)
        score = self.length_rule(total, torch.full_like(total, max(log_probs.shape[1], 1)))
        order = score.argsort(descending=True, stable=True)[: self.num_hypotheses]
        order = order[total[order] > -math.inf]
        columns = (x[order].tolist() for x in (tokens, log_probs, score))
        return [Hypothesis(y, logs, value, reason) for y, logs, value in zip(*columns, strict=True)]


def extend_block(block: Block, log_p: Tensor, allowed: Tensor, state: Any) -> list[Block]:
    """Extend every prefix of a block by every token allowed after it, (N, V); return blocks of up to ROWS rows."""
    parents, tokens = allowed.nonzero(as_tuple=True)
    blocks: list[Block] = []
    if not len(parents):  # which torch.split would make an empty block of
        return blocks
    for old, new in zip(torch.split(parents, ROWS), torch.split(tokens, ROWS), strict=True):
        extended = torch.cat([block.tokens[old], new[:, None]], 1)
        logs = torch.cat([block.log_probs[old], log_p[old, new, None]], 1)
        blocks.append(Block(extended, logs, state, old))
    return blocks
