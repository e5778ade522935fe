"""The residual stream of some rows: what it begins with, and what is added to it and read from it.

    embed       x = f E[y] + P[t]                                            one program for each row
    add_norm    x ← x + y, h = norm(x)     or, post:  x = h = norm(x + y)    one for each row

    norm(x) = a (x − μ)/√(σ² + ε) + b      or, RMS:  a x/√(mean(x²) + ε)

The stream x (N, D) is in float32; E, y and h are in the precision of the weights. The kernels of training
(nn/kernels/fused_triton.py) have the same equations with dropout, and keep what a gradient needs.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor
from triton import next_power_of_2 as power


@triton.jit
def _embed(TOKENS, T, TABLE, PLACES, X, factor, k, D: tl.constexpr, PD: tl.constexpr, PLACED: tl.constexpr):
    row = tl.program_id(0)
    d = tl.arange(0, PD)
    token = tl.load(TOKENS + row).to(tl.int64)
    x = tl.load(TABLE + token * D + d, mask=d < D, other=0.0).to(tl.float32) * factor
    if PLACED:
        t = tl.load(T + row // k)
        x += tl.load(PLACES + t * D + d, mask=d < D, other=0.0)
    tl.store(X + row * D + d, x, mask=d < D)


def embed(tokens: Tensor, t: Tensor, table: Tensor, factor: float, places: Tensor | None, x: Tensor) -> None:
    """Embedded tokens (B, k) at the places t (B,), with their positions where there is a table of them, to x."""
    (B, k), D = tokens.shape, table.shape[1]
    placed = places if places is not None else x
    _embed[(B * k,)](tokens, t, table, placed, x, factor, k, D, power(D), places is not None, num_warps=4)


@triton.jit
def _add_norm(
    X, Y, WEIGHT, BIAS, OUT, eps,
    ADDS: tl.constexpr, RMS: tl.constexpr, POST: tl.constexpr, D: tl.constexpr, PD: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    d = tl.arange(0, PD)
    x = tl.load(X + row * D + d, mask=d < D, other=0.0)
    if ADDS:
        x += tl.load(Y + row * D + d, mask=d < D, other=0.0).to(tl.float32)
    if RMS:
        h = x * tl.rsqrt(tl.sum(x * x, 0) / D + eps) * tl.load(WEIGHT + d, mask=d < D, other=0.0)
    else:
        away = tl.where(d < D, x - tl.sum(x, 0) / D, 0.0)
        h = away * tl.rsqrt(tl.sum(away * away, 0) / D + eps)
        h = h * tl.load(WEIGHT + d, mask=d < D, other=0.0) + tl.load(BIAS + d, mask=d < D, other=0.0)
    tl.store(OUT + row * D + d, h.to(OUT.dtype.element_ty), mask=d < D)
    if POST:
        tl.store(X + row * D + d, h, mask=d < D)
    elif ADDS:
        tl.store(X + row * D + d, x, mask=d < D)


class Norm(NamedTuple):
    """a and b in float32, ε, and which of the norms above it is."""

    weight: Tensor
    bias: Tensor
    eps: float
    rms: bool
    post: bool


def add_norm(x: Tensor, y: Tensor | None, norm: Norm, out: Tensor) -> None:
    """x (N, D) in float32, changed in place; the normed vectors to `out` in its own dtype."""
    (N, D), (weight, bias, eps, rms, post) = x.shape, norm
    other = x if y is None else y
    _add_norm[(N,)](x, other, weight, bias, out, eps, y is not None, rms, post, D, power(D), num_warps=4)
