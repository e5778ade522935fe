"""From the logits of a row to the few best of them and their log p, without a log softmax of the whole vocabulary.

    log p(y) = z_y − log Σ_y' e^z_y'

    survey    of every 32 logits the largest; of every 4,096 m = max z and Σ e^(z−m)    one program for each 4,096
    best      the n largest of log softmax(z), from a survey                            one for each row

The n largest logits lie in the n groups whose largest are largest, so only those groups are read a second time. Of
equal logits the one with the smaller number comes first. Padding and <s> are never among them, nor is </s> before a
result is as long as it must be.

N rows, z (N, ≥ V): what stands behind the vocabulary is the padding of a matrix product.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton import next_power_of_2 as power

from dragoman.core.types import BOS, EOS, PAD

PAD_, BOS_, EOS_ = tl.constexpr(PAD), tl.constexpr(BOS), tl.constexpr(EOS)
INFINITY = tl.constexpr(float("inf"))
LEAST = tl.constexpr(-(2**63))
# What one program of a survey reads is 128 groups of 32 logits; a beam of 5 then ranks 1,000 numbers for each of its
# hypotheses, and six groups once more. Ranking the best of 4,096 lanes took 84 µs for 1,280 rows of 32,000 logits.
GROUP, GROUPS = 32, 128


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


# -- what the kernels that read a survey share -------------------------------------------------------------------------


@triton.jit
def ranked(z, place):
    """One integer for a logit and its place, larger for a larger logit, and of equal ones for the earlier."""
    bits = z.to(tl.int32, bitcast=True)
    bits = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return (bits.to(tl.int64) << 32) | (0x7FFFFFFF - place).to(tl.int64)


@triton.jit
def logit_of(rank):
    bits = (rank >> 32).to(tl.int32)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.float32, bitcast=True)


@triton.jit
def place_of(rank):
    return 0x7FFFFFFF - (rank & 0x7FFFFFFF).to(tl.int32)


@triton.jit
def sayable(y, V, never):
    """Whether a token is one, and may be said; `never` is </s> where it would come too early."""
    return (y < V) & (y != PAD_) & (y != BOS_) & (y != never)


@triton.jit
def surveyed(
    Z, TOPS, PARTS, row, V, never, parts,
    SIZE: tl.constexpr, PG: tl.constexpr, PP: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """log Σ e^z of a row, and the ranks of its groups, the first one without what may not be said."""
    TOPS += row * parts * SIZE
    PARTS += row * parts * 2
    p = tl.arange(0, PP)
    m = tl.load(PARTS + p * 2, mask=p < parts, other=-INFINITY)
    most = tl.max(m, 0)
    lse = most + tl.log(tl.sum(tl.load(PARTS + p * 2 + 1, mask=p < parts, other=0.0) * tl.exp(m - most), 0))
    g = tl.arange(0, PG)
    top = tl.load(TOPS + g, mask=g < parts * SIZE, other=-INFINITY)
    y = tl.arange(0, GROUP)
    first = tl.load(Z + y, mask=sayable(y, V, never), other=-INFINITY).to(tl.float32)
    return lse, ranked(tl.where(g == 0, tl.max(first, 0), top), g)


# -- the best of a row -------------------------------------------------------------------------------------------------


@triton.jit
def _best(
    Z, TOPS, PARTS, T, SHORTEST, DONE, VALUES, TOKENS, V, wide, parts, k,
    N: tl.constexpr, PN: tl.constexpr, SIZE: tl.constexpr, PG: tl.constexpr, PP: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    b = row // k
    if tl.load(DONE + b) == 0:
        Z += row.to(tl.int64) * wide
        never = tl.where(tl.load(T + b) < tl.load(SHORTEST + b), EOS_, PAD_)
        lse, tops = surveyed(Z, TOPS, PARTS, row, V, never, parts, SIZE, PG, PP, GROUP)
        # The N best logits lie in the N groups whose best are best: those are read again.
        r = tl.arange(0, PN)
        groups = tl.zeros((PN,), tl.int32)
        for i in range(N):
            rank = tl.max(tops, 0)
            groups = tl.where(r == i, place_of(rank), groups)
            tops = tl.where(tops == rank, LEAST, tops)
        y = groups[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
        z = tl.load(Z + y, mask=(r < N)[:, None] & sayable(y, V, never), other=-INFINITY).to(tl.float32)
        ranks = tl.reshape(ranked(z, y), (PN * GROUP,))
        values = tl.full((PN,), -INFINITY, tl.float32)
        tokens = tl.full((PN,), EOS_, tl.int32)
        for i in range(N):
            rank = tl.max(ranks, 0)
            found = r == tl.where(logit_of(rank) > -INFINITY, i, -1)
            values = tl.where(found, logit_of(rank) - lse, values)
            tokens = tl.where(found, place_of(rank), tokens)
            ranks = tl.where(ranks == rank, LEAST, ranks)
        tl.store(VALUES + row * PN + r, values)
        tl.store(TOKENS + row * PN + r, tokens)


def best(z: Tensor, V: int, t: Tensor, shortest: Tensor, done: Tensor, k: int, values: Tensor, tokens: Tensor) -> None:
    """The k + 1 best tokens of each row of logits (N, ≥ V) and their log p, −∞ where there are fewer."""
    tops, sums = survey(z, V, done, k)
    size, parts = power(tops.shape[1]), sums.shape[1]
    _best[(len(z),)](
        z, tops, sums, t, shortest, done, values, tokens, V, z.stride(0), parts, k,
        k + 1, values.shape[-1], GROUPS, size, power(parts), GROUP, num_warps=min(max(size // 1024, 1), 8),
    )  # fmt: skip
