"""Attention over packed rows as two Triton kernels; packed.py has the equation and the letters.

One program for each row and head. A sentence of 25 positions is one tile of 32, and its queries, keys and values are
read from memory once; a kernel made for long rows computes 128 × 128 scores for it. Longer rows loop over tiles, with
the running maximum and sum of flash attention.

    backward   P = exp(e − lse)   dV = Pᵀ dC   dP = dC Vᵀ   dE = P ⊙ (dP − rowsum(C ⊙ dC))   dQ = s dE K   dK = s dEᵀ Q
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _row(Q_STARTS, K_STARTS):
    """The first index and the number of this program's queries and keys: q0, k0, n_q, n_k."""
    row = tl.program_id(0)
    q0, k0 = tl.load(Q_STARTS + row).to(tl.int64), tl.load(K_STARTS + row).to(tl.int64)
    n_q = (tl.load(Q_STARTS + row + 1) - q0).to(tl.int32)
    n_k = (tl.load(K_STARTS + row + 1) - k0).to(tl.int32)
    return q0, k0, n_q, n_k


@triton.jit
def _visible(t, s, n_k, CAUSAL: tl.constexpr):
    """Which keys s each query t may attend to, (TILE, TILE)."""
    visible = s[None, :] < n_k
    if CAUSAL:
        visible = visible & (s[None, :] <= t[:, None])
    return visible


@triton.jit
def _forward(
    Q, K, V, C, LSE, Q_STARTS, K_STARTS, scale,
    q_n, q_h, k_n, k_h, v_n, v_h, c_n, c_h, lse_n,
    GROUP: tl.constexpr, CAUSAL: tl.constexpr, TILE: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """One row and head per program: C = softmax(scale Q Kᵀ) V, tile by tile, and the log-sum LSE of each query."""
    head = tl.program_id(1)
    q0, k0, n_q, n_k = _row(Q_STARTS, K_STARTS)
    i, d, dv = tl.arange(0, TILE), tl.arange(0, D), tl.arange(0, DV)
    Q += q0 * q_n + head * q_h
    K += k0 * k_n + (head // GROUP) * k_h
    V += k0 * v_n + (head // GROUP) * v_h
    C += q0 * c_n + head * c_h
    LSE += q0 * lse_n + head
    for t0 in range(0, n_q, TILE):
        t = t0 + i
        q = tl.load(Q + t[:, None] * q_n + d, mask=t[:, None] < n_q, other=0.0)  # (TILE, D)
        m = tl.full((TILE,), -float("inf"), tl.float32)
        total = tl.zeros((TILE,), tl.float32)
        c = tl.zeros((TILE, DV), tl.float32)
        end = n_k
        if CAUSAL:
            end = tl.minimum(n_k, t0 + TILE)
        for s0 in range(0, end, TILE):
            s = s0 + i
            k = tl.load(K + s[:, None] * k_n + d, mask=s[:, None] < n_k, other=0.0)
            v = tl.load(V + s[:, None] * v_n + dv, mask=s[:, None] < n_k, other=0.0)
            e = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale  # (TILE, TILE)
            e = tl.where(_visible(t, s, n_k, CAUSAL), e, -float("inf"))
            higher = tl.maximum(m, tl.max(e, 1))
            a = tl.exp(e - higher[:, None])
            shrink = tl.exp(m - higher)
            total = total * shrink + tl.sum(a, 1)
            c = c * shrink[:, None] + tl.dot(a.to(v.dtype), v, input_precision=PRECISION)
            m = higher
        some = total > 0.0  # a row without keys gives zeros
        c = tl.where(some[:, None], c / tl.where(some, total, 1.0)[:, None], 0.0)
        tl.store(C + t[:, None] * c_n + dv, c.to(C.dtype.element_ty), mask=t[:, None] < n_q)
        tl.store(LSE + t * lse_n, tl.where(some, m + tl.log(tl.where(some, total, 1.0)), 0.0), mask=t < n_q)


@triton.jit
def _backward(
    DC, Q, K, V, C, LSE, DQ, DK, DVALUE, Q_STARTS, K_STARTS, scale,
    dc_n, dc_h, q_n, q_h, k_n, k_h, v_n, v_h, c_n, c_h, lse_n, dq_n, dq_h, dk_n, dk_h, dv_n, dv_h,
    GROUP: tl.constexpr, CAUSAL: tl.constexpr, TILE: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """One row and key head per program: DQ, DK and DVALUE from DC, with the weights computed again from LSE."""
    key_head = tl.program_id(1)
    q0, k0, n_q, n_k = _row(Q_STARTS, K_STARTS)
    i, d, dv = tl.arange(0, TILE), tl.arange(0, D), tl.arange(0, DV)
    K += k0 * k_n + key_head * k_h
    V += k0 * v_n + key_head * v_h
    DK += k0 * dk_n + key_head * dk_h
    DVALUE += k0 * dv_n + key_head * dv_h
    one_tile = n_k <= TILE  # then dQ is whole after the first and only tile of keys
    for s0 in range(0, n_k, TILE):
        s = s0 + i
        k = tl.load(K + s[:, None] * k_n + d, mask=s[:, None] < n_k, other=0.0)
        v = tl.load(V + s[:, None] * v_n + dv, mask=s[:, None] < n_k, other=0.0)
        dk = tl.zeros((TILE, D), tl.float32)
        dvalue = tl.zeros((TILE, DV), tl.float32)
        begin = 0
        if CAUSAL:
            begin = s0
        for g in range(GROUP):
            head = key_head * GROUP + g
            for t0 in range(begin, n_q, TILE):
                t = t0 + i
                real = t[:, None] < n_q
                q = tl.load(Q + (q0 + t[:, None]) * q_n + head * q_h + d, mask=real, other=0.0)
                dc = tl.load(DC + (q0 + t[:, None]) * dc_n + head * dc_h + dv, mask=real, other=0.0)
                lse = tl.load(LSE + (q0 + t) * lse_n + head, mask=t < n_q, other=0.0)
                e = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
                p = tl.where(_visible(t, s, n_k, CAUSAL) & real, tl.exp(e - lse[:, None]), 0.0)
                dvalue += tl.dot(tl.trans(p.to(dc.dtype)), dc, input_precision=PRECISION)
                dp = tl.dot(dc, tl.trans(v), input_precision=PRECISION)
                if one_tile:  # c is a v here, and c · dc is a · dp: no need to read it
                    delta = tl.sum(p * dp, 1)
                else:
                    c = tl.load(C + (q0 + t[:, None]) * c_n + head * c_h + dv, mask=real, other=0.0)
                    delta = tl.sum(c.to(tl.float32) * dc.to(tl.float32), 1)
                de = (p * (dp - delta[:, None]) * scale).to(q.dtype)
                dk += tl.dot(tl.trans(de), q, input_precision=PRECISION)
                if one_tile:
                    dq = tl.dot(de, k, input_precision=PRECISION)
                    tl.store(DQ + (q0 + t[:, None]) * dq_n + head * dq_h + d, dq.to(DQ.dtype.element_ty), mask=real)
        tl.store(DK + s[:, None] * dk_n + d, dk.to(DK.dtype.element_ty), mask=s[:, None] < n_k)
        tl.store(DVALUE + s[:, None] * dv_n + dv, dvalue.to(DVALUE.dtype.element_ty), mask=s[:, None] < n_k)
    if not one_tile or n_k == 0:
        for g in range(GROUP):
            head = key_head * GROUP + g
            for t0 in range(0, n_q, TILE):
                t = t0 + i
                real = t[:, None] < n_q
                q = tl.load(Q + (q0 + t[:, None]) * q_n + head * q_h + d, mask=real, other=0.0)
                dc = tl.load(DC + (q0 + t[:, None]) * dc_n + head * dc_h + dv, mask=real, other=0.0)
                c = tl.load(C + (q0 + t[:, None]) * c_n + head * c_h + dv, mask=real, other=0.0)
                lse = tl.load(LSE + (q0 + t) * lse_n + head, mask=t < n_q, other=0.0)
                delta = tl.sum(c.to(tl.float32) * dc.to(tl.float32), 1)
                dq = tl.zeros((TILE, D), tl.float32)
                end = n_k
                if CAUSAL:
                    end = tl.minimum(n_k, t0 + TILE)
                for s0 in range(0, end, TILE):
                    s = s0 + i
                    k = tl.load(K + s[:, None] * k_n + d, mask=s[:, None] < n_k, other=0.0)
                    v = tl.load(V + s[:, None] * v_n + dv, mask=s[:, None] < n_k, other=0.0)
                    e = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
                    p = tl.where(_visible(t, s, n_k, CAUSAL) & real, tl.exp(e - lse[:, None]), 0.0)
                    dp = tl.dot(dc, tl.trans(v), input_precision=PRECISION)
                    de = (p * (dp - delta[:, None]) * scale).to(q.dtype)
                    dq += tl.dot(de, k, input_precision=PRECISION)
                tl.store(DQ + (q0 + t[:, None]) * dq_n + head * dq_h + d, dq.to(DQ.dtype.element_ty), mask=real)


def forward(
    q: Tensor, k: Tensor, v: Tensor, q_starts: Tensor, k_starts: Tensor, longest: int, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """The context c (N, H, D_v), and log Σ e^e of each query, (N, H), of attention over packed rows."""
    q, k, v = (with_contiguous_rows(x) for x in (q, k, v))
    (N, H, D), G, DV = q.shape, k.shape[1], v.shape[2]
    c = q.new_empty(N, H, DV)
    lse = q.new_empty(N, H, dtype=torch.float32)
    if len(q_starts) > 1:
        _forward[(len(q_starts) - 1, H)](
            q, k, v, c, lse, q_starts, k_starts, scale,
            *q.stride()[:2], *k.stride()[:2], *v.stride()[:2], *c.stride()[:2], lse.stride(0),
            H // G, causal, tile_size(longest, q), D, DV, dot_precision(q), num_warps=warp_count(longest),
        )  # fmt: skip
    return c, lse


def backward(
    dc: Tensor, q: Tensor, k: Tensor, v: Tensor, c: Tensor, lse: Tensor, q_starts: Tensor, k_starts: Tensor,
    longest: int, causal: bool, scale: float, into: tuple[Tensor, Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """∂q, ∂k, ∂v of attention over packed rows from ∂c, written into the tensors of `into` if they are given."""
    dc, q, k, v, c = (with_contiguous_rows(x) for x in (dc, q, k, v, c))
    dq, dk, dv = into or tuple(torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
    G, D, DV = k.shape[1], q.shape[2], v.shape[2]
    if len(q_starts) > 1:
        _backward[(len(q_starts) - 1, G)](
            dc, q, k, v, c, lse, dq, dk, dv, q_starts, k_starts, scale,
            *dc.stride()[:2], *q.stride()[:2], *k.stride()[:2], *v.stride()[:2], *c.stride()[:2], lse.stride(0),
            *dq.stride()[:2], *dk.stride()[:2], *dv.stride()[:2],
            q.shape[1] // G, causal, tile_size(longest, q), D, DV, dot_precision(q), num_warps=warp_count(longest),
        )  # fmt: skip
    return dq, dk, dv


def with_contiguous_rows(x: Tensor) -> Tensor:
    """x itself if its last dimension has stride 1, as the kernels read it, else a contiguous copy."""
    return x if x.stride(-1) == 1 else x.contiguous()


def tile_size(longest: int, x: Tensor) -> int:
    """Positions per tile: 16, 32 or 64 as rows are long; at most 32 for wide heads (> 64) and in float32.

    In float32 products are unrolled: a tile of 64 took 30 s to compile.
    """
    return 16 if longest <= 16 else 32 if longest <= 32 or x.shape[2] > 64 or x.dtype == torch.float32 else 64


def warp_count(longest: int) -> int:
    """Warps per program for rows of at most `longest` positions: 1, 2 or 4."""
    return 1 if longest <= 16 else 2 if longest <= 32 else 4


def dot_precision(x: Tensor) -> str:
    """Triton's input_precision: "ieee" (no TF32) for float32, else "tf32", which other types ignore."""
    return "ieee" if x.dtype == torch.float32 else "tf32"
