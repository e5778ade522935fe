"""The best tokens of each row of logits and their log p, without a log softmax of the whole vocabulary.

    log p(y) = z_y − log Σ_y' e^z_y'        y, y' ∉ {<pad>, <s>}

    summarize_logits   of every 32 logits the largest; of every 4,096 m = max z and Σ e^(z−m)    one program for 4,096
    top_tokens         the n largest of log softmax(z), from that summary                        one for each row

The n largest logits lie in the n groups with the largest maxima, so only those groups are read a second time. Of equal
logits the one with the smaller id comes first. Padding and <s> are never among them, nor is </s> before the minimum
length.

N rows, z (N, ≥ V): columns beyond the vocabulary are the padding of a matrix product.
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
MIN_RANK = tl.constexpr(-(2**63))
# One program of a summary reads 128 groups of 32 logits; a beam of 5 then ranks 1,000 maxima for each hypothesis and
# reads six groups again. Ranking the best of 4,096 lanes took 84 µs for 1,280 rows of 32,000 logits.
GROUP, GROUPS = 32, 128


@triton.jit
def _summarize_logits(Z, DONE, TOPS, PARTS, V, stride, k, SIZE: tl.constexpr, GROUP: tl.constexpr):
    """One row and part per program: the maximum of each group → TOPS; maximum and Σ e^(z−m) of the part → PARTS."""
    row, part, parts = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    if tl.load(DONE + row // k) == 0:
        i = tl.arange(0, SIZE)
        y = (part * SIZE + i)[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
        is_token = (y < V) & (y != PAD_) & (y != BOS_)
        z = tl.load(Z + row.to(tl.int64) * stride + y, mask=is_token, other=-INFINITY).to(tl.float32)
        top = tl.max(z, 1)
        m = tl.max(top, 0)
        total = tl.sum(tl.sum(tl.exp(z - tl.where(m == -INFINITY, 0.0, m)), 1), 0)
        tl.store(TOPS + (row * parts + part) * SIZE + i, top)
        tl.store(PARTS + (row * parts + part) * 2, m)
        tl.store(PARTS + (row * parts + part) * 2 + 1, total)


def summarize_logits(z: Tensor, V: int, done: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Of logits (N, ≥ V) the largest of each group, (N, ·), and the maximum and Σ e^(z−m) of each part, (N, ·, 2)."""
    parts = -(-V // (GROUPS * GROUP))
    tops = torch.empty(len(z), parts * GROUPS, device=z.device)
    sums = torch.empty(len(z), parts, 2, device=z.device)
    _summarize_logits[(len(z), parts)](z, done, tops, sums, V, z.stride(0), k, GROUPS, GROUP, num_warps=4)
    return tops, sums


# -- shared by the kernels that read a summary -------------------------------------------------------------------------


@triton.jit
def encode_rank(z, index):
    """One integer for a logit and its index: larger for a larger logit, and of equal logits for the smaller index."""
    bits = z.to(tl.int32, bitcast=True)
    bits = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return (bits.to(tl.int64) << 32) | (0x7FFFFFFF - index).to(tl.int64)


@triton.jit
def logit_of_rank(rank):
    """The logit that `encode_rank` put into a rank."""
    bits = (rank >> 32).to(tl.int32)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.float32, bitcast=True)


@triton.jit
def index_of_rank(rank):
    """The index that `encode_rank` put into a rank."""
    return 0x7FFFFFFF - (rank & 0x7FFFFFFF).to(tl.int32)


@triton.jit
def is_allowed(y, V, never):
    """Whether a token may be chosen: not <pad>, <s>, beyond V, or `never`, which is </s> before the minimum length."""
    return (y < V) & (y != PAD_) & (y != BOS_) & (y != never)


@triton.jit
def load_summary(
    Z, TOPS, PARTS, row, V, never, parts,
    SIZE: tl.constexpr, PG: tl.constexpr, PP: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """log Σ e^z of a row, and the ranks of its groups, the first group's without tokens that may not be chosen."""
    TOPS += row * parts * SIZE
    PARTS += row * parts * 2
    p = tl.arange(0, PP)
    m = tl.load(PARTS + p * 2, mask=p < parts, other=-INFINITY)
    most = tl.max(m, 0)
    lse = most + tl.log(tl.sum(tl.load(PARTS + p * 2 + 1, mask=p < parts, other=0.0) * tl.exp(m - most), 0))
    g = tl.arange(0, PG)
    top = tl.load(TOPS + g, mask=g < parts * SIZE, other=-INFINITY)
    y = tl.arange(0, GROUP)
    first = tl.load(Z + y, mask=is_allowed(y, V, never), other=-INFINITY).to(tl.float32)
    return lse, encode_rank(tl.where(g == 0, tl.max(first, 0), top), g)


# -- the best tokens of a row ------------------------------------------------------------------------------------------


@triton.jit
def _top_tokens(
    Z, TOPS, PARTS, T, MIN_LENGTH, DONE, VALUES, TOKENS, V, stride, parts, k,
    N: tl.constexpr, PN: tl.constexpr, SIZE: tl.constexpr, PG: tl.constexpr, PP: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """One row per program: the N best allowed tokens → TOKENS and their log p → VALUES, −∞ where there are fewer."""
    row = tl.program_id(0)
    b = row // k
    if tl.load(DONE + b) == 0:
        Z += row.to(tl.int64) * stride
        never = tl.where(tl.load(T + b) < tl.load(MIN_LENGTH + b), EOS_, PAD_)
        lse, tops = load_summary(Z, TOPS, PARTS, row, V, never, parts, SIZE, PG, PP, GROUP)
        # The N best logits lie in the N groups with the largest maxima: those are read again.
        r = tl.arange(0, PN)
        groups = tl.zeros((PN,), tl.int32)
        for i in range(N):
            rank = tl.max(tops, 0)
            groups = tl.where(r == i, index_of_rank(rank), groups)
            tops = tl.where(tops == rank, MIN_RANK, tops)
        y = groups[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
        z = tl.load(Z + y, mask=(r < N)[:, None] & is_allowed(y, V, never), other=-INFINITY).to(tl.float32)
        ranks = tl.reshape(encode_rank(z, y), (PN * GROUP,))
        values = tl.full((PN,), -INFINITY, tl.float32)
        tokens = tl.full((PN,), EOS_, tl.int32)
        for i in range(N):
            rank = tl.max(ranks, 0)
            is_ith = r == tl.where(logit_of_rank(rank) > -INFINITY, i, -1)
            values = tl.where(is_ith, logit_of_rank(rank) - lse, values)
            tokens = tl.where(is_ith, index_of_rank(rank), tokens)
            ranks = tl.where(ranks == rank, MIN_RANK, ranks)
        tl.store(VALUES + row * PN + r, values)
        tl.store(TOKENS + row * PN + r, tokens)


def top_tokens(
    z: Tensor, V: int, t: Tensor, min_length: Tensor, done: Tensor, k: int, values: Tensor, tokens: Tensor
) -> None:
    """Write the k + 1 best allowed tokens of each row of logits (N, ≥ V) and their log p, −∞ where there are fewer."""
    tops, sums = summarize_logits(z, V, done, k)
    size, parts = power(tops.shape[1]), sums.shape[1]
    _top_tokens[(len(z),)](
        z, tops, sums, t, min_length, done, values, tokens, V, z.stride(0), parts, k,
        k + 1, values.shape[-1], GROUPS, size, power(parts), GROUP, num_warps=min(max(size // 1024, 1), 8),
    )  # fmt: skip
