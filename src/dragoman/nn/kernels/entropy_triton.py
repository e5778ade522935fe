"""From logits to loss and gradient in one Triton kernel, with one program per position; entropy.py has the equation."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from dragoman.core.types import PAD


@triton.jit
def _loss_and_gradient(Z, GOLD, LOSS, z_n, gold_n, V, smoothing, PADDING: tl.constexpr, BLOCK: tl.constexpr):
    """Position n per program: LOSS[n] from the logits Z[n], overwritten with their gradient; zeros at padding."""
    n = tl.program_id(0).to(tl.int64)
    Z += n * z_n
    gold = tl.load(GOLD + n * gold_n)
    j = tl.arange(0, BLOCK)
    if gold == PADDING:
        for start in range(0, V, BLOCK):
            tl.store(Z + start + j, tl.zeros((BLOCK,), Z.dtype.element_ty), mask=start + j < V)
        tl.store(LOSS + n, 0.0)
    elif V <= BLOCK:  # the whole row at once: read once, written once
        z = tl.load(Z + j, mask=j < V, other=-float("inf")).to(tl.float32)
        top = tl.max(z, 0)
        lse = top + tl.log(tl.sum(tl.exp(z - top), 0))
        here = j == gold
        picked = tl.sum(tl.where(here, z, 0.0), 0)
        mean = tl.sum(tl.where(j < V, z, 0.0), 0) / V
        tl.store(LOSS + n, (1.0 - smoothing) * (lse - picked) + smoothing * (lse - mean))
        grad = tl.exp(z - lse) - smoothing / V - tl.where(here, 1.0 - smoothing, 0.0)
        tl.store(Z + j, grad.to(Z.dtype.element_ty), mask=j < V)
    else:
        m = tl.full((BLOCK,), -float("inf"), tl.float32)
        total = tl.zeros((BLOCK,), tl.float32)
        sums = tl.zeros((BLOCK,), tl.float32)
        for start in range(0, V, BLOCK):  # a running maximum and sum in every lane, reduced at the end
            z = tl.load(Z + start + j, mask=start + j < V, other=-float("inf")).to(tl.float32)
            higher = tl.maximum(m, z)
            total = total * tl.exp(m - tl.where(higher == -float("inf"), 0.0, higher)) + tl.exp(
                z - tl.where(higher == -float("inf"), 0.0, higher)
            )
            sums += tl.where(start + j < V, z, 0.0)
            m = higher
        top = tl.max(m, 0)
        lse = top + tl.log(tl.sum(total * tl.exp(m - top), 0))
        picked = tl.load(Z + gold).to(tl.float32)
        loss = (1.0 - smoothing) * (lse - picked) + smoothing * (lse - tl.sum(sums, 0) / V)
        tl.store(LOSS + n, loss)
        tl.debug_barrier()  # the gold logit is read before it is overwritten
        for start in range(0, V, BLOCK):
            z = tl.load(Z + start + j, mask=start + j < V, other=0.0).to(tl.float32)
            grad = tl.exp(z - lse) - smoothing / V - tl.where(start + j == gold, 1.0 - smoothing, 0.0)
            tl.store(Z + start + j, grad.to(Z.dtype.element_ty), mask=start + j < V)


def overwrite_with_gradient(z: Tensor, gold: Tensor, smoothing: float) -> Tensor:
    """The loss of each row of logits (n, V), (n,) in float32; overwrites the logits with their gradient. On a GPU."""
    loss = torch.empty(len(z), dtype=torch.float32, device=z.device)
    if len(z):
        V = z.shape[1]
        whole = triton.next_power_of_2(V)
        block = whole if whole <= 65536 else 8192
        warps = 4 if block <= 2048 else 8 if block <= 8192 else 16 if block <= 16384 or whole > 65536 else 32
        strides = z.stride(0), gold.stride(0)  # of a classifier the gold labels are one column of the targets
        _loss_and_gradient[(len(z),)](z, gold, loss, *strides, V, smoothing, PAD, block, num_warps=warps)
    return loss
