"""The small parts of a block: positions, norms, feed-forward.

    sinusoid   PE(t, 2i) = sin(t / 10000^(2i/D)),  PE(t, 2i+1) = cos(t / 10000^(2i/D))
    layer      a (x − μ) / √(σ² + ε) + b           rms   a x / √(mean x² + ε)
    feed       W₂ f(W₁ x + b₁) + b₂

B batch, T length, D width; t holds positions, as a tensor, so that a step can continue anywhere.
"""

from __future__ import annotations

import math
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from dragoman.core.errors import PartError
from dragoman.core.registry import Positive, Registry


class Positions(Protocol):
    """Tells a set of vectors apart by place; `length` is how far it reaches (None: any distance)."""

    length: int | None

    def __call__(self, x: Tensor, t: Tensor) -> Tensor: ...


positions: Registry[Positions] = Registry("position")
norms: Registry[nn.Module] = Registry("norm")


@positions.register("sinusoidal")
class Sinusoidal(nn.Module):
    """x + PE(t), sines and cosines of geometric wavelengths; runs past the training length."""

    length = None

    def __init__(self, d: int, *, layout: Literal["interleaved", "halves"] = "interleaved") -> None:
        super().__init__()
        if d % 2:
            raise PartError(f"sinusoidal positions need an even width, not {d}")
        self.layout = layout
        rates = torch.exp(torch.arange(0, d, 2, dtype=torch.float64) * (-math.log(10000.0) / d))  # (D/2,)
        self.register_buffer("rates", rates.float(), persistent=False)
        self.rates: Tensor

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        angles = t[..., None].float() * self.rates  # (..., D/2)
        waves = torch.sin(angles), torch.cos(angles)
        table = torch.stack(waves, -1).flatten(-2) if self.layout == "interleaved" else torch.cat(waves, -1)
        return x + table.to(x.dtype)


@positions.register("learned")
class Learned(nn.Module):
    """x + P[t], one trained vector for each place up to `length`."""

    def __init__(self, d: int, *, length: Positive = 1024) -> None:
        super().__init__()
        self.length = length
        self.table = nn.Embedding(length, d)
        nn.init.normal_(self.table.weight, std=d**-0.5)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return x + self.table(t)  # type: ignore[no-any-return]


@positions.register("none")
class NoPositions(nn.Module):
    """x as it is: a set without order."""

    length = None

    def __init__(self, d: int) -> None:
        super().__init__()

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return x


@norms.register("layer")
class LayerNorm(nn.LayerNorm):
    """a (x − μ) / √(σ² + ε) + b over the width, population σ."""

    def __init__(self, d: int, *, eps: float = 1e-5) -> None:
        super().__init__(d, eps=eps)


@norms.register("rms")
class RMSNorm(nn.RMSNorm):
    """a x / √(mean x² + ε) over the width."""

    def __init__(self, d: int, *, eps: float = 1e-6) -> None:
        super().__init__(d, eps=eps)


class FeedForward(nn.Module):
    """W₂ f(W₁ x + b₁) + b₂, the same at every position."""

    def __init__(self, d: int, inner: int, activation: Literal["relu", "gelu"], dropout: float) -> None:
        super().__init__()
        self.W1, self.W2 = linear(d, inner), linear(inner, d)
        self.f: Any = {"relu": nn.functional.relu, "gelu": nn.functional.gelu}[activation]
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.W2(self.dropout(self.f(self.W1(x))))  # type: ignore[no-any-return]


def linear(d_in: int, d_out: int, bias: bool = True) -> nn.Linear:
    """W x + b with Glorot's W and b = 0, as the Transformer paper's code began."""
    layer = nn.Linear(d_in, d_out, bias=bias)
    nn.init.xavier_uniform_(layer.weight)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer
