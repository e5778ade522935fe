"""Attention over rows laid end to end, (N, H, D), without any padding between them.

    row i of the queries is at q_starts[i] … q_starts[i+1] − 1, of the keys at k_starts[i] … k_starts[i+1] − 1

    e = s q·k     a = softmax(e) within the row; causal: over the keys not after the query      c = a v

A row without keys gives zeros. On a GPU with Triton one kernel does it, forward and backward; elsewhere the rows are
padded, looked at by torch's own attention, and laid end to end again. Both are one operator to torch.compile.

N queries and M keys of all rows together, H heads, G key heads (H / G queries share one), D width of a head, B rows.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn

SIZES = (16, 32, 64, 128)  # widths of a head that the GPU's kernel takes


@cache
def triton_works() -> bool:
    """Whether kernels can be compiled for the GPU that is here."""
    if not torch.cuda.is_available() or torch.version.hip is not None:
        return False
    try:
        import triton  # noqa: F401
    except ImportError:
        return False
    return torch.cuda.get_device_capability() >= (8, 0)


def kernel_serves(q: Tensor, k: Tensor, v: Tensor) -> bool:
    return q.is_cuda and triton_works() and q.shape[2] in SIZES and v.shape[2] in SIZES


def packed_attention(
    q: Tensor, k: Tensor, v: Tensor, q_starts: Tensor, k_starts: Tensor, longest: int, causal: bool, scale: float
) -> Tensor:
    """c (N, H, D_v); `longest` bounds the rows of both sides and decides the kernel's tiles."""
    if kernel_serves(q, k, v):
        c, _ = _attend(q, k, v, q_starts, k_starts, longest, causal, scale)
        return c  # type: ignore[no-any-return]
    return padded_attention(q, k, v, q_starts, k_starts, causal, scale)


# -- on a GPU ----------------------------------------------------------------------------------------------------------


@torch.library.custom_op("dragoman::packed_attention", mutates_args=())
def _attend(
    q: Tensor, k: Tensor, v: Tensor, q_starts: Tensor, k_starts: Tensor, longest: int, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """c, and log Σ e^e of each query (N, H)."""
    from dragoman.nn.kernels import packed_triton

    return packed_triton.forward(q, k, v, q_starts, k_starts, longest, causal, scale)


@_attend.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *rest: object) -> tuple[Tensor, Tensor]:
    return q.new_empty(q.shape[0], q.shape[1], v.shape[2]), q.new_empty(q.shape[0], q.shape[1], dtype=torch.float32)


@torch.library.custom_op("dragoman::packed_attention_backward", mutates_args=())
def _attend_backward(
    dc: Tensor, q: Tensor, k: Tensor, v: Tensor, c: Tensor, lse: Tensor, q_starts: Tensor, k_starts: Tensor,
    longest: int, causal: bool, scale: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    from dragoman.nn.kernels import packed_triton

    return packed_triton.backward(dc, q, k, v, c, lse, q_starts, k_starts, longest, causal, scale)


@_attend_backward.register_fake
def _(dc: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: object) -> tuple[Tensor, ...]:
    return tuple(torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))


def _keep(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    q, k, v, q_starts, k_starts, ctx.longest, ctx.causal, ctx.scale = inputs
    ctx.save_for_backward(q, k, v, *output, q_starts, k_starts)


def _backward(ctx, dc, dlse):  # type: ignore[no-untyped-def]
    q, k, v, c, lse, q_starts, k_starts = ctx.saved_tensors
    found = _attend_backward(dc, q, k, v, c, lse, q_starts, k_starts, ctx.longest, ctx.causal, ctx.scale)
    return *found, None, None, None, None, None


_attend.register_autograd(_backward, setup_context=_keep)


# -- the plain way -----------------------------------------------------------------------------------------------------


def padded_attention(
    q: Tensor, k: Tensor, v: Tensor, q_starts: Tensor, k_starts: Tensor, causal: bool, scale: float
) -> Tensor:
    """The same through padded rows and torch's own attention."""
    (queries, q_real), (keys, k_real), (values, _) = padded(q, q_starts), padded(k, k_starts), padded(v, k_starts)
    mask = k_real[:, None, None]  # (B, 1, 1, S)
    if causal:
        T, S = q_real.shape[1], k_real.shape[1]
        mask = mask & torch.ones(T, S, dtype=torch.bool, device=q.device).tril()
    seen = nn.functional.scaled_dot_product_attention(
        queries.transpose(1, 2),
        keys.transpose(1, 2),
        values.transpose(1, 2),
        mask,
        scale=scale,
        enable_gqa=k.shape[1] < q.shape[1],
    )  # (B, H, T, D_v)
    seen = seen.masked_fill(~mask.any(-1, keepdim=True), 0.0)
    c = q.new_zeros(q.shape[0], q.shape[1], v.shape[2])
    place = places(q_starts, q_real.shape[1])
    return c.index_put((place[q_real],), seen.transpose(1, 2)[q_real])


def padded(x: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
    """(N, …) → (B, longest, …), zeros where a row has ended, and which positions are real (B, longest)."""
    lengths = starts.diff()
    size = int(lengths.max()) if len(lengths) else 0
    real = torch.arange(size, device=x.device) < lengths[:, None]
    rows = x[places(starts, size).clamp(max=max(len(x) - 1, 0))] if len(x) else x.new_zeros(*real.shape, *x.shape[1:])
    return rows.masked_fill(~real.view(*real.shape, *(1,) * (x.dim() - 1)), 0.0), real


def places(starts: Tensor, size: int) -> Tensor:
    """(B, size): where each position of each row lies."""
    return starts[:-1, None].long() + torch.arange(size, device=starts.device)
