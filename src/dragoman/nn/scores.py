"""How well each key matches each query: one score e for every pair.

    dot        q·k                   scaled     q·k / √d             general    qᵀ W k
    concat     vᵀ tanh(W [q; k])     additive   vᵀ tanh(W₁ q + W₂ k)
    location   vᵀ tanh(W₁ q + W₂ k_j + U f_j),   f = F * α          Chorowski et al. 2015
    coverage   vᵀ tanh(W₁ q + W₂ k_j + w cov_j), cov = Σ α          Tu et al. 2016, See et al. 2017

B batch, T queries, S keys, D width. Scores work on any leading dimensions: (B, T, D_q) × (B, S, D_k) → (B, T, S), or
the same with heads in between. `prepare_keys` computes once per source what depends on the keys alone; the caller keeps
the result in its state. W and W₂ have a bias where tanh follows.

The last two scores use α, the attention weights of earlier steps. The caller keeps them as `past_weights` (B, T, S),
zeros at first (None: no earlier step). After each step `update_past_weights` gives the next ones, and `penalty` a term
for the loss.
"""

from __future__ import annotations

from typing import Annotated, Protocol

import torch
from pydantic import Field
from torch import Tensor, nn

from dragoman.core.errors import PartError
from dragoman.core.registry import PositiveInt, Registry
from dragoman.nn.kernels.additive import additive_score, pairwise_sum
from dragoman.nn.layers import linear


class ScoreFunction(Protocol):
    """How well each key matches each query: q (…, T, D_q) and prepared keys (…, S, ·) → e (…, T, S)."""

    uses_past_weights: bool  # only then are the last two methods called

    def prepare_keys(self, k: Tensor) -> Tensor:
        """What depends on the keys alone, computed once per source: (…, S, D_k) → (…, S, ·)."""
        ...

    def __call__(self, q: Tensor, keys: Tensor, past_weights: Tensor | None = None) -> Tensor: ...

    def update_past_weights(self, past_weights: Tensor, a: Tensor) -> Tensor:
        """The past weights after a step with weights a, (…, T, S) each."""
        ...

    def penalty(self, past_weights: Tensor, a: Tensor) -> Tensor | None:
        """What weights a add to the loss, (…, T), given the weights before them; None: nothing."""
        ...


scores: Registry[ScoreFunction] = Registry("score")


@scores.register("dot")
class DotScore(nn.Module):
    """e = q·k; queries and keys have the same width."""

    uses_past_weights = False
    scale = 1.0

    def __init__(self, d_q: int, d_k: int) -> None:
        super().__init__()
        if d_q != d_k:
            raise PartError(f"a dot score needs queries and keys of the same width, not {d_q} and {d_k}; use 'general'")

    def prepare_keys(self, k: Tensor) -> Tensor:
        return k

    def forward(self, q: Tensor, keys: Tensor, past_weights: Tensor | None = None) -> Tensor:
        return q @ keys.transpose(-1, -2) * self.scale


@scores.register("scaled_dot")
class ScaledDotScore(DotScore):
    """e = q·k / √d, so that its variance does not grow with the width."""

    def __init__(self, d_q: int, d_k: int) -> None:
        super().__init__(d_q, d_k)
        self.scale = d_k**-0.5


def fused_scale(score: ScoreFunction) -> float | None:
    """The s of a score that is exactly s q·k, which fused kernels compute; None: any other score, subclasses too."""
    return score.scale if isinstance(score, DotScore) and type(score) in (DotScore, ScaledDotScore) else None


@scores.register("general")
class GeneralScore(nn.Module):
    """e = qᵀ W k; widths may differ."""

    uses_past_weights = False

    def __init__(self, d_q: int, d_k: int) -> None:
        super().__init__()
        self.W = linear(d_k, d_q, bias=False)

    def prepare_keys(self, k: Tensor) -> Tensor:
        keys: Tensor = self.W(k)
        return keys

    def forward(self, q: Tensor, keys: Tensor, past_weights: Tensor | None = None) -> Tensor:
        return q @ keys.transpose(-1, -2)


@scores.register("concat")
class ConcatScore(nn.Module):
    """e = vᵀ tanh(W [q; k]); widths may differ, `width` is the width of W [q; k] (default: the keys')."""

    uses_past_weights = False

    def __init__(self, d_q: int, d_k: int, *, width: PositiveInt | None = None) -> None:
        super().__init__()
        width = width or d_k
        self.d_q = d_q
        self.W, self.v = linear(d_q + d_k, width), linear(width, 1, bias=False)

    def prepare_keys(self, k: Tensor) -> Tensor:
        """W_k k + b, where W [q; k] = W_q q + W_k k with the columns of W: no pair [q; k] is ever formed."""
        return nn.functional.linear(k, self.W.weight[:, self.d_q :], self.W.bias)

    def forward(self, q: Tensor, keys: Tensor, past_weights: Tensor | None = None) -> Tensor:
        return additive_score(nn.functional.linear(q, self.W.weight[:, : self.d_q]), keys, self.v.weight[0])


class TanhScore(nn.Module):
    """e = vᵀ tanh(W₁ q + W₂ k + what the past weights add): the base of the additive scores."""

    uses_past_weights = True
    v: nn.Linear

    def __init__(self, d_q: int, d_k: int, width: int) -> None:
        super().__init__()
        self.W1, self.W2 = linear(d_q, width, bias=False), linear(d_k, width)

    def prepare_keys(self, k: Tensor) -> Tensor:
        keys: Tensor = self.W2(k)
        return keys

    def forward(self, q: Tensor, keys: Tensor, past_weights: Tensor | None = None) -> Tensor:
        sums = pairwise_sum(self.W1(q), keys)  # (..., T, S, D)
        if past_weights is not None:
            sums = sums + self.past_term(past_weights)
        e: Tensor = self.v(torch.tanh(sums))[..., 0]
        return e

    def past_term(self, past_weights: Tensor) -> Tensor:
        """What the past weights (…, T, S) add to the sum: (…, T, S, D)"""
        raise NotImplementedError

    def update_past_weights(self, past_weights: Tensor, a: Tensor) -> Tensor:
        return past_weights + a

    def penalty(self, past_weights: Tensor, a: Tensor) -> Tensor | None:
        return None


@scores.register("additive")
class AdditiveScore(TanhScore):
    """e = vᵀ tanh(W₁ q + W₂ k); widths may differ, `width` is the width of the sum (default: the keys')."""

    uses_past_weights = False

    def __init__(self, d_q: int, d_k: int, *, width: PositiveInt | None = None) -> None:
        width = width or d_k
        super().__init__(d_q, d_k, width)
        self.v = linear(width, 1, bias=False)

    def forward(self, q: Tensor, keys: Tensor, past_weights: Tensor | None = None) -> Tensor:
        return additive_score(self.W1(q), keys, self.v.weight[0])


@scores.register("location")
class LocationScore(TanhScore):
    """e = vᵀ tanh(W₁ q + W₂ k + U f), f = F * α: additive, with features of the previous attention weights.

    F is a convolution with `filters` kernels of width `kernel` over the weights of the previous step, or, if
    `cumulative`, over the sum of the weights of all earlier steps. Outside of the source weights are 0.
    """

    def __init__(
        self,
        d_q: int,
        d_k: int,
        *,
        width: PositiveInt | None = None,
        filters: PositiveInt = 10,
        kernel: PositiveInt = 31,
        cumulative: bool = False,
    ) -> None:
        if kernel % 2 == 0:
            raise PartError(f"a location score needs an odd kernel, centered on a key, not {kernel}; use {kernel + 1}")
        width = width or d_k
        super().__init__(d_q, d_k, width)
        self.cumulative = cumulative
        self.F = nn.Conv1d(1, filters, kernel, padding=kernel // 2, bias=False)
        self.U, self.v = linear(filters, width, bias=False), linear(width, 1, bias=False)

    def past_term(self, past_weights: Tensor) -> Tensor:
        f = self.F(past_weights.flatten(0, -2)[:, None])  # (…, filters, S)
        term: Tensor = self.U(f.unflatten(0, past_weights.shape[:-1]).transpose(-1, -2))
        return term

    def update_past_weights(self, past_weights: Tensor, a: Tensor) -> Tensor:
        return past_weights + a if self.cumulative else a


@scores.register("coverage")
class CoverageScore(TanhScore):
    """e = vᵀ tanh(W₁ q + W₂ k + w cov), cov = Σ α: additive, with the total attention each key has had so far.

    With `penalty` λ > 0, the coverage loss λ Σ_j min(a_j, cov_j) is added to the training loss.
    """

    def __init__(
        self, d_q: int, d_k: int, *, width: PositiveInt | None = None, penalty: Annotated[float, Field(ge=0.0)] = 0.0
    ) -> None:
        width = width or d_k
        super().__init__(d_q, d_k, width)
        self.penalty_weight = penalty
        self.w, self.v = linear(1, width, bias=False), linear(width, 1, bias=False)

    def past_term(self, past_weights: Tensor) -> Tensor:
        term: Tensor = self.w(past_weights[..., None])
        return term

    def penalty(self, past_weights: Tensor, a: Tensor) -> Tensor | None:
        """λ Σ_j min(a_j, cov_j), (…, T), where cov is `past_weights`, summed already; None if λ = 0."""
        return self.penalty_weight * torch.minimum(a, past_weights).sum(-1) if self.penalty_weight else None
