"""Score every key against every query, normalize, average the values.

    e = score(q, k)      a = normalize(e)      c = a v

    dot q·k    scaled q·k/√d    general qᵀWk    additive vᵀ tanh(W₁q + W₂k)

B batch, H heads, T queries, S keys, D width. Scores work on any leading dimensions: (B, T, D_q) × (B, S, D_k) →
(B, T, S), or the same with heads in between. `prepare` does once per source what a score needs of its keys; the result
lives in the caller's state, never on `self`. A score may remember what it saw (`memo`); those here do not.

Weights are computed only when somebody looks: `with watching() as seen:` collects them from every attention that runs
inside, by module; otherwise scaled dot with softmax goes through the fused kernel, which never forms them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from dragoman.core.errors import PartError
from dragoman.core.registry import Part, Positive, Registry
from dragoman.nn.layers import linear

Extras = dict[str, Tensor]


class Score(Protocol):
    """How well each key answers each query."""

    def prepare(self, k: Tensor) -> Tensor: ...

    def __call__(self, q: Tensor, keys: Tensor, memo: Any = None) -> tuple[Tensor, Any]: ...


class Normalizer(Protocol):
    """Scores (…, T, S) → weights; `mask` is true where a query may look, t the queries' places, lengths the keys'."""

    def __call__(
        self, e: Tensor, mask: Tensor | None, q: Tensor, t: Tensor | None = None, lengths: Tensor | None = None
    ) -> tuple[Tensor, Extras]: ...


scores: Registry[Score] = Registry("score")
normalizers: Registry[Normalizer] = Registry("normalizer")


@scores.register("dot")
class Dot(nn.Module):
    """e = q·k; queries and keys of one width."""

    scale = 1.0

    def __init__(self, d_q: int, d_k: int) -> None:
        super().__init__()
        if d_q != d_k:
            raise PartError(f"a dot score needs queries and keys of one width, not {d_q} and {d_k}; use 'general'")

    def prepare(self, k: Tensor) -> Tensor:
        return k

    def forward(self, q: Tensor, keys: Tensor, memo: Any = None) -> tuple[Tensor, Any]:
        return q @ keys.transpose(-1, -2) * self.scale, memo


@scores.register("scaled_dot")
class ScaledDot(Dot):
    """e = q·k / √d, so that its variance does not grow with the width."""

    def __init__(self, d_q: int, d_k: int) -> None:
        super().__init__(d_q, d_k)
        self.scale = d_k**-0.5


@scores.register("general")
class General(nn.Module):
    """e = qᵀ W k; widths may differ."""

    def __init__(self, d_q: int, d_k: int) -> None:
        super().__init__()
        self.W = linear(d_k, d_q, bias=False)

    def prepare(self, k: Tensor) -> Tensor:
        return self.W(k)  # type: ignore[no-any-return]

    def forward(self, q: Tensor, keys: Tensor, memo: Any = None) -> tuple[Tensor, Any]:
        return q @ keys.transpose(-1, -2), memo


@scores.register("additive")
class Additive(nn.Module):
    """e = vᵀ tanh(W₁ q + W₂ k); widths may differ, `width` is that of the sum (default: the keys')."""

    def __init__(self, d_q: int, d_k: int, *, width: Positive | None = None) -> None:
        super().__init__()
        width = width or d_k
        self.W1, self.W2 = linear(d_q, width, bias=False), linear(d_k, width)
        self.v = linear(width, 1, bias=False)

    def prepare(self, k: Tensor) -> Tensor:
        return self.W2(k)  # type: ignore[no-any-return]

    def forward(self, q: Tensor, keys: Tensor, memo: Any = None) -> tuple[Tensor, Any]:
        sums = torch.tanh(self.W1(q)[..., :, None, :] + keys[..., None, :, :])  # (..., T, S, D)
        return self.v(sums)[..., 0], memo


@normalizers.register("softmax")
class Softmax(nn.Module):
    """a = softmax(e) over the keys a query may see; a query that may see none gets zeros."""

    def forward(
        self, e: Tensor, mask: Tensor | None, q: Tensor, t: Tensor | None = None, lengths: Tensor | None = None
    ) -> tuple[Tensor, Extras]:
        if mask is None:
            return e.softmax(-1), {}
        # The lowest finite number rather than −∞: exp gives the same 0, and a row without keys stays free of NaN.
        a = e.masked_fill(~mask, torch.finfo(e.dtype).min).softmax(-1)
        return a.masked_fill(~mask, 0.0), {}


# -- watching --------------------------------------------------------------------------------------------------------

Seen = dict[nn.Module, list[Tensor]]
_seen: ContextVar[Seen | None] = ContextVar("seen", default=None)


@contextmanager
def watching() -> Iterator[Seen]:
    """Collect the weights of every attention that runs inside: module → its weights in the order of calls."""
    seen: Seen = {}
    token = _seen.set(seen)
    try:
        yield seen
    finally:
        _seen.reset(token)


def watched() -> bool:
    return _seen.get() is not None


def noted(module: nn.Module) -> Tensor | None:
    """What this attention weighed last, if somebody is watching."""
    weights = (_seen.get() or {}).get(module)
    return weights[-1] if weights else None


# -- the two forms ---------------------------------------------------------------------------------------------------


class Attention(nn.Module):
    """One head with any score: c = Σ_j a_j v_j, where v are the states as they come."""

    def __init__(self, d_q: int, d_k: int, score: Part, normalizer: Part) -> None:
        super().__init__()
        self.score: Any = scores.build(score, d_q, d_k)
        self.normalizer: Any = normalizers.build(normalizer)

    def prepare(self, h: Tensor) -> Tensor:
        return self.score.prepare(h)  # type: ignore[no-any-return]

    def forward(self, q: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """q (B, T, D_q), keys (B, S, ·), values (B, S, D), mask (B, 1, S) → c (B, T, D), a (B, T, S)."""
        e, _ = self.score(q, keys)  # (B, T, S)
        a, _ = self.normalizer(e, mask, q)
        _note(self, a)
        return a @ values, a


class MultiHead(nn.Module):
    """Several attentions side by side on projections of their own: W_O [head_1; …; head_H]."""

    def __init__(self, d: int, d_memory: int, heads: int, score: Part, normalizer: Part, dropout: float) -> None:
        super().__init__()
        if d % heads:
            raise PartError(f"width {d} cannot be shared evenly by {heads} heads")
        self.heads, self.d_head, self.p = heads, d // heads, dropout
        self.Wq, self.Wk, self.Wv, self.Wo = linear(d, d), linear(d_memory, d), linear(d_memory, d), linear(d, d)
        self.score: Any = scores.build(score, self.d_head, self.d_head)
        self.normalizer: Any = normalizers.build(normalizer)
        self.fused = score.name == "scaled_dot" and normalizer.name == "softmax"

    def split(self, x: Tensor) -> Tensor:
        """(…, S, D) → (…, H, S, D/H)"""
        return x.view(*x.shape[:-1], self.heads, self.d_head).transpose(-2, -3)

    def keys_values(self, h: Tensor) -> tuple[Tensor, Tensor]:
        """What queries look at, projected once: (…, H, S, D/H) each, keys as the score wants them."""
        return self.score.prepare(self.split(self.Wk(h))), self.split(self.Wv(h))

    def queries(self, x: Tensor) -> Tensor:
        return self.split(self.Wq(x))

    def forward(self, x: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool = False) -> Tensor:
        """x (B, T, D) looks at k, v (B, H, S, ·); mask broadcasts to (B, H, T, S), true where looking is allowed."""
        return self.join(self.attend(self.queries(x), k, v, mask, causal))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool = False) -> Tensor:
        p = self.p if self.training else 0.0
        fused = self.fused and not watched()
        if causal and (mask is not None or not fused):  # the kernel takes one or the other
            earlier = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
            mask, causal = earlier if mask is None else mask & earlier, False
        if fused:
            return nn.functional.scaled_dot_product_attention(q, k, v, mask, p, is_causal=causal)  # (B, H, T, D/H)
        e, _ = self.score(q, k)  # (B, H, T, S)
        a, _ = self.normalizer(e, mask, q)
        _note(self, a)
        return nn.functional.dropout(a, p) @ v

    def join(self, heads: Tensor) -> Tensor:
        """(…, H, T, D/H) → W_O of the heads side by side, (…, T, D)"""
        return self.Wo(heads.transpose(-2, -3).flatten(-2))  # type: ignore[no-any-return]


def _note(module: nn.Module, a: Tensor) -> None:
    seen = _seen.get()
    if seen is not None:
        seen.setdefault(module, []).append(a.detach())
