"""Output layer and cross entropy in one function that never holds the logits of all positions.

    z = W o + b      L = Σ_n (1 − ε) (lse z_n − z_n,y) + ε (lse z_n − mean z_n)        lse z = log Σ_j e^{z_j}
    ∂L/∂z = softmax(z) − (1 − ε) 1[y] − ε/V                                             0 where y is padding

It takes a few thousand positions at a time, overwrites their logits with ∂L/∂z and multiplies that by W at once. So
there is no second pass over the logits, and only ∂L/∂o, ∂L/∂W and ∂L/∂b are saved for the backward pass.

N positions, D width, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dragoman.core.types import PAD
from dragoman.nn.kernels.packed import supports_triton

LOGIT_BYTES_GPU = 1 << 29  # held at a time: large enough that the matrix products fill a GPU
LOGIT_BYTES_CPU = 1 << 23  # small enough for the cache


def linear_cross_entropy(o: Tensor, weight: Tensor, bias: Tensor | None, gold: Tensor, smoothing: float) -> Tensor:
    """The summed, smoothed cross entropy of W o + b, o (N, D), against gold tokens (N,), padding excluded."""
    loss: Tensor = _LinearCrossEntropy.apply(o, weight, bias, gold, smoothing)  # type: ignore[no-untyped-call]
    return loss


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, o: Tensor, weight: Tensor, bias: Tensor | None, gold: Tensor, smoothing: float) -> Tensor:
        dtype = torch.get_autocast_dtype(o.device.type) if torch.is_autocast_enabled(o.device.type) else o.dtype
        with torch.autocast(o.device.type, enabled=False):
            W, x = weight.to(dtype), o.to(dtype)
            b = None if bias is None else bias.to(dtype)
            N, V = len(o), len(weight)
            rows = max((LOGIT_BYTES_GPU if o.is_cuda else LOGIT_BYTES_CPU) // (V * x.element_size()), 1)
            chunks = -(-N // rows)
            rows = -(-N // max(chunks, 1))  # chunks of one size
            do, dW = torch.empty_like(x), weight.new_zeros(weight.shape)
            db = None if bias is None else bias.new_zeros(bias.shape)
            losses = o.new_zeros(N, dtype=torch.float32)
            for i in range(0, N, max(rows, 1)):
                j = min(i + rows, N)
                z = x[i:j] @ W.T if b is None else torch.addmm(b, x[i:j], W.T)  # (n, V)
                losses[i:j] = overwrite_with_gradient(z, gold[i:j], smoothing)
                torch.mm(z, W, out=do[i:j])
                add_product_(dW, z, x[i:j])
                if db is not None:
                    db += z.sum(0, dtype=db.dtype)
        ctx.save_for_backward(do.to(o.dtype), dW, db)
        return losses.double().sum().to(torch.float32 if o.dtype != torch.float64 else o.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        do, dW, db = ctx.saved_tensors
        g = grads[0]
        return do * g.to(do.dtype), dW.mul_(g), None if db is None else db.mul_(g), None, None


def add_product_(total: Tensor, z: Tensor, x: Tensor) -> None:
    """total += zᵀ x, in place and in the precision of `total`."""
    if z.dtype == total.dtype:
        total.addmm_(z.T, x)
    elif z.is_cuda:
        total += torch.mm(z.T, x, out_dtype=total.dtype)
    else:
        total += z.T @ x


def overwrite_with_gradient(z: Tensor, gold: Tensor, smoothing: float) -> Tensor:
    """The loss of each row of logits (n, V), in float32; overwrites the logits with their gradient."""
    if z.is_cuda and supports_triton():
        from dragoman.nn.kernels import entropy_triton

        return entropy_triton.overwrite_with_gradient(z, gold, smoothing)
    real, V = gold != PAD, z.shape[1]
    picked = z.gather(1, gold[:, None])[:, 0].to(torch.promote_types(z.dtype, torch.float32))
    mean = z.mean(1, dtype=picked.dtype)
    log_p = torch.log_softmax(z, 1, dtype=picked.dtype)
    lse = picked - log_p.gather(1, gold[:, None])[:, 0]
    z.copy_(log_p.exp_())
    z.sub_(smoothing / V)
    z.scatter_add_(1, gold[:, None], torch.full_like(z[:, :1], smoothing - 1.0))
    z.mul_(real[:, None])
    loss = (1.0 - smoothing) * (lse - picked) + smoothing * (lse - mean)
    return loss.masked_fill(~real, 0.0).to(torch.float32 if z.dtype != torch.float64 else z.dtype)
