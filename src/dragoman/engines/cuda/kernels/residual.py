"""The residual stream: embedded tokens, sums and norms.

    embed       x = f E[y] + P[t]                                            one program for each row
    add_norm    x ← x + y, h = norm(x)     or, post:  x = h = norm(x + y)    one for each row

    norm(x) = a (x − μ)/√(σ² + ε) + b      or, RMS:  a x/√(mean(x²) + ε)

The stream x (N, D) is in float32; E, y and h are in the precision of the weights. The kernels of training
(nn/kernels/fused_triton.py) compute the same equations with dropout and save what a gradient needs.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor
from triton import next_power_of_2 as power


@triton.jit
def _embed(TOKENS, T, TABLE, POSITIONS, X, factor, k, D: tl.constexpr, PD: tl.constexpr, HAS_POSITIONS: tl.constexpr):
    """One row per program: X = factor TABLE[token] + POSITIONS[t]."""
    row = tl.program_id(0)
    d = tl.arange(0, PD)
    token = tl.load(TOKENS + row).to(tl.int64)
    x = tl.load(TABLE + token * D + d, mask=d < D, other=0.0).to(tl.float32) * factor
    if HAS_POSITIONS:
        t = tl.load(T + row // k)
        x += tl.load(POSITIONS + t * D + d, mask=d < D, other=0.0)
    tl.store(X + row * D + d, x, mask=d < D)


def embed(tokens: Tensor, t: Tensor, table: Tensor, factor: float, positions: Tensor | None, x: Tensor) -> None:
    """Write the embedded tokens (B, k) at positions t (B,) to x, plus their row of `positions` if there is a table."""
    (B, k), D = tokens.shape, table.shape[1]
    added = positions if positions is not None else x  # a placeholder is not read
    _embed[(B * k,)](tokens, t, table, added, x, factor, k, D, power(D), positions is not None, num_warps=4)


@triton.jit
def _add_norm(
    X, Y, WEIGHT, BIAS, OUT, eps,
    ADDS: tl.constexpr, RMS: tl.constexpr, POST: tl.constexpr, D: tl.constexpr, PD: tl.constexpr,
):  # fmt: skip
    """One row per program: x = X + Y, OUT = norm(x); X becomes x, or, post, norm(x)."""
    row = tl.program_id(0)
    d = tl.arange(0, PD)
    x = tl.load(X + row * D + d, mask=d < D, other=0.0)
    if ADDS:
        x += tl.load(Y + row * D + d, mask=d < D, other=0.0).to(tl.float32)
    if RMS:
        h = x * tl.rsqrt(tl.sum(x * x, 0) / D + eps) * tl.load(WEIGHT + d, mask=d < D, other=0.0)
    else:
        centered = tl.where(d < D, x - tl.sum(x, 0) / D, 0.0)
        h = centered * tl.rsqrt(tl.sum(centered * centered, 0) / D + eps)
        h = h * tl.load(WEIGHT + d, mask=d < D, other=0.0) + tl.load(BIAS + d, mask=d < D, other=0.0)
    tl.store(OUT + row * D + d, h.to(OUT.dtype.element_ty), mask=d < D)
    if POST:
        tl.store(X + row * D + d, h, mask=d < D)
    elif ADDS:
        tl.store(X + row * D + d, x, mask=d < D)


class NormWeights(NamedTuple):
    """a and b in float32, ε, and which of the norms above it is."""

    weight: Tensor
    bias: Tensor
    eps: float
    is_rms: bool
    is_post: bool


def add_norm(x: Tensor, y: Tensor | None, norm: NormWeights, out: Tensor) -> None:
    """x ← x + y (post: norm(x + y)) in place in float32, and norm(x + y) to `out` in its dtype; x (N, D)."""
    (N, D), (weight, bias, eps, rms, post) = x.shape, norm
    other = x if y is None else y
    _add_norm[(N,)](x, other, weight, bias, out, eps, y is not None, rms, post, D, power(D), num_warps=4)
