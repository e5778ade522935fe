"""Everything between the matrix products of a Transformer block, each as one pass over memory, in Triton.

    add and norm     x' = x + drop(f + b)      y = g (x' − μ)/σ + c            (and the first y = norm(x) of a stack)
                     with post-norm the residual is y itself, in float32, instead of x'
    activate         h = drop(act(z + b))
    embed            x = drop(s E[id] + P[t])
    sum of rows      ∂b of a matrix product that no other kernel follows

The backward passes also sum ∂b, ∂g and ∂c over all positions: every program sums its own rows.

Dropout decides by a hash of (seed, index in the tensor), so no mask is stored: the backward pass computes the hash
again, or, after a ReLU, reads from h what was kept. The seed is in GPU memory, so that a captured graph can change it.

N positions, D width.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dragoman.core.types import PAD

ROWS = 4  # positions a program holds at a time
PROGRAMS = 528  # of a backward pass: 4 on each multiprocessor of an H100


@triton.jit
def _hash32(x):
    """A 32-bit hash of which every bit depends on every bit of x."""
    x ^= x >> 16
    x *= 0x7FEB352D
    x ^= x >> 15
    x *= 0x846CA68B
    x ^= x >> 16
    return x


@triton.jit
def _is_kept(SEED, site, index, p):
    """Whether dropout with probability p keeps each index, by a hash of the seed, the site and the index."""
    seed = tl.load(SEED)
    low, high = seed.to(tl.uint32), (seed >> 32).to(tl.uint32)
    draw = _hash32(_hash32(index.to(tl.uint32) ^ low) ^ high ^ tl.cast(site, tl.uint32))
    return draw.to(tl.float32) >= p * 4294967296.0


@triton.jit
def _add_norm(
    X, F, B, G, C, SUM, Y, WIDE, MEAN, RSTD, SEED, site, N, D, p, eps,
    POST: tl.constexpr, ADDS: tl.constexpr, HAS_B: tl.constexpr, HAS_C: tl.constexpr, CENTERED: tl.constexpr,
    DROPS: tl.constexpr, R: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """R rows per program: SUM = X + drop(F + B), Y = G norm(SUM) + C, also as WIDE (post); stores MEAN and RSTD."""
    n = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)[:, None]
    d = tl.arange(0, BLOCK)[None, :]
    here = (n < N) & (d < D)
    x = tl.load(X + n * D + d, mask=here, other=0.0).to(tl.float32)
    if ADDS:
        f = tl.load(F + n * D + d, mask=here, other=0.0).to(tl.float32)
        if HAS_B:
            f += tl.load(B + d, mask=d < D, other=0.0).to(tl.float32)
        if DROPS:
            f = tl.where(_is_kept(SEED, site, n * D + d, p), f / (1.0 - p), 0.0)
        x += f
        tl.store(SUM + n * D + d, x, mask=here)
    mean = tl.zeros((R, 1), tl.float32)
    if CENTERED:
        mean = tl.sum(x, 1)[:, None] / D
    off = tl.where(here, x - mean, 0.0)
    rstd = 1.0 / tl.sqrt(tl.sum(off * off, 1)[:, None] / D + eps)
    y = off * rstd * tl.load(G + d, mask=d < D, other=0.0).to(tl.float32)
    if HAS_C:
        y += tl.load(C + d, mask=d < D, other=0.0).to(tl.float32)
    tl.store(Y + n * D + d, y.to(Y.dtype.element_ty), mask=here)
    if POST:
        tl.store(WIDE + n * D + d, y, mask=here)
    one = tl.arange(0, 1)[None, :]
    tl.store(MEAN + n + one, mean, mask=n + one < N)
    tl.store(RSTD + n + one, rstd, mask=n + one < N)


@triton.jit
def _add_norm_backward(
    DMORE, DY, SUM, MEAN, RSTD, G, SEED, DX, DF, DB, DG, DC, site, N, D, p, rows,
    POST: tl.constexpr, HAS_DMORE: tl.constexpr, ADDS: tl.constexpr, CENTERED: tl.constexpr, DROPS: tl.constexpr,
    R: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """`rows` rows per program: DX and DF from DY and DMORE, and the program's sums DB, DG and DC."""
    program = tl.program_id(0)
    d = tl.arange(0, BLOCK)[None, :]
    g = tl.load(G + d, mask=d < D, other=0.0).to(tl.float32)
    db, dg, dc = (tl.zeros((R, BLOCK), tl.float32), tl.zeros((R, BLOCK), tl.float32), tl.zeros((R, BLOCK), tl.float32))
    for start in range(program * rows, tl.minimum((program + 1) * rows, N), R):
        n = (start + tl.arange(0, R)).to(tl.int64)[:, None]
        here = (n < N) & (d < D)
        one = tl.arange(0, 1)[None, :]
        mean = tl.load(MEAN + n + one, mask=n + one < N, other=0.0)
        rstd = tl.load(RSTD + n + one, mask=n + one < N, other=0.0)
        x = tl.load(SUM + n * D + d, mask=here, other=0.0).to(tl.float32)
        dy = tl.load(DY + n * D + d, mask=here, other=0.0).to(tl.float32)
        if POST and HAS_DMORE:
            dy += tl.load(DMORE + n * D + d, mask=here, other=0.0).to(tl.float32)
        unit = tl.where(here, (x - mean) * rstd, 0.0)
        dg += dy * unit
        dc += dy
        w = dy * g
        dx = w - unit * (tl.sum(w * unit, 1)[:, None] / D)
        if CENTERED:
            dx -= tl.sum(w, 1)[:, None] / D
        dx *= rstd
        if HAS_DMORE and not POST:
            dx += tl.load(DMORE + n * D + d, mask=here, other=0.0).to(tl.float32)
        tl.store(DX + n * D + d, dx.to(DX.dtype.element_ty), mask=here)
        if ADDS:
            df = dx
            if DROPS:
                df = tl.where(_is_kept(SEED, site, n * D + d, p), dx / (1.0 - p), 0.0)
            df = tl.where(here, df, 0.0)
            db += df
            tl.store(DF + n * D + d, df.to(DF.dtype.element_ty), mask=here)
    column = tl.arange(0, BLOCK)
    at = program * D + column
    if ADDS:
        tl.store(DB + at, tl.sum(db, 0), mask=column < D)
    tl.store(DG + at, tl.sum(dg, 0), mask=column < D)
    tl.store(DC + at, tl.sum(dc, 0), mask=column < D)


@triton.jit
def _activate(
    Z, B, H, SEED, site, N, D, p,
    ACT: tl.constexpr, HAS_B: tl.constexpr, DROPS: tl.constexpr, R: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """R rows × BLOCK columns per program: H = drop(act(Z + B))."""
    n = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)[:, None]
    d = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    here = (n < N) & (d < D)
    z = tl.load(Z + n * D + d, mask=here, other=0.0).to(tl.float32)
    if HAS_B:
        z += tl.load(B + d, mask=d < D, other=0.0).to(tl.float32)
    h = _act(z, ACT)
    if DROPS:
        h = tl.where(_is_kept(SEED, site, n * D + d, p), h / (1.0 - p), 0.0)
    tl.store(H + n * D + d, h.to(H.dtype.element_ty), mask=here)


@triton.jit
def _act(z, ACT: tl.constexpr):
    """act(z): relu, gelu (exact) or else swish."""
    if ACT == "relu":
        h = tl.maximum(z, 0.0)
    elif ACT == "gelu":
        h = 0.5 * z * (1.0 + tl.erf(z * 0.7071067811865476))
    else:  # swish
        h = z / (1.0 + tl.exp(-z))
    return h


@triton.jit
def _act_gradient(z, ACT: tl.constexpr):
    """∂act/∂z at z: gelu or else swish; relu has none here."""
    if ACT == "gelu":
        s = 0.5 * (1.0 + tl.erf(z * 0.7071067811865476)) + z * tl.exp(-0.5 * z * z) * 0.3989422804014327
    else:
        e = 1.0 / (1.0 + tl.exp(-z))
        s = e * (1.0 + z * (1.0 - e))
    return s


@triton.jit
def _activate_backward(
    DH, KEPT, B, DZ, DB, SEED, site, N, D, p, rows,
    ACT: tl.constexpr, HAS_B: tl.constexpr, DROPS: tl.constexpr, R: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """`rows` rows × BLOCK columns per program: DZ from DH and KEPT (h of relu, else z), and the program's sum DB."""
    program = tl.program_id(0)
    d = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    db = tl.zeros((R, BLOCK), tl.float32)
    for start in range(program * rows, tl.minimum((program + 1) * rows, N), R):
        n = (start + tl.arange(0, R)).to(tl.int64)[:, None]
        here = (n < N) & (d < D)
        dh = tl.load(DH + n * D + d, mask=here, other=0.0).to(tl.float32)
        kept = tl.load(KEPT + n * D + d, mask=here, other=0.0).to(tl.float32)
        if ACT == "relu":  # KEPT is h: above zero where the input was, and where dropout kept it
            dz = tl.where(kept > 0.0, dh / (1.0 - p), 0.0)
        else:  # KEPT is z
            if HAS_B:
                kept += tl.load(B + d, mask=d < D, other=0.0).to(tl.float32)
            dz = dh * _act_gradient(kept, ACT)
            if DROPS:
                dz = tl.where(_is_kept(SEED, site, n * D + d, p), dz / (1.0 - p), 0.0)
        dz = tl.where(here, dz, 0.0)
        db += dz
        tl.store(DZ + n * D + d, dz.to(DZ.dtype.element_ty), mask=here)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    tl.store(DB + program * D + column, tl.sum(db, 0), mask=column < D)


@triton.jit
def _embed(
    E, P, ID, T, X, SEED, site, N, D, s, p,
    HAS_P: tl.constexpr, DROPS: tl.constexpr, R: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """R rows per program: X = drop(s E[id] + P[t])."""
    row = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    n, d = row[:, None], tl.arange(0, BLOCK)[None, :]
    here = (n < N) & (d < D)
    id = tl.load(ID + row, mask=row < N, other=0)
    x = tl.load(E + id[:, None] * D + d, mask=here, other=0.0).to(tl.float32) * s
    if HAS_P:
        t = tl.load(T + row, mask=row < N, other=0)
        x += tl.load(P + t[:, None] * D + d, mask=here, other=0.0)
    if DROPS:
        x = tl.where(_is_kept(SEED, site, n * D + d, p), x / (1.0 - p), 0.0)
    tl.store(X + n * D + d, x, mask=here)


@triton.jit
def _embed_backward(
    DX, ID, DE, SEED, site, N, D, s, p,
    PADDING: tl.constexpr, DROPS: tl.constexpr, R: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """R rows per program: adds s · drop(DX) to DE[id] atomically, <pad> excluded."""
    row = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    n, d = row[:, None], tl.arange(0, BLOCK)[None, :]
    id = tl.load(ID + row, mask=row < N, other=PADDING)
    here = (n < N) & (d < D) & (id != PADDING)[:, None]
    dx = tl.load(DX + n * D + d, mask=here, other=0.0).to(tl.float32) * s
    if DROPS:
        dx = tl.where(_is_kept(SEED, site, n * D + d, p), dx / (1.0 - p), 0.0)
    tl.atomic_add(DE + id[:, None] * D + d, dx, mask=here)


@triton.jit
def _sum_rows(X, SUMS, N, D, rows, R: tl.constexpr, BLOCK: tl.constexpr):
    """`rows` rows × BLOCK columns per program: their sum over the rows, stored as SUMS[program]."""
    program = tl.program_id(0)
    d = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((R, BLOCK), tl.float32)
    for start in range(program * rows, tl.minimum((program + 1) * rows, N), R):
        n = (start + tl.arange(0, R)).to(tl.int64)[:, None]
        total += tl.load(X + n * D + d[None, :], mask=(n < N) & (d < D)[None, :], other=0.0).to(tl.float32)
    tl.store(SUMS + program * D + d, tl.sum(total, 0), mask=d < D)


def dropout_key(site: int) -> int:
    """A hash key for one dropout of the model, so that two of them drop different numbers."""
    return site * 0x9E3779B9 & 0x7FFFFFFF


def divide_rows(N: int) -> tuple[int, int]:
    """The number of programs of a backward pass over N rows, and the rows of each, a multiple of ROWS."""
    rows = max(triton.cdiv(N, PROGRAMS), ROWS)
    rows = triton.cdiv(rows, ROWS) * ROWS
    return triton.cdiv(N, rows), rows


class AddNorm(torch.autograd.Function):
    """x and f (N, D), the bias of f, gain and offset of a norm → the residual in float32, and y in `dtype`."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        f: Tensor | None,
        b: Tensor | None,
        g: Tensor,
        c: Tensor | None,
        eps: float,
        centered: bool,
        p: float,
        seed: Tensor,
        site: int,
        dtype: torch.dtype,
        post: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """x' = x + drop(f + b), y = g norm(x') + c → the residual (x', or y if post) in float32, and y in `dtype`."""
        N, D = x.shape
        total = x if f is None else torch.empty_like(x, dtype=torch.float32)
        y = torch.empty_like(x, dtype=dtype)
        wide = torch.empty_like(x, dtype=torch.float32) if post else total
        mean, rstd = (torch.empty(N, dtype=torch.float32, device=x.device) for _ in range(2))
        block = triton.next_power_of_2(D)
        _add_norm[(triton.cdiv(N, ROWS),)](
            x, f if f is not None else x, b if b is not None else g, g, c if c is not None else g,
            total, y, wide, mean, rstd, seed, dropout_key(site), N, D, p, eps,
            post, f is not None, b is not None, c is not None, centered, p > 0.0, ROWS, block, num_warps=4,
        )  # fmt: skip
        ctx.save_for_backward(total, mean, rstd, g, seed)
        ctx.adds, ctx.biased, ctx.offset = f is not None, b is not None, c is not None
        ctx.rest, ctx.f_dtype = (centered, p, site, post), None if f is None else f.dtype
        ctx.set_materialize_grads(False)
        return wide, y

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        dmore, dy = grads
        total, mean, rstd, g, seed = ctx.saved_tensors
        centered, p, site, post = ctx.rest
        if dy is None:  # y was not used
            dy = torch.zeros_like(total)
        N, D = total.shape
        programs, rows = divide_rows(N)
        dx = torch.empty_like(total)
        df = torch.empty(N, D, dtype=ctx.f_dtype, device=dx.device) if ctx.adds else dx
        sums = torch.empty(3, programs, D, dtype=torch.float32, device=dx.device)
        _add_norm_backward[(programs,)](
            dmore.contiguous() if dmore is not None else total, dy.contiguous(), total, mean, rstd, g, seed,
            dx, df, sums[0], sums[1], sums[2], dropout_key(site), N, D, p, rows,
            post, dmore is not None, ctx.adds, centered, p > 0.0, ROWS, triton.next_power_of_2(D), num_warps=8,
        )  # fmt: skip
        db, dg, dc = sums.sum(1)
        return (
            *(dx, df if ctx.adds else None, db if ctx.biased else None, dg, dc if ctx.offset else None),
            *(None,) * 7,
        )


class Embed(torch.autograd.Function):
    """The table (V, D), ids and t (N,), positional vectors (L, D) or None → x (N, D) in float32."""

    @staticmethod
    def forward(
        ctx: Any, table: Tensor, ids: Tensor, t: Tensor, positions: Tensor | None, s: float, p: float,
        seed: Tensor, site: int,
    ) -> Tensor:  # fmt: skip
        N, D = len(ids), table.shape[1]
        x = torch.empty(N, D, dtype=torch.float32, device=table.device)
        _embed[(triton.cdiv(N, ROWS),)](
            table, positions if positions is not None else table, ids, t, x, seed, dropout_key(site), N, D, s, p,
            positions is not None, p > 0.0, ROWS, triton.next_power_of_2(D), num_warps=4,
        )  # fmt: skip
        ctx.save_for_backward(table, ids, seed)
        ctx.rest = s, p, site
        return x

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        table, ids, seed = ctx.saved_tensors
        s, p, site = ctx.rest
        N, D = len(ids), table.shape[1]
        dtable = torch.zeros_like(table)
        _embed_backward[(triton.cdiv(N, ROWS),)](
            grads[0].contiguous(), ids, dtable, seed, dropout_key(site), N, D, s, p,
            PAD, p > 0.0, ROWS, triton.next_power_of_2(D), num_warps=4,
        )  # fmt: skip
        return dtable, *(None,) * 7


def sum_rows(x: Tensor) -> Tensor:
    """Σ_n x (N, D) → (D,), in float32; torch's own sum took twice as long."""
    N, D = x.shape
    programs, rows = divide_rows(N)
    sums, block = torch.empty(programs, D, dtype=torch.float32, device=x.device), min(triton.next_power_of_2(D), 512)
    _sum_rows[(programs, triton.cdiv(D, block))](x, sums, N, D, rows, ROWS, block, num_warps=4)
    return sums.sum(0)


class Activate(torch.autograd.Function):
    """z (N, D) and its bias → h = drop(act(z + b)), in the precision of z."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, b: Tensor | None, act: str, p: float, seed: Tensor, site: int) -> Tensor:
        N, D = z.shape
        h, block = torch.empty_like(z), min(triton.next_power_of_2(D), 1024)
        _activate[(triton.cdiv(N, ROWS), triton.cdiv(D, block))](
            z, b if b is not None else z, h, seed, dropout_key(site), N, D, p,
            act, b is not None, p > 0.0, ROWS, block, num_warps=4,
        )  # fmt: skip
        ctx.save_for_backward(h if act == "relu" else z, b, seed)
        ctx.rest = act, p, site
        return h

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        kept, b, seed = ctx.saved_tensors
        act, p, site = ctx.rest
        N, D = kept.shape
        block, (programs, rows) = min(triton.next_power_of_2(D), 512), divide_rows(N)
        dz = torch.empty_like(kept)
        sums = torch.empty(programs, D, dtype=torch.float32, device=dz.device)
        _activate_backward[(programs, triton.cdiv(D, block))](
            grads[0].contiguous(), kept, b if b is not None else kept, dz, sums, seed, dropout_key(site), N, D, p, rows,
            act, b is not None, p > 0.0, ROWS, block, num_warps=4,
        )  # fmt: skip
        return dz, sums.sum(0) if b is not None else None, None, None, None, None
