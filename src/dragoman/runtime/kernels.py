"""The pieces of a decoding step that torch would take many passes over memory for, one Triton kernel each.

    embed       x = f E[y] + P[t]                                            one program for each row
    add_norm    x ← x + y, h = norm(x)     or, post:  x = h = norm(x + y)    one for each row
    lay         keys and values of the source into the slots they are for    one for each position
    look_back   self-attention of one query to the places 0 … t              one for each row and head
    look_across attention of a sentence's k queries to its source            one for each sentence and head, or row
    survey      of every 32 logits the largest, and parts of log Σ e^z       one for each row and 4,096 logits
    best        the n largest of log softmax(z), z (V,), from a survey       one for each row
    pick        what greedy search does with the best one                    one for each sentence
    choose      what a beam does with the k + 1 best of k hypotheses         one for each sentence
    walk        a hypothesis of the pool, from its end to its beginning      one for each hypothesis

Keys and values of the past are written once, where they arose, and never moved: at place s of the hypothesis a[j, s],
the ancestor of hypothesis j at that step. Only the table a is reordered, by `choose`.

A row is a hypothesis of a sentence, b·k + j. Sentences that are done are skipped. Sums and softmaxes are in float32,
sums of log p in float64. B sentences, k hypotheses, C room for target and S for source positions, H heads, G key heads,
D width, V vocabulary, R room for results. Names that begin with P are D, k, … rounded up to a power of two, as Triton
wants its blocks.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from dragoman.core.interfaces import BOS, EOS, PAD

PAD_, BOS_, EOS_ = tl.constexpr(PAD), tl.constexpr(BOS), tl.constexpr(EOS)
INFINITY = tl.constexpr(float("inf"))
POST, RMS = 1, 2  # bits of a norm's kind
LEAST = tl.constexpr(-(2**63))
# What one program of a survey reads is 128 groups of 32 logits; a beam of 5 then ranks 1,000 numbers for each of its
# hypotheses, and six groups once more. Ranking the best of 4,096 lanes took 84 µs for 1,280 rows of 32,000 logits.
GROUP, GROUPS = 32, 128


def power(n: int) -> int:
    return int(triton.next_power_of_2(n))


# -- into the stack, and between its layers ----------------------------------------------------------------------------


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
def _add_norm(X, Y, WEIGHT, BIAS, OUT, eps, ADDS: tl.constexpr, KIND: tl.constexpr, D: tl.constexpr, PD: tl.constexpr):
    row = tl.program_id(0)
    d = tl.arange(0, PD)
    x = tl.load(X + row * D + d, mask=d < D, other=0.0)
    if ADDS:
        x += tl.load(Y + row * D + d, mask=d < D, other=0.0).to(tl.float32)
    if KIND & 2:
        h = x * tl.rsqrt(tl.sum(x * x, 0) / D + eps) * tl.load(WEIGHT + d, mask=d < D, other=0.0)
    else:
        away = tl.where(d < D, x - tl.sum(x, 0) / D, 0.0)
        h = away * tl.rsqrt(tl.sum(away * away, 0) / D + eps)
        h = h * tl.load(WEIGHT + d, mask=d < D, other=0.0) + tl.load(BIAS + d, mask=d < D, other=0.0)
    tl.store(OUT + row * D + d, h.to(OUT.dtype.element_ty), mask=d < D)
    if KIND & 1:
        tl.store(X + row * D + d, h, mask=d < D)
    elif ADDS:
        tl.store(X + row * D + d, x, mask=d < D)


class Norm(NamedTuple):
    """a and b in float32, ε, and the kind: bits POST and RMS."""

    weight: Tensor
    bias: Tensor
    eps: float
    kind: int


def add_norm(x: Tensor, y: Tensor | None, norm: Norm, out: Tensor) -> None:
    """x (N, D) in float32, changed in place; the normed vectors to `out` in its own dtype."""
    N, D = x.shape
    other = x if y is None else y
    _add_norm[(N,)](x, other, norm.weight, norm.bias, out, norm.eps, y is not None, norm.kind, D, power(D), num_warps=4)


# -- the source --------------------------------------------------------------------------------------------------------


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


# -- attention ---------------------------------------------------------------------------------------------------------


@triton.jit
def _turned(x, partners, real, COS, SIN, places):
    """x with each pair (x_d, x_partner) turned by its angle; the sign of a sine is in the table."""
    other = tl.load(partners, mask=real, other=0.0).to(tl.float32)
    return x * tl.load(COS + places, mask=real, other=0.0) + other * tl.load(SIN + places, mask=real, other=0.0)


@triton.jit
def _look_back(
    QKV,
    K,
    V,
    ANCESTRY,
    T,
    DONE,
    OUT,
    BIAS,
    COS,
    SIN,
    scale,
    C,
    k: tl.constexpr,
    H: tl.constexpr,
    G: tl.constexpr,
    DK: tl.constexpr,
    DV: tl.constexpr,
    PK: tl.constexpr,
    PV: tl.constexpr,
    BLOCK: tl.constexpr,
    BIASED: tl.constexpr,
    TURNS: tl.constexpr,
):
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
            e = tl.where(there, e, -INFINITY)
            higher = tl.maximum(m, tl.max(e, 0))
            a = tl.exp(e - higher)
            fade = tl.exp(m - higher)
            total = total * fade + tl.sum(a, 0)
            c = c * fade + tl.sum(a[:, None] * values.to(tl.float32), 0)
            m = higher
        tl.store(OUT + row * (H * DV) + h * DV + dv, (c / total).to(OUT.dtype.element_ty), mask=dv < DV)


class Shape(NamedTuple):
    """Of a multi-head attention: e = scale · q·k."""

    heads: int
    key_heads: int
    d_k: int
    d_v: int
    scale: float


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
    none = turns.bias if turns.bias is not None else out
    size = power(max(d_k, d_v))
    # One head and 16 places of it for each warp: for beam 5 × 256 at step 16 that took 12 µs, two heads for four
    # warps 42; the more small programs there are, the better they hide each other's waiting.
    _look_back[(len(qkv), H)](
        qkv,
        past.keys,
        past.values,
        past.ancestry,
        t,
        done,
        out,
        none,
        out if turns.cos is None else turns.cos,
        out if turns.sin is None else turns.sin,
        scale,
        C,
        k,
        H,
        G,
        d_k,
        d_v,
        power(d_k),
        power(d_v),
        16,
        turns.bias is not None,
        0 if turns.cos is None else 1 if turns.side_by_side else 2,
        num_warps=1 if size <= 64 else 2,
    )


@triton.jit
def _look_across(
    Q,
    K,
    V,
    LENGTHS,
    DONE,
    OUT,
    scale,
    S,
    k_wide,
    v_wide,
    k: tl.constexpr,
    H: tl.constexpr,
    G: tl.constexpr,
    DK: tl.constexpr,
    DV: tl.constexpr,
    PK: tl.constexpr,
    PV: tl.constexpr,
    QUERIES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    b = tl.program_id(0).to(tl.int64)
    h = tl.program_id(1)
    g = h // (H // G)
    j, dk, dv = tl.arange(0, QUERIES), tl.arange(0, PK), tl.arange(0, PV)
    row = b * k + j
    n = tl.load(LENGTHS + b).to(tl.int32)
    q = tl.load(
        Q + row[:, None] * (H * DK) + h * DK + dk[None, :],
        mask=(j < k)[:, None] & (dk < DK)[None, :],
        other=0.0,
    )
    if tl.load(DONE + b) == 0:
        m = tl.full((QUERIES,), -INFINITY, tl.float32)
        total = tl.zeros((QUERIES,), tl.float32)
        c = tl.zeros((QUERIES, PV), tl.float32)
        for start in range(0, n, BLOCK):
            s = start + tl.arange(0, BLOCK)
            there = s < n
            keys = tl.load(
                K + (b * S + s)[:, None] * k_wide + g * DK + dk[None, :],
                mask=there[:, None] & (dk < DK)[None, :],
                other=0.0,
            )
            values = tl.load(
                V + (b * S + s)[:, None] * v_wide + g * DV + dv[None, :],
                mask=there[:, None] & (dv < DV)[None, :],
                other=0.0,
            )
            e = tl.dot(q, tl.trans(keys), input_precision="ieee") * scale  # (QUERIES, BLOCK)
            e = tl.where(there[None, :], e, -INFINITY)
            higher = tl.maximum(m, tl.max(e, 1))
            a = tl.exp(e - higher[:, None])
            fade = tl.exp(m - higher)
            total = total * fade + tl.sum(a, 1)
            c = c * fade[:, None] + tl.dot(a.to(values.dtype), values, input_precision="ieee")
            m = higher
        c = c / tl.where(total > 0, total, 1.0)[:, None]  # a source without positions says nothing
        tl.store(
            OUT + row[:, None] * (H * DV) + h * DV + dv[None, :],
            c.to(OUT.dtype.element_ty),
            mask=(j < k)[:, None] & (dv < DV)[None, :],
        )


@triton.jit
def _look_across_alone(
    Q,
    K,
    V,
    LENGTHS,
    DONE,
    OUT,
    scale,
    S,
    k_wide,
    v_wide,
    k: tl.constexpr,
    H: tl.constexpr,
    G: tl.constexpr,
    DK: tl.constexpr,
    DV: tl.constexpr,
    PK: tl.constexpr,
    PV: tl.constexpr,
    BLOCK: tl.constexpr,
):
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
            there = (s < n)[:, None]
            place = (b * S + s)[:, None]
            keys = tl.load(K + place * k_wide + g * DK + dk[None, :], mask=there & (dk < DK)[None, :], other=0.0)
            values = tl.load(V + place * v_wide + g * DV + dv[None, :], mask=there & (dv < DV)[None, :], other=0.0)
            e = tl.where(s < n, tl.sum(keys.to(tl.float32) * q[None, :], 1) * scale, -INFINITY)  # (BLOCK,)
            higher = tl.maximum(m, tl.max(e, 0))
            a = tl.exp(e - higher)
            fade = tl.exp(m - higher)
            total = total * fade + tl.sum(a, 0)
            c = c * fade + tl.sum(a[:, None] * values.to(tl.float32), 0)
            m = higher
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
    least = 16  # of anything that tensor cores take
    _look_across[(len(q) // k, H)](
        *given,
        k,
        H,
        G,
        d_k,
        d_v,
        max(power(d_k), least),
        max(power(d_v), least),
        max(power(k), least),
        16,  # with one warp the best of five settings that were tried, for k 5
        num_warps=1,
    )


# -- search ------------------------------------------------------------------------------------------------------------


@triton.jit
def _survey(Z, DONE, TOPS, PARTS, V, wide, k, SIZE: tl.constexpr, GROUP: tl.constexpr):
    row, part, parts = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    if tl.load(DONE + row // k) == 0:
        i = tl.arange(0, SIZE)
        y = (part * SIZE + i)[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
        z = tl.load(Z + row.to(tl.int64) * wide + y, mask=y < V, other=-INFINITY).to(tl.float32)
        top = tl.max(z, 1)
        m = tl.max(top, 0)
        total = tl.sum(tl.sum(tl.exp(z - tl.where(m == -INFINITY, 0.0, m)), 1), 0)
        tl.store(TOPS + (row * parts + part) * SIZE + i, top)
        tl.store(PARTS + (row * parts + part) * 2, m)
        tl.store(PARTS + (row * parts + part) * 2 + 1, total)


def survey(z: Tensor, V: int, done: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Of logits (N, ≥ V) the largest of every group, (N, ·), and the maximum and Σ e^(z−m) of every part, (N, ·, 2)."""
    parts = -(-V // (GROUPS * GROUP))
    tops = torch.empty(len(z), parts * GROUPS, device=z.device)
    sums = torch.empty(len(z), parts, 2, device=z.device)
    _survey[(len(z), parts)](z, done, tops, sums, V, z.stride(0), k, GROUPS, GROUP, num_warps=4)
    return tops, sums


@triton.jit
def _ranked(z, place):
    """One integer for a logit and its place, larger for a larger logit, and of equal ones for the earlier."""
    bits = z.to(tl.int32, bitcast=True)
    bits = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return (bits.to(tl.int64) << 32) | (0x7FFFFFFF - place).to(tl.int64)


@triton.jit
def _logit(rank):
    bits = (rank >> 32).to(tl.int32)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.float32, bitcast=True)


@triton.jit
def _place(rank):
    return 0x7FFFFFFF - (rank & 0x7FFFFFFF).to(tl.int32)


@triton.jit
def _surveyed(
    Z, TOPS, PARTS, V, never, parts, SIZE: tl.constexpr, PG: tl.constexpr, PP: tl.constexpr, GROUP: tl.constexpr
):
    """log Σ e^z of a row, and the ranks of its groups, the first one without what may not be said."""
    p = tl.arange(0, PP)
    m = tl.load(PARTS + p * 2, mask=p < parts, other=-INFINITY)
    most = tl.max(m, 0)
    lse = most + tl.log(tl.sum(tl.load(PARTS + p * 2 + 1, mask=p < parts, other=0.0) * tl.exp(m - most), 0))
    g = tl.arange(0, PG)
    top = tl.load(TOPS + g, mask=g < parts * SIZE, other=-INFINITY)
    y = tl.arange(0, GROUP)
    first = tl.load(Z + y, mask=(y < V) & (y != PAD_) & (y != BOS_) & (y != never), other=-INFINITY).to(tl.float32)
    return lse, _ranked(tl.where(g == 0, tl.max(first, 0), top), g)


@triton.jit
def _best(
    Z,
    TOPS,
    PARTS,
    T,
    SHORTEST,
    DONE,
    VALUES,
    TOKENS,
    V,
    wide,
    parts,
    k,
    N: tl.constexpr,
    PN: tl.constexpr,
    SIZE: tl.constexpr,
    PG: tl.constexpr,
    PP: tl.constexpr,
    GROUP: tl.constexpr,
):
    row = tl.program_id(0)
    b = row // k
    if tl.load(DONE + b) == 0:
        Z += row.to(tl.int64) * wide
        never = tl.where(tl.load(T + b) < tl.load(SHORTEST + b), EOS_, PAD_)
        lse, tops = _surveyed(
            Z, TOPS + row * parts * SIZE, PARTS + row * parts * 2, V, never, parts, SIZE, PG, PP, GROUP
        )
        # The N best logits lie in the N groups whose best are best: those are read again.
        r = tl.arange(0, PN)
        groups = tl.zeros((PN,), tl.int32)
        for i in range(N):
            rank = tl.max(tops, 0)
            groups = tl.where(r == i, _place(rank), groups)
            tops = tl.where(tops == rank, LEAST, tops)
        y = groups[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
        real = (y < V) & (r < N)[:, None] & (y != PAD_) & (y != BOS_) & (y != never)
        z = tl.load(Z + y, mask=real, other=-INFINITY).to(tl.float32)
        ranks = tl.reshape(_ranked(z, y), (PN * GROUP,))
        values = tl.full((PN,), -INFINITY, tl.float32)
        tokens = tl.full((PN,), EOS_, tl.int32)
        for i in range(N):
            rank = tl.max(ranks, 0)
            found = r == tl.where(_logit(rank) > -INFINITY, i, -1)
            values = tl.where(found, _logit(rank) - lse, values)
            tokens = tl.where(found, _place(rank), tokens)
            ranks = tl.where(ranks == rank, LEAST, ranks)
        tl.store(VALUES + row * PN + r, values)
        tl.store(TOKENS + row * PN + r, tokens)


def best(z: Tensor, V: int, t: Tensor, shortest: Tensor, done: Tensor, k: int, values: Tensor, tokens: Tensor) -> None:
    """The k + 1 best tokens of each row of logits (N, ≥ V) and their log p, −∞ where there are fewer."""
    tops, sums = survey(z, V, done, k)
    size, parts = power(tops.shape[1]), sums.shape[1]
    _best[(len(z),)](
        z,
        tops,
        sums,
        t,
        shortest,
        done,
        values,
        tokens,
        V,
        z.stride(0),
        parts,
        k,
        k + 1,
        values.shape[-1],
        GROUPS,
        size,
        power(parts),
        GROUP,
        num_warps=min(max(size // 1024, 1), 8),
    )


@triton.jit
def _pick(
    Z,
    TOPS,
    PARTS,
    T,
    TOKEN,
    DONE,
    HOW,
    LONGEST,
    SHORTEST,
    TOKENS,
    LOG_PROBS,
    V,
    wide,
    parts,
    R,
    SIZE: tl.constexpr,
    PG: tl.constexpr,
    PP: tl.constexpr,
    GROUP: tl.constexpr,
):
    b = tl.program_id(0)
    if tl.load(DONE + b) == 0:
        t = tl.load(T + b)
        Z += b.to(tl.int64) * wide
        never = tl.where(t < tl.load(SHORTEST + b), EOS_, PAD_)
        lse, tops = _surveyed(Z, TOPS + b * parts * SIZE, PARTS + b * parts * 2, V, never, parts, SIZE, PG, PP, GROUP)
        y = _place(tl.max(tops, 0)) * GROUP + tl.arange(0, GROUP)
        real = (y < V) & (y != PAD_) & (y != BOS_) & (y != never)
        rank = tl.max(_ranked(tl.load(Z + y, mask=real, other=-INFINITY).to(tl.float32), y), 0)
        most, token = _logit(rank), _place(rank)
        stuck = most == -INFINITY
        ends = (token == EOS_) & (most > -INFINITY)
        last = t >= tl.load(LONGEST + b)
        if ends | (last == 0) & (stuck == 0):
            tl.store(TOKENS + b * R + t, token)
            tl.store(LOG_PROBS + b * R + t, most - lse)
        if ends | stuck | last:
            tl.store(HOW + b, tl.where(ends, 1, tl.where(last, 0, 2)))
            tl.store(DONE + b, 1)
        else:
            tl.store(TOKEN + b, token)
            tl.store(T + b, t + 1)


def pick(
    z: Tensor,
    V: int,
    t: Tensor,
    token: Tensor,
    done: Tensor,
    how: Tensor,
    longest: Tensor,
    shortest: Tensor,
    tokens: Tensor,
    log_probs: Tensor,
) -> None:
    """A step of greedy search for every sentence: logits (B, ≥ V) into all the other tensors, see GreedyBoard."""
    tops, sums = survey(z, V, done, 1)
    size, parts = power(tops.shape[1]), sums.shape[1]
    _pick[(len(z),)](
        z,
        tops,
        sums,
        t,
        token,
        done,
        how,
        longest,
        shortest,
        tokens,
        log_probs,
        V,
        z.stride(0),
        parts,
        tokens.shape[1],
        GROUPS,
        size,
        power(parts),
        GROUP,
        num_warps=min(max(size // 1024, 1), 8),
    )


@triton.jit
def _choose(
    VALUES,
    CANDIDATES,
    T,
    TOKEN,
    PARENT,
    TOTAL,
    SCORE,
    DONE,
    LONGEST,
    FACTORS,
    TOKENS,
    PARENTS,
    LOG_PROBS,
    POOL_SCORE,
    POOL_STEP,
    POOL_PARENT,
    POOL_LOG_PROB,
    POOL_ENDED,
    ANCESTRY,
    C,
    R,
    k: tl.constexpr,
    PK: tl.constexpr,
    PN: tl.constexpr,
    P2: tl.constexpr,
    EXACT: tl.constexpr,
    ANCESTORS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    b = tl.program_id(0)
    if tl.load(DONE + b) == 0:
        t = tl.load(T + b)
        longest = tl.load(LONGEST + b)
        j, r = tl.arange(0, PK), tl.arange(0, P2)
        mine = b * k + j
        total = tl.load(TOTAL + mine, mask=j < k, other=-INFINITY)  # (PK,) float64
        n = tl.arange(0, PN)
        at = mine[:, None] * PN + n[None, :]
        values = tl.load(VALUES + at, mask=(j < k)[:, None], other=-INFINITY)
        candidates = tl.load(CANDIDATES + at, mask=(j < k)[:, None], other=EOS_)
        parents = tl.reshape(j[:, None] + tl.zeros((PK, PN), tl.int32), (PK * PN,))
        sums = tl.reshape(total[:, None] + values.to(tl.float64), (PK * PN,))
        values, candidates = tl.reshape(values, (PK * PN,)), tl.reshape(candidates, (PK * PN,))

        # 1, 2: the 2k best extensions, in order
        each = tl.arange(0, PK * PN)
        top = tl.full((P2,), -INFINITY, tl.float64)
        token = tl.full((P2,), EOS_, tl.int32)
        parent = tl.zeros((P2,), tl.int32)
        said = tl.full((P2,), -INFINITY, tl.float32)
        for i in range(2 * k):
            most = tl.max(sums, 0)
            here = each == tl.argmax(sums, 0)
            found = r == tl.where(most > -INFINITY, i, -1)
            top = tl.where(found, most, top)
            token = tl.where(found, tl.sum(tl.where(here, candidates, 0), 0), token)
            parent = tl.where(found, tl.sum(tl.where(here, parents, 0), 0), parent)
            said = tl.where(found, tl.sum(tl.where(here, values, 0.0), 0), said)
            sums = tl.where(here, -INFINITY, sums)
        ended = (token == EOS_) & (top > -INFINITY)
        factor = tl.load(FACTORS + t + 1)

        # 3: those among the first k that ended go into the pool, which stays sorted by score
        pool = tl.load(POOL_SCORE + mine, mask=j < k, other=-INFINITY)
        step = tl.load(POOL_STEP + mine, mask=j < k, other=0)
        origin = tl.load(POOL_PARENT + mine, mask=j < k, other=0)
        last = tl.load(POOL_LOG_PROB + mine, mask=j < k, other=0.0)
        closed = tl.load(POOL_ENDED + mine, mask=j < k, other=0)
        new = tl.where(ended & (r < k), top * factor, -INFINITY)
        gone = tl.zeros((PK,), tl.int32)
        for _ in range(tl.sum((new > -INFINITY).to(tl.int32), 0)):
            most = tl.max(new, 0)
            here = r == tl.argmax(new, 0)
            from_ = tl.sum(tl.where(here, parent, 0), 0)
            log_p = tl.sum(tl.where(here, said, 0.0), 0)
            gone = tl.where(j == from_, 1, gone)
            place = tl.sum((pool >= most).to(tl.int32), 0)  # behind all that score as much
            pool = _insert(pool, most, place, j, PK, -INFINITY)
            step = _insert(step, t, place, j, PK, 0)
            origin = _insert(origin, from_, place, j, PK, 0)
            last = _insert(last, log_p, place, j, PK, 0.0)
            closed = _insert(closed, 1, place, j, PK, 0)
            pool = tl.where(j < k, pool, -INFINITY)
            new = tl.where(here, -INFINITY, new)
        # 5: at the limit, live ones that did not just end take what is free in the pool
        at_limit = t == longest
        if at_limit:
            cut = tl.load(SCORE + mine, mask=j < k, other=-INFINITY)
            cut = tl.where((gone == 0) & (total > -INFINITY), cut, -INFINITY)
            free = tl.sum((pool > -INFINITY).to(tl.int32), 0)
            for _ in range(k):
                most = tl.max(cut, 0)
                here = tl.argmax(cut, 0)
                put = (j == tl.where(most > -INFINITY, free, -1)) & (j < k)
                pool = tl.where(put, most, pool)
                step = tl.where(put, t, step)
                origin = tl.where(put, here, origin)
                closed = tl.where(put, 0, closed)
                cut = tl.where(j == here, -INFINITY, cut)
                free += 1
        tl.store(POOL_SCORE + mine, pool, mask=j < k)
        tl.store(POOL_STEP + mine, step, mask=j < k)
        tl.store(POOL_PARENT + mine, origin, mask=j < k)
        tl.store(POOL_LOG_PROB + mine, last, mask=j < k)
        tl.store(POOL_ENDED + mine, closed, mask=j < k)

        # 4: the first k others live on
        alive = (ended == 0) & (r < 2 * k) & (top > -INFINITY)
        order = tl.cumsum(alive.to(tl.int32), 0) - 1
        kept = alive[:, None] & (order[:, None] == j[None, :])  # (P2, PK)
        some = tl.sum(kept.to(tl.int32), 0) > 0
        total = tl.where(some, tl.sum(tl.where(kept, top[:, None], 0.0), 0), -INFINITY)
        token_ = tl.where(some, tl.sum(tl.where(kept, token[:, None], 0), 0), EOS_)
        parent_ = tl.where(some, tl.sum(tl.where(kept, parent[:, None], 0), 0), 0)
        said_ = tl.sum(tl.where(kept, said[:, None], 0.0), 0)
        tl.store(TOTAL + mine, total, mask=j < k)
        tl.store(SCORE + mine, total * factor, mask=j < k)
        tl.store(TOKEN + mine, token_, mask=j < k)
        tl.store(PARENT + mine, parent_, mask=j < k)
        trail = (b * R + t) * k + j
        tl.store(TOKENS + trail, token_, mask=j < k)
        tl.store(PARENTS + trail, parent_, mask=j < k)
        tl.store(LOG_PROBS + trail, said_, mask=j < k)

        # 5: done at the limit, or when nothing alive can change the pool
        most = tl.max(tl.where(j < k, total, -INFINITY), 0)
        hope = most * factor
        if EXACT:
            hope = tl.maximum(most * tl.load(FACTORS + t + 2), most * tl.load(FACTORS + longest + 1))
        worst = tl.sum(tl.where(j == k - 1, pool, 0.0), 0)
        over = at_limit | ((worst > -INFINITY) & (hope <= worst)) | (most == -INFINITY)
        if over:
            tl.store(DONE + b, 1)
        else:
            tl.store(T + b, t + 1)
            if ANCESTORS:
                for start in range(0, t + 1, BLOCK):
                    s = start + tl.arange(0, BLOCK)
                    theirs = ANCESTRY + (b * k + parent_)[:, None] * C + s[None, :]
                    a = tl.load(theirs, mask=(j < k)[:, None] & (s < t)[None, :], other=0).to(tl.int32)
                    a = tl.where(s[None, :] == t, parent_[:, None], a)
                    tl.debug_barrier()  # all of a block is read before any of it is written
                    ours = ANCESTRY + mine[:, None] * C + s[None, :]
                    tl.store(ours, a.to(ANCESTRY.dtype.element_ty), mask=(j < k)[:, None] & (s <= t)[None, :])


@triton.jit
def _insert(x, value, place, j, PK: tl.constexpr, nothing):
    """x (PK,) with a value put in at a place; what stood there and behind it moves on by one."""
    before = tl.sum(tl.where(j[None, :] == j[:, None] - 1, x[None, :], 0), 1)  # x_{j-1}; sums of one entry each
    before = tl.where(j == 0, nothing, before)
    return tl.where(j < place, x, tl.where(j == place, value, before)).to(x.dtype)


def choose(
    values: Tensor,
    candidates: Tensor,
    t: Tensor,
    token: Tensor,
    parent: Tensor,
    total: Tensor,
    score: Tensor,
    done: Tensor,
    longest: Tensor,
    factors: Tensor,
    trail: Sequence[Tensor],
    pool: Sequence[Tensor],
    ancestry: Tensor | None,
    exact: bool,
) -> None:
    """A step of a beam for every sentence: the best (B · k, ≥ k + 1) into all the other tensors, see BeamBoard."""
    B, k = token.shape
    a = candidates if ancestry is None else ancestry
    _choose[(B,)](
        values,
        candidates,
        t,
        token,
        parent,
        total,
        score,
        done,
        longest,
        factors,
        *trail,
        *pool,
        a,
        a.shape[-1],
        trail[0].shape[1],
        k,
        power(k),
        values.shape[-1],
        power(2 * k),
        exact,
        ancestry is not None,
        64,
        num_warps=1 if k < 9 else 4,
    )


@triton.jit
def _walk(SLOTS, SCORE, STEP, PARENT, LAST, ENDED, TOKENS, PARENTS, LOG_PROBS, FOUND, SCORES, FLOATS, R, room, k):
    # What is found lies in one piece, behind one pointer for each type: five pointers into it would be aligned now in
    # one way and now in another, and Triton would compile the kernel for each.
    i, count = tl.program_id(0), tl.num_programs(0)
    SAID, LOGS = FOUND + 4 * count + i * room, FLOATS + (4 + room) * count + i * room
    slot = tl.load(SLOTS + i // k).to(tl.int32)
    at = slot * k + i % k
    score = tl.load(SCORE + at)
    tl.store(SCORES + i, score)
    if score > -INFINITY:
        n = tl.load(STEP + at)
        j = tl.load(PARENT + at)
        ended = tl.load(ENDED + at)
        tl.store(FOUND + 2 * count + i, n)
        tl.store(FOUND + 3 * count + i, ended)
        if ended == 1:
            tl.store(LOGS + n, tl.load(LAST + at))
        for back in range(1, n + 1):
            here = (slot * R + n - back) * k + j
            tl.store(SAID + n - back, tl.load(TOKENS + here))
            tl.store(LOGS + n - back, tl.load(LOG_PROBS + here))
            j = tl.load(PARENTS + here)


def walk(slots: Tensor, pool: Sequence[Tensor], trail: Sequence[Tensor], found: Tensor, room: int) -> None:
    """All hypotheses in the pools of some slots to `found`, as `columns` in device_search.py reads it."""
    R, k = trail[0].shape[1:]
    views = found, found.view(torch.float64), found.view(torch.float32)
    _walk[(len(slots) * k,)](slots, *pool, *trail, *views, R, room, k, num_warps=1)
