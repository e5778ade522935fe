"""Heads on an encoder: one label for the whole source, or one for each of its positions.

    classifier   p(y | x) = softmax(W f(pool(h_1 … h_S)))
    tagger       p(y_j | x) = softmax(W f(h_j))            also the masked language model: y_j is the masked token

A head maps a Memory to hidden vectors; the model's output layer maps those to labels. No search is needed:
`predict_labels` takes the most probable label at each position.

B sentences, S source positions, D width, V labels.
"""

from __future__ import annotations

import math
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from dragoman.core.registry import Registry, UnitInterval
from dragoman.core.types import SPECIALS, Batch, Hypothesis, Memory, Output, Segments
from dragoman.nn.kernels.dropout import Dropout
from dragoman.nn.layers import linear


class PredictionHead(Protocol):
    """Memory → hidden vectors (B, N, D) of width `d`, one for each label."""

    d: int

    def __call__(self, memory: Memory) -> Output: ...

    def gold_labels(self, batch: Batch) -> Tensor:
        """The labels of a batch that belong to the hidden vectors, (B, N); <pad>: none."""
        ...

    def predict_labels(self, log_p: Tensor, lengths: Tensor, count: int) -> list[list[Hypothesis]]:
        """The `count` best predictions for each source, from log p (B, N, V) and the source lengths (B,)."""
        ...


heads: Registry[PredictionHead] = Registry("head")


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
        """tanh(W pool(h)), or pool(h) without `hidden`, with dropout: (B, 1, D), and attention pooling's weights."""
        pooled, a = self.pool_states(memory)
        o = pooled if self.W is None else torch.tanh(self.W(self.dropout(pooled)))
        return Output(self.dropout(o)[:, None], None if a is None else a[:, None])

    def pool_states(self, memory: Memory) -> tuple[Tensor, Tensor | None]:
        """One vector per source, (B, D), and the weights (B, S) of attention pooling."""
        h, mask = memory.states, memory.mask
        if self.pool == "first":
            return h[:, 0], None
        if self.pool == "mean":
            return Segments(memory.lengths).mean(h), None
        if self.query is None:
            return memory.summary, None
        # Attention pooling: one trained query attends to all states.
        a = (h @ self.query * self.d**-0.5).masked_fill(~mask, -math.inf).softmax(-1)  # (B, S)
        return (a[:, None] @ h)[:, 0], a

    def gold_labels(self, batch: Batch) -> Tensor:
        """The label of each source, (B, 1): the first token of its target after <s>."""
        return batch.target[:, 1:2]

    def predict_labels(self, log_p: Tensor, lengths: Tensor, count: int) -> list[list[Hypothesis]]:
        """The `count` best labels of each source as one-token hypotheses, log_p (B, 1, V); `lengths` is ignored."""
        labels = mask_special_tokens(log_p)[:, 0]
        best, ids = labels.topk(min(count, labels.shape[-1] - len(SPECIALS)), -1)
        return [
            [Hypothesis([i], [p], p, "eos") for i, p in zip(row_ids, row, strict=True)]
            for row_ids, row in zip(ids.tolist(), best.double().tolist(), strict=True)
        ]


@heads.register("tagger")
class Tagger(nn.Module):
    """One label for each position: f = h_j, or norm(gelu(W h_j)) as in BERT's masked language model."""

    def __init__(self, d: int, *, hidden: bool = False, dropout: UnitInterval = 0.1) -> None:
        super().__init__()
        self.d = d
        self.transform = nn.Sequential(linear(d, d), nn.GELU(), nn.LayerNorm(d)) if hidden else nn.Identity()
        self.dropout = Dropout(dropout)

    def forward(self, memory: Memory) -> Output:
        """The states, or norm(gelu(W h)) with `hidden`, with dropout: one vector per position, (B, S, D)."""
        return Output(self.dropout(self.transform(memory.states)))

    def gold_labels(self, batch: Batch) -> Tensor:
        """The label of each source position, (B, S); all <pad> where the batch has no labels."""
        return batch.token_labels if batch.token_labels is not None else torch.zeros_like(batch.source)

    def predict_labels(self, log_p: Tensor, lengths: Tensor, count: int) -> list[list[Hypothesis]]:
        """One hypothesis per source: the best label at each position but the last, log_p (B, S, V); ignores `count`."""
        best, ids = mask_special_tokens(log_p).max(-1)
        rows = zip(ids.tolist(), best.double().tolist(), lengths.tolist(), strict=True)
        return [[Hypothesis(i[: n - 1], p[: n - 1], sum(p[: n - 1]), "eos")] for i, p, n in rows]


def mask_special_tokens(log_p: Tensor) -> Tensor:
    """A copy of log p with −∞ for the special tokens, which are no labels."""
    log_p = log_p.clone()
    log_p[..., : len(SPECIALS)] = -math.inf
    return log_p
