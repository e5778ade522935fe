"""What an encoder alone can answer: one label for the whole source, or one for each of its positions.

    classifier   p(y | x) = softmax(W f(pool(h_1 … h_S)))
    tagger       p(y_j | x) = softmax(W f(h_j))            also the masked language model: y_j is the word behind a mask

A head maps a Memory to hidden vectors; the model's output layer maps those to labels. No search is needed: `choose`
takes the most probable label wherever one is asked for.

B sentences, S source positions, D width, V labels.
"""

from __future__ import annotations

import math
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from dragoman.core.registry import Registry, UnitInterval
from dragoman.core.types import SPECIALS, Batch, Hypothesis, Memory, Output, Segments
from dragoman.nn.kernels.dropout import Dropout
from dragoman.nn.layers import linear


class Head(Protocol):
    """Memory → hidden vectors (B, N, D), and which labels of a batch (B, N) belong to them."""

    d: int

    def __call__(self, memory: Memory) -> Output: ...

    def gold(self, batch: Batch) -> Tensor: ...

    def choose(self, log_p: Tensor, lengths: Tensor, count: int) -> list[list[Hypothesis]]: ...


heads: Registry[Head] = Registry("head")


@heads.register("classifier")
class Classifier(nn.Module):
    """One label for the whole source: f = tanh(W pool(h))."""

    def __init__(
        self,
        d: int,
        *,
        pool: Literal["summary", "mean", "first", "attention"] = "summary",
        hidden: bool = True,
        dropout: UnitInterval = 0.1,
    ) -> None:
        super().__init__()
        self.d, self.pool = d, pool
        self.query = nn.Parameter(torch.randn(d) * d**-0.5) if pool == "attention" else None
        self.W = linear(d, d) if hidden else None
        self.dropout = Dropout(dropout)

    def forward(self, memory: Memory) -> Output:
        pooled, a = self.pooled(memory)
        o = pooled if self.W is None else torch.tanh(self.W(self.dropout(pooled)))
        return Output(self.dropout(o)[:, None], None if a is None else a[:, None])

    def pooled(self, memory: Memory) -> tuple[Tensor, Tensor | None]:
        """(B, D), and the weights (B, S) where a query chose what to look at."""
        h, mask = memory.states, memory.mask
        if self.pool == "first":
            return h[:, 0], None
        if self.pool == "mean":
            return Segments(memory.lengths).mean(h), None
        if self.query is None:
            return memory.summary, None
        # An outside query over a set of any size gives one vector of fixed size.
        a = (h @ self.query * self.d**-0.5).masked_fill(~mask, -math.inf).softmax(-1)  # (B, S)
        return (a[:, None] @ h)[:, 0], a

    def gold(self, batch: Batch) -> Tensor:
        return batch.target[:, 1:2]

    def choose(self, log_p: Tensor, lengths: Tensor, count: int) -> list[list[Hypothesis]]:
        """The `count` most probable labels of each sentence, log_p (B, 1, V)."""
        labels = without_specials(log_p)[:, 0]
        best, ids = labels.topk(min(count, labels.shape[-1] - len(SPECIALS)), -1)
        return [
            [Hypothesis([i], [p], p, "eos") for i, p in zip(row_ids, row, strict=True)]
            for row_ids, row in zip(ids.tolist(), best.double().tolist(), strict=True)
        ]


@heads.register("tagger")
class Tagger(nn.Module):
    """One label for each position: f = h_j, or norm(gelu(W h_j)) as BERT's masked language model has it."""

    def __init__(self, d: int, *, hidden: bool = False, dropout: UnitInterval = 0.1) -> None:
        super().__init__()
        self.d = d
        self.transform: Any = nn.Sequential(linear(d, d), nn.GELU(), nn.LayerNorm(d)) if hidden else nn.Identity()
        self.dropout = Dropout(dropout)

    def forward(self, memory: Memory) -> Output:
        return Output(self.dropout(self.transform(memory.states)))

    def gold(self, batch: Batch) -> Tensor:
        return batch.token_labels if batch.token_labels is not None else torch.zeros_like(batch.source)

    def choose(self, log_p: Tensor, lengths: Tensor, count: int) -> list[list[Hypothesis]]:
        """The most probable label of every position but the source's </s>, log_p (B, S, V)."""
        best, ids = without_specials(log_p).max(-1)
        rows = zip(ids.tolist(), best.double().tolist(), lengths.tolist(), strict=True)
        return [[Hypothesis(i[: n - 1], p[: n - 1], sum(p[: n - 1]), "eos")] for i, p, n in rows]


def without_specials(log_p: Tensor) -> Tensor:
    log_p = log_p.clone()
    log_p[..., : len(SPECIALS)] = -math.inf
    return log_p
