"""Attention of one step's queries, to what was said so far and to the source.

    e_s = scale · q·k_s (+ bias)      a = softmax(e)      c = Σ_s a_s v_s

    lay          keys and values of the source into the slots they are for    one program for each position
    look_back    of one query to the places 0 … t                             one for each row and head
    look_across  of a sentence's k queries to its source                      one for each sentence and head, or row

Keys and values of the past are written once, where they arose, and never moved: at place s of the hypothesis a[j, s],
the ancestor of hypothesis j at that step. Only the table a is reordered, by `choose` in search.py.

Places are read block by block. With m the largest e so far, Σ e^(e−m) and Σ e^(e−m) v are kept, and both shrink by
e^(m−m') when m' is larger.

q (B·k, H·d_k) and c (B·k, H·d_v); H / G query heads share a key head.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor
from triton import next_power_of_2 as power

INFINITY = tl.constexpr(float("inf"))


class Shape(NamedTuple):
    """Of a multi-head attention: e = scale · q·k."""

    heads: int
    key_heads: int
    d_k: int
    d_v: int
    scale: float


@triton.jit
def _taken_in(m, total, c, e, values):
    """m, Σ e^(e−m) and Σ e^(e−m) v of one query, after more scores e (BLOCK,) and their values (BLOCK, PV)."""
    higher = tl.maximum(m, tl.max(e, 0))
    a = tl.exp(e - higher)
    fade = tl.exp(m - higher)
    total = total * fade + tl.sum(a, 0)
    c = c * fade + tl.sum(a[:, None] * values.to(tl.float32), 0)
    return higher, total, c


# -- to what was said so far -------------------------------------------------------------------------------------------


@triton.jit
def _turned(x, partners, real, COS, SIN, places):
    """x with each pair (x_d, x_partner) turned by its angle; the sign of a sine is in the table."""
    other = tl.load(partners, mask=real, other=0.0).to(tl.float32)
    return x * tl.load(COS + places, mask=real, other=0.0) + other * tl.load(SIN + places, mask=real, other=0.0)


@triton.jit
def _look_back(
    QKV, K, V, ANCESTRY, T, DONE, OUT, BIAS, COS, SIN, scale, C,
    k: tl.constexpr, H: tl.constexpr, G: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, PK: tl.constexpr,
    PV: tl.constexpr, BLOCK: tl.constexpr, BIASED: tl.constexpr, TURNS: tl.constexpr,
):  # fmt: skip
    row, h = tl.program_id(0), tl.program_id(1)
    b = row // k
    g = h // (H // G)
    dk, dv = tl.arange(0, PK), tl.arange(0, PV)
    k_at, v_at = g * DK + dk, g * DV + dv  # within one place
    mine = QKV + row * ((H + G) * DK + G * DV)
    # Before the branch, so that all of these are on their way at once.
    t = tl.load(T + b).to(tl.int32)
    q = tl.load(mine + h * DK + dk, mask=dk < DK, other=0.0).to(tl.float32)
    now_k = tl.load(mine + H * DK + k_at, mask=dk < DK, other=0.0).to(tl.float32)
    now_v = tl.load(mine + (H + G) * DK + v_at, mask=dv < DV, other=0.0)
    if tl.load(DONE + b) == 0:
        if TURNS > 0:
            if TURNS == 1:  # pairs side by side
                partner = dk ^ 1
            else:  # all the firsts, then all the seconds
                partner = (dk + DK // 2) % DK
            q = _turned(q, mine + h * DK + partner, dk < DK, COS, SIN, t * DK + dk)
            now_k = _turned(now_k, mine + (H + g) * DK + partner, dk < DK, COS, SIN, t * DK + dk)
        here = (row * C + t).to(tl.int64)
        written = now_k.to(K.dtype.element_ty)
        # Heads that share keys write the same ones to the same place.
        tl.store(K + here * (G * DK) + k_at, written, mask=dk < DK)
        tl.store(V + here * (G * DV) + v_at, now_v, mask=dv < DV)

        m = tl.sum(q * written.to(tl.float32), 0) * scale  # the place t itself comes first
        if BIASED:
            m += tl.load(BIAS + h * C)
        total = m * 0.0 + 1.0
        c = now_v.to(tl.float32)
        for start in range(0, t, BLOCK):
            s = start + tl.arange(0, BLOCK)
            there = s < t
            if k > 1:
                j = tl.load(ANCESTRY + row * C + s, mask=there, other=0).to(tl.int32)
            else:
                j = tl.zeros((BLOCK,), tl.int32)
            place = ((b * k + j) * C + s).to(tl.int64)
            seen = there[:, None] & (dk < DK)[None, :]
            keys = tl.load(K + place[:, None] * (G * DK) + k_at[None, :], mask=seen, other=0.0)
            seen = there[:, None] & (dv < DV)[None, :]
            values = tl.load(V + place[:, None] * (G * DV) + v_at[None, :], mask=seen, other=0.0)
            e = tl.sum(keys.to(tl.float32) * q[None, :], 1) * scale  # (BLOCK,)
            if BIASED:
                e += tl.load(BIAS + h * C + t - s, mask=there, other=0.0)
            m, total, c = _taken_in(m, total, c, tl.where(there, e, -INFINITY), values)
        tl.store(OUT + row * (H * DV) + h * DV + dv, (c / total).to(OUT.dtype.element_ty), mask=dv < DV)


class Past(NamedTuple):
    """Where keys and values of one layer lie, (B, k, C, G · d) each, and which hypothesis' they are, (B, k, C)."""

    keys: Tensor
    values: Tensor
    ancestry: Tensor


class Turns(NamedTuple):
    """What positions do inside attention: a bias by head and distance (H, C), or pairs turned by place (C, d)."""

    bias: Tensor | None = None
    cos: Tensor | None = None
    sin: Tensor | None = None  # with the sign that each entry has
    side_by_side: bool = True  # how pairs lie


def look_back(qkv: Tensor, past: Past, t: Tensor, done: Tensor, shape: Shape, turns: Turns, out: Tensor) -> None:
    """Write this step's keys and values, and attend to all so far: qkv (N, ·) → out (N, H · d_v)."""
    H, G, d_k, d_v, scale = shape
    k, C = past.ancestry.shape[1:]
    bias, cos, sin = (out if x is None else x for x in turns[:3])  # what is not there is not read
    # One head and 16 places of it for each warp: for beam 5 × 256 at step 16 that took 12 µs, two heads for four
    # warps 42; the more small programs there are, the better they hide each other's waiting.
    _look_back[(len(qkv), H)](
        qkv, *past, t, done, out, bias, cos, sin, scale, C, k, H, G, d_k, d_v, power(d_k), power(d_v), 16,
        turns.bias is not None, 0 if turns.cos is None else 1 if turns.side_by_side else 2,
        num_warps=1 if max(d_k, d_v) <= 64 else 2,
    )  # fmt: skip


# -- to the source -----------------------------------------------------------------------------------------------------


@triton.jit
def _lay(KEYS, VALUES, AT, K, V, WK: tl.constexpr, WV: tl.constexpr, BLOCK: tl.constexpr):
    n = tl.program_id(0).to(tl.int64)
    at = tl.load(AT + n).to(tl.int64)
    if at >= 0:
        d = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        tl.store(K + at * WK + d, tl.load(KEYS + n * WK + d, mask=d < WK), mask=d < WK)
        tl.store(V + at * WV + d, tl.load(VALUES + n * WV + d, mask=d < WV), mask=d < WV)


def lay(keys: Tensor, values: Tensor, at: Tensor, K: Tensor, V: Tensor) -> None:
    """Rows (N, ·) of keys and values to the places `at` (N,) of K and V (B, S, ·), counted through; −1: nowhere."""
    wide, size = max(keys.shape[1], values.shape[1]), 1024
    _lay[(len(at), -(-wide // size))](keys, values, at, K, V, keys.shape[1], values.shape[1], size, num_warps=4)


@triton.jit
def _look_across(
    Q, K, V, LENGTHS, DONE, OUT, scale, S, k_wide, v_wide,
    k: tl.constexpr, H: tl.constexpr, G: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, PK: tl.constexpr,
    PV: tl.constexpr, QUERIES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
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
            there, place = (s < n)[:, None], (b * S + s)[:, None]
            keys = tl.load(K + place * k_wide + g * DK + dk, mask=there & (dk < DK), other=0.0)
            values = tl.load(V + place * v_wide + g * DV + dv, mask=there & (dv < DV), other=0.0)
            e = tl.dot(q, tl.trans(keys), input_precision="ieee") * scale  # (QUERIES, BLOCK)
            e = tl.where((s < n)[None, :], e, -INFINITY)
            higher = tl.maximum(m, tl.max(e, 1))
            a = tl.exp(e - higher[:, None])
            fade = tl.exp(m - higher)
            total = total * fade + tl.sum(a, 1)
            c = c * fade[:, None] + tl.dot(a.to(values.dtype), values, input_precision="ieee")
            m = higher
        c = c / tl.where(total > 0, total, 1.0)[:, None]  # a source without positions says nothing
        tl.store(OUT + row * (H * DV) + h * DV + dv, c.to(OUT.dtype.element_ty), mask=(j < k) & (dv < DV))


@triton.jit
def _look_across_alone(
    Q, K, V, LENGTHS, DONE, OUT, scale, S, k_wide, v_wide,
    k: tl.constexpr, H: tl.constexpr, G: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, PK: tl.constexpr,
    PV: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
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
            there, place = (s < n)[:, None], (b * S + s)[:, None]
            keys = tl.load(K + place * k_wide + g * DK + dk[None, :], mask=there & (dk < DK)[None, :], other=0.0)
            values = tl.load(V + place * v_wide + g * DV + dv[None, :], mask=there & (dv < DV)[None, :], other=0.0)
            e = tl.sum(keys.to(tl.float32) * q[None, :], 1) * scale  # (BLOCK,)
            m, total, c = _taken_in(m, total, c, tl.where(s < n, e, -INFINITY), values)
        c = c / tl.where(total > 0, total, 1.0)  # a source without positions says nothing
        tl.store(OUT + row * (H * DV) + h * DV + dv, c.to(OUT.dtype.element_ty), mask=dv < DV)


def look_across(
    q: Tensor, keys: Tensor, values: Tensor, lengths: Tensor, done: Tensor, shape: Shape, k: int, out: Tensor
) -> None:
    """q (B · k, H · d_k) looks at the source: keys and values are (B, S, G · d) parts of wider tensors."""
    H, G, d_k, d_v, scale = shape
    given = (q, keys, values, lengths, done, out, scale, keys.shape[1], keys.stride(1), values.stride(1))
    if k <= 2:  # tensor cores would multiply 16 queries: 11 µs for 512 sentences, twice what reading the keys takes
        _look_across_alone[(len(q), H)](*given, k, H, G, d_k, d_v, power(d_k), power(d_v), 32, num_warps=1)
        return
    widths = (max(power(n), 16) for n in (d_k, d_v, k))  # the least that tensor cores take
    # Blocks of 16 with one warp were the best of five settings that were tried, for k 5.
    _look_across[(len(q) // k, H)](*given, k, H, G, d_k, d_v, *widths, 16, num_warps=1)
