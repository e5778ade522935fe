"""How well each key answers each query: one number e for every pair.

    dot        q·k                   scaled     q·k / √d             general    qᵀ W k
    concat     vᵀ tanh(W [q; k])     additive   vᵀ tanh(W₁ q + W₂ k)
    location   vᵀ tanh(W₁ q + W₂ k_j + U f_j),   f = F * α          Chorowski et al. 2015
    coverage   vᵀ tanh(W₁ q + W₂ k_j + w cov_j), cov = Σ α          Tu et al. 2016, See et al. 2017

B batch, T queries, S keys, D width. Scores work on any leading dimensions: (B, T, D_q) × (B, S, D_k) → (B, T, S), or
the same with heads in between. `prepare` does once per source what a score needs of its keys; the result lives in the
caller's state, never on `self`. W and W₂ carry a bias where tanh follows. The last two scores want to know what was
looked at before, α: the caller keeps their memo, (B, T, S) like the weights and zeros at first (or None: nothing yet),
and after each step asks `remember(memo, a)` for the next one, and `penalty(memo, a)` for what the weights add to the
loss (None: nothing).
"""

from __future__ import annotations

from typing import Annotated, Protocol

import torch
from pydantic import Field
from torch import Tensor, nn

from dragoman.core.errors import PartError
from dragoman.core.registry import PositiveInt, Registry
from dragoman.nn.kernels.additive import additive_score, pairs
from dragoman.nn.layers import linear


class Score(Protocol):
    """How well each key answers each query; `remembers` says whether it wants a memo."""

    remembers: bool

    def prepare(self, k: Tensor) -> Tensor: ...

    def __call__(self, q: Tensor, keys: Tensor, memo: Tensor | None = None) -> Tensor: ...


scores: Registry[Score] = Registry("score")


@scores.register("dot")
class Dot(nn.Module):
    """e = q·k; queries and keys of one width."""

    remembers = False
    scale = 1.0

    def __init__(self, d_q: int, d_k: int) -> None:
        super().__init__()
        if d_q != d_k:
            raise PartError(f"a dot score needs queries and keys of one width, not {d_q} and {d_k}; use 'general'")

    def prepare(self, k: Tensor) -> Tensor:
        return k

    def forward(self, q: Tensor, keys: Tensor, memo: Tensor | None = None) -> Tensor:
        return q @ keys.transpose(-1, -2) * self.scale


@scores.register("scaled_dot")
class ScaledDot(Dot):
    """e = q·k / √d, so that its variance does not grow with the width."""

    def __init__(self, d_q: int, d_k: int) -> None:
        super().__init__(d_q, d_k)
        self.scale = d_k**-0.5


def fused_scale(score: Score) -> float | None:
    """s of a score that is s q·k and nothing else, as the fused kernels compute it; None: it has to be evaluated.

    Only our own two are known to be that: a score of somebody else's may have a `scale` that means something else, and
    one that extends ours may compute something else.
    """
    return score.scale if type(score) in (Dot, ScaledDot) else None  # type: ignore[attr-defined]


@scores.register("general")
class General(nn.Module):
    """e = qᵀ W k; widths may differ."""

    remembers = False

    def __init__(self, d_q: int, d_k: int) -> None:
        super().__init__()
        self.W = linear(d_k, d_q, bias=False)

    def prepare(self, k: Tensor) -> Tensor:
        return self.W(k)  # type: ignore[no-any-return]

    def forward(self, q: Tensor, keys: Tensor, memo: Tensor | None = None) -> Tensor:
        return q @ keys.transpose(-1, -2)


@scores.register("concat")
class Concat(nn.Module):
    """e = vᵀ tanh(W [q; k]); widths may differ, `width` is that of the product (default: the keys')."""

    remembers = False

    def __init__(self, d_q: int, d_k: int, *, width: PositiveInt | None = None) -> None:
        super().__init__()
        width = width or d_k
        self.d_q = d_q
        self.W, self.v = linear(d_q + d_k, width), linear(width, 1, bias=False)

    def prepare(self, k: Tensor) -> Tensor:
        # W [q; k] = W_q q + W_k k with the columns of W, so no pair is ever written out and keys pass W once.
        return nn.functional.linear(k, self.W.weight[:, self.d_q :], self.W.bias)

    def forward(self, q: Tensor, keys: Tensor, memo: Tensor | None = None) -> Tensor:
        return additive_score(nn.functional.linear(q, self.W.weight[:, : self.d_q]), keys, self.v.weight[0])


@scores.register("additive")
class Additive(nn.Module):
    """e = vᵀ tanh(W₁ q + W₂ k); widths may differ, `width` is that of the sum (default: the keys')."""

    remembers = False

    def __init__(self, d_q: int, d_k: int, *, width: PositiveInt | None = None) -> None:
        super().__init__()
        width = width or d_k
        self.W1, self.W2 = linear(d_q, width, bias=False), linear(d_k, width)
        self.v = linear(width, 1, bias=False)

    def prepare(self, k: Tensor) -> Tensor:
        return self.W2(k)  # type: ignore[no-any-return]

    def forward(self, q: Tensor, keys: Tensor, memo: Tensor | None = None) -> Tensor:
        return additive_score(self.W1(q), keys, self.v.weight[0])


@scores.register("location")
class Location(nn.Module):
    """e = vᵀ tanh(W₁ q + W₂ k + U f), f = F * α: additive, and sees where the step before looked.

    `filters` kernels F of `kernel` places run over the weights of the last step, or, if `cumulative`, over the sum of
    all so far. What lies outside the source counts as 0, as do weights on padding: padding changes nothing.
    """

    remembers = True

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
        super().__init__()
        if kernel % 2 == 0:
            raise PartError(
                f"a location score centers its kernel on a key, so kernel must be odd, not {kernel}; use {kernel + 1}"
            )
        width = width or d_k
        self.cumulative = cumulative
        self.W1, self.W2 = linear(d_q, width, bias=False), linear(d_k, width)
        self.F = nn.Conv1d(1, filters, kernel, padding=kernel // 2, bias=False)
        self.U, self.v = linear(filters, width, bias=False), linear(width, 1, bias=False)

    def prepare(self, k: Tensor) -> Tensor:
        return self.W2(k)  # type: ignore[no-any-return]

    def forward(self, q: Tensor, keys: Tensor, memo: Tensor | None = None) -> Tensor:
        sums = pairs(self.W1(q), keys)  # (..., T, S, D)
        if memo is not None:
            f = self.F(memo.flatten(0, -2)[:, None]).unflatten(0, memo.shape[:-1])  # (..., T, filters, S)
            sums = sums + self.U(f.transpose(-1, -2))
        return self.v(torch.tanh(sums))[..., 0]  # type: ignore[no-any-return]

    def remember(self, memo: Tensor, a: Tensor) -> Tensor:
        return memo + a if self.cumulative else a

    def penalty(self, memo: Tensor, a: Tensor) -> Tensor | None:
        return None


@scores.register("coverage")
class Coverage(nn.Module):
    """e = vᵀ tanh(W₁ q + W₂ k + w cov), cov = Σ α: additive, and sees how much each key was looked at so far.

    With `penalty` λ > 0, looking again costs λ Σ_j min(a_j, cov_j) in the loss.
    """

    remembers = True

    def __init__(
        self, d_q: int, d_k: int, *, width: PositiveInt | None = None, penalty: Annotated[float, Field(ge=0.0)] = 0.0
    ) -> None:
        super().__init__()
        width = width or d_k
        self.price = penalty
        self.W1, self.W2 = linear(d_q, width, bias=False), linear(d_k, width)
        self.w, self.v = linear(1, width, bias=False), linear(width, 1, bias=False)

    def prepare(self, k: Tensor) -> Tensor:
        return self.W2(k)  # type: ignore[no-any-return]

    def forward(self, q: Tensor, keys: Tensor, memo: Tensor | None = None) -> Tensor:
        sums = pairs(self.W1(q), keys)  # (..., T, S, D)
        if memo is not None:
            sums = sums + self.w(memo[..., None])
        return self.v(torch.tanh(sums))[..., 0]  # type: ignore[no-any-return]

    def remember(self, memo: Tensor, a: Tensor) -> Tensor:
        return memo + a

    def penalty(self, memo: Tensor, a: Tensor) -> Tensor | None:
        """λ Σ_j min(a_j, cov_j), (…, T), with the memo as it was before weights a."""
        return self.price * torch.minimum(a, memo).sum(-1) if self.price else None
