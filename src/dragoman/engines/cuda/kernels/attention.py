"""Attention of one step's queries to the target so far and to the source.

    e_s = scale · q·k_s (+ bias)      a = softmax(e)      c = Σ_s a_s v_s

    scatter_keys_values  the source's keys and values to their slots          one program for each position
    self_attention       of one query to the target positions 0 … t           one for each row and head
    cross_attention      of a sentence's k queries to its source              one for each sentence and head, or row

Keys and values of the target are written once and never moved: at position s of the hypothesis a[j, s], the ancestor of
hypothesis j at that step. Only the table a is reordered, by `beam_step` in search.py.

Positions are read block by block (online softmax): with m the largest e so far, Σ e^(e−m) and Σ e^(e−m) v are kept, and
both are multiplied by e^(m−m') when m' is larger.

q (B·k, H·d_k) and c (B·k, H·d_v); H / G query heads share a key head.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor
from triton import next_power_of_2 as power

from dragoman.engines.cuda.packed_weights import AttentionShape

INFINITY = tl.constexpr(float("inf"))


@triton.jit
def _online_softmax(m, total, c, e, values):
    """Update m, Σ e^(e−m) and Σ e^(e−m) v of one query with more scores e (BLOCK,) and their values (BLOCK, PV)."""
    new_m = tl.maximum(m, tl.max(e, 0))
    a = tl.exp(e - new_m)
    decay = tl.exp(m - new_m)
    total = total * decay + tl.sum(a, 0)
    c = c * decay + tl.sum(a[:, None] * values.to(tl.float32), 0)
    return new_m, total, c


# -- to the target so far ----------------------------------------------------------------------------------------------


@triton.jit
def _rotate(x, partners, real, COS, SIN, positions):
    """Rotate each pair (x_d, x_partner) by its angle; the table holds the sign of each sine."""
    other = tl.load(partners, mask=real, other=0.0).to(tl.float32)
    return x * tl.load(COS + positions, mask=real, other=0.0) + other * tl.load(SIN + positions, mask=real, other=0.0)


@triton.jit
def _self_attention(
    QKV, K, V, ANCESTRY, T, DONE, OUT, BIAS, COS, SIN, scale, C,
    k: tl.constexpr, H: tl.constexpr, G: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, PK: tl.constexpr,
    PV: tl.constexpr, BLOCK: tl.constexpr, BIASED: tl.constexpr, ROTARY: tl.constexpr,
):  # fmt: skip
    """One row and head per program: write K, V at position t, OUT = softmax over positions 0 … t, by ANCESTRY."""
    row, h = tl.program_id(0), tl.program_id(1)
    b = row // k
    g = h // (H // G)
    dk, dv = tl.arange(0, PK), tl.arange(0, PV)
    k_at, v_at = g * DK + dk, g * DV + dv  # within one position
    qkv_row = QKV + row * ((H + G) * DK + G * DV)
    # Before the branch, so that all of these loads are in flight at once.
    t = tl.load(T + b).to(tl.int32)
    q = tl.load(qkv_row + h * DK + dk, mask=dk < DK, other=0.0).to(tl.float32)
    new_k = tl.load(qkv_row + H * DK + k_at, mask=dk < DK, other=0.0).to(tl.float32)
    new_v = tl.load(qkv_row + (H + G) * DK + v_at, mask=dv < DV, other=0.0)
    if tl.load(DONE + b) == 0:
        if ROTARY > 0:
            if ROTARY == 1:  # interleaved pairs
                partner = dk ^ 1
            else:  # two halves
                partner = (dk + DK // 2) % DK
            q = _rotate(q, qkv_row + h * DK + partner, dk < DK, COS, SIN, t * DK + dk)
            new_k = _rotate(new_k, qkv_row + (H + g) * DK + partner, dk < DK, COS, SIN, t * DK + dk)
        here = (row * C + t).to(tl.int64)
        written = new_k.to(K.dtype.element_ty)
        # Query heads that share a key head write the same values to the same address.
        tl.store(K + here * (G * DK) + k_at, written, mask=dk < DK)
        tl.store(V + here * (G * DV) + v_at, new_v, mask=dv < DV)

        m = tl.sum(q * written.to(tl.float32), 0) * scale  # position t itself comes first
        if BIASED:
            m += tl.load(BIAS + h * C)
        total = m * 0.0 + 1.0
        c = new_v.to(tl.float32)
        for start in range(0, t, BLOCK):
            s = start + tl.arange(0, BLOCK)
            is_real = s < t
            if k > 1:
                j = tl.load(ANCESTRY + row * C + s, mask=is_real, other=0).to(tl.int32)
            else:
                j = tl.zeros((BLOCK,), tl.int32)
            entry = ((b * k + j) * C + s).to(tl.int64)
            mask = is_real[:, None] & (dk < DK)[None, :]
            keys = tl.load(K + entry[:, None] * (G * DK) + k_at[None, :], mask=mask, other=0.0)
            mask = is_real[:, None] & (dv < DV)[None, :]
            values = tl.load(V + entry[:, None] * (G * DV) + v_at[None, :], mask=mask, other=0.0)
            e = tl.sum(keys.to(tl.float32) * q[None, :], 1) * scale  # (BLOCK,)
            if BIASED:
                e += tl.load(BIAS + h * C + t - s, mask=is_real, other=0.0)
            m, total, c = _online_softmax(m, total, c, tl.where(is_real, e, -INFINITY), values)
        tl.store(OUT + row * (H * DV) + h * DV + dv, (c / total).to(OUT.dtype.element_ty), mask=dv < DV)


class AncestryCache(NamedTuple):
    """The keys and values of one layer, (B, k, C, G · d) each, and whose of them each hypothesis reads, (B, k, C)."""

    keys: Tensor
    values: Tensor
    ancestry: Tensor


class PositionTables(NamedTuple):
    """What positions do inside attention: a bias by head and distance (H, C), or rotations by position (C, d)."""

    bias: Tensor | None = None
    cos: Tensor | None = None
    sin: Tensor | None = None  # with the sign of each entry
    is_interleaved: bool = True  # pairs are neighbors; else the two halves of a vector


def self_attention(
    qkv: Tensor,
    cache: AncestryCache,
    t: Tensor,
    done: Tensor,
    shape: AttentionShape,
    tables: PositionTables,
    out: Tensor,
) -> None:
    """Write this step's keys and values to the cache, and attend to all so far: qkv (N, ·) → `out` (N, H · d_v)."""
    H, G, d_k, d_v, scale = shape
    k, C = cache.ancestry.shape[1:]
    bias, cos, sin = (out if x is None else x for x in tables[:3])  # a placeholder is not read
    # One head and 16 positions of it for each warp: for beam 5 × 256 at step 16 that took 12 µs, two heads for four
    # warps 42; many small programs hide each other's latency.
    _self_attention[(len(qkv), H)](
        qkv, *cache, t, done, out, bias, cos, sin, scale, C, k, H, G, d_k, d_v, power(d_k), power(d_v), 16,
        tables.bias is not None, 0 if tables.cos is None else 1 if tables.is_interleaved else 2,
        num_warps=1 if max(d_k, d_v) <= 64 else 2,
    )  # fmt: skip


# -- to the source -----------------------------------------------------------------------------------------------------


@triton.jit
def _scatter_keys_values(KEYS, VALUES, AT, K, V, WK: tl.constexpr, WV: tl.constexpr, BLOCK: tl.constexpr):
    """Position n and BLOCK columns per program: copy KEYS[n], VALUES[n] to row AT[n] of K, V; −1: nowhere."""
    n = tl.program_id(0).to(tl.int64)
    at = tl.load(AT + n).to(tl.int64)
    if at >= 0:
        d = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        tl.store(K + at * WK + d, tl.load(KEYS + n * WK + d, mask=d < WK), mask=d < WK)
        tl.store(V + at * WV + d, tl.load(VALUES + n * WV + d, mask=d < WV), mask=d < WV)


def scatter_keys_values(keys: Tensor, values: Tensor, at: Tensor, K: Tensor, V: Tensor) -> None:
    """Write rows (N, ·) of keys and values to the rows `at` (N,) of K and V, (B, S, ·) flattened; −1: nowhere."""
    wide, size = max(keys.shape[1], values.shape[1]), 1024
    _scatter_keys_values[(len(at), -(-wide // size))](
        keys, values, at, K, V, keys.shape[1], values.shape[1], size, num_warps=4
    )


@triton.jit
def _cross_attention(
    Q, K, V, LENGTHS, DONE, OUT, scale, S, k_wide, v_wide,
    k: tl.constexpr, H: tl.constexpr, G: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, PK: tl.constexpr,
    PV: tl.constexpr, QUERIES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One sentence and head per program: its k queries attend to its source, by tensor cores, → OUT."""
    b = tl.program_id(0).to(tl.int64)
    h = tl.program_id(1)
    g = h // (H // G)
    j, dk, dv = tl.arange(0, QUERIES)[:, None], tl.arange(0, PK)[None, :], tl.arange(0, PV)[None, :]
    row = b * k + j
    n = tl.load(LENGTHS + b).to(tl.int32)
    q = tl.load(Q + row * (H * DK) + h * DK + dk, mask=(j < k) & (dk < DK), other=0.0)
    if tl.load(DONE + b) == 0:
        m = tl.full((QUERIES,), -INFINITY, tl.float32)
        total = tl.zeros((QUERIES,), tl.float32)
        c = tl.zeros((QUERIES, PV), tl.float32)
        for start in range(0, n, BLOCK):
            s = start + tl.arange(0, BLOCK)
            is_real, entry = (s < n)[:, None], (b * S + s)[:, None]
            keys = tl.load(K + entry * k_wide + g * DK + dk, mask=is_real & (dk < DK), other=0.0)
            values = tl.load(V + entry * v_wide + g * DV + dv, mask=is_real & (dv < DV), other=0.0)
            e = tl.dot(q, tl.trans(keys), input_precision="ieee") * scale  # (QUERIES, BLOCK)
            e = tl.where((s < n)[None, :], e, -INFINITY)
            new_m = tl.maximum(m, tl.max(e, 1))
            a = tl.exp(e - new_m[:, None])
            decay = tl.exp(m - new_m)
            total = total * decay + tl.sum(a, 1)
            c = c * decay[:, None] + tl.dot(a.to(values.dtype), values, input_precision="ieee")
            m = new_m
        c = c / tl.where(total > 0, total, 1.0)[:, None]  # an empty source gives zeros
        tl.store(OUT + row * (H * DV) + h * DV + dv, c.to(OUT.dtype.element_ty), mask=(j < k) & (dv < DV))


@triton.jit
def _cross_attention_few_queries(
    Q, K, V, LENGTHS, DONE, OUT, scale, S, k_wide, v_wide,
    k: tl.constexpr, H: tl.constexpr, G: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, PK: tl.constexpr,
    PV: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One row and head per program: one query attends to its sentence's source → OUT."""
    row, h = tl.program_id(0), tl.program_id(1)
    b = (row // k).to(tl.int64)
    g = h // (H // G)
    dk, dv = tl.arange(0, PK), tl.arange(0, PV)
    n = tl.load(LENGTHS + b).to(tl.int32)
    q = tl.load(Q + row * (H * DK) + h * DK + dk, mask=dk < DK, other=0.0).to(tl.float32)
    if tl.load(DONE + b) == 0:
        m = tl.full((), -INFINITY, tl.float32)
        total = tl.full((), 0.0, tl.float32)
        c = tl.zeros((PV,), tl.float32)
        for start in range(0, n, BLOCK):
            s = start + tl.arange(0, BLOCK)
            is_real, entry = (s < n)[:, None], (b * S + s)[:, None]
            keys = tl.load(K + entry * k_wide + g * DK + dk[None, :], mask=is_real & (dk < DK)[None, :], other=0.0)
            values = tl.load(V + entry * v_wide + g * DV + dv[None, :], mask=is_real & (dv < DV)[None, :], other=0.0)
            e = tl.sum(keys.to(tl.float32) * q[None, :], 1) * scale  # (BLOCK,)
            m, total, c = _online_softmax(m, total, c, tl.where(s < n, e, -INFINITY), values)
        c = c / tl.where(total > 0, total, 1.0)  # an empty source gives zeros
        tl.store(OUT + row * (H * DV) + h * DV + dv, c.to(OUT.dtype.element_ty), mask=dv < DV)


def cross_attention(
    q: Tensor, keys: Tensor, values: Tensor, lengths: Tensor, done: Tensor, shape: AttentionShape, k: int, out: Tensor
) -> None:
    """q (B · k, H · d_k) attends to its source, result in `out`; keys, values: (B, S, G · d) of wider tensors."""
    H, G, d_k, d_v, scale = shape
    arguments = (q, keys, values, lengths, done, out, scale, keys.shape[1], keys.stride(1), values.stride(1))
    if k <= 2:  # tensor cores would multiply 16 queries: 11 µs for 512 sentences, twice what reading the keys takes
        _cross_attention_few_queries[(len(q), H)](
            *arguments, k, H, G, d_k, d_v, power(d_k), power(d_v), 32, num_warps=1
        )
        return
    widths = (max(power(n), 16) for n in (d_k, d_v, k))  # the smallest that tensor cores take
    # Blocks of 16 with one warp were the best of five settings that were tried, for k 5.
    _cross_attention[(len(q) // k, H)](*arguments, k, H, G, d_k, d_v, *widths, 16, num_warps=1)
