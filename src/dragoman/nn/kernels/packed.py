"""Attention over packed rows, (N, H, D): the sentences of a batch one after the other, without padding.

    row i of the queries is at q_starts[i] … q_starts[i+1] − 1, of the keys at k_starts[i] … k_starts[i+1] − 1

    e = s q·k     a = softmax(e) within the row; causal: over the keys not after the query      c = a v

A row without keys gives zeros. On a GPU with Triton one kernel computes it, forward and backward; elsewhere the rows
are padded, attend with torch's own attention, and are packed again. Both are one operator to torch.compile.

N queries and M keys of all rows together, H heads, G key heads (H / G queries share one), D width of a head, B rows.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn

HEAD_WIDTHS = (16, 32, 64, 128)  # that the GPU kernel supports


@cache
def supports_triton() -> bool:
    """Whether Triton is installed and the current GPU is from NVIDIA with compute capability 8.0 or more."""
    if not torch.cuda.is_available() or torch.version.hip is not None:
        return False
    try:
        import triton  # noqa: F401
    except ImportError:
        return False
    return torch.cuda.get_device_capability() >= (8, 0)


def packed_attention(
    q: Tensor, k: Tensor, v: Tensor, q_starts: Tensor, k_starts: Tensor, longest: int, causal: bool, scale: float
) -> Tensor:
    """softmax(s q·k) v within each row, (N, H, D_v), by the GPU kernel or padded; rows have at most `longest`."""
    if q.is_cuda and supports_triton() and q.shape[2] in HEAD_WIDTHS and v.shape[2] in HEAD_WIDTHS:
        c: Tensor = _attend(q, k, v, q_starts, k_starts, longest, causal, scale)[0]
        return c
    return padded_attention(q, k, v, q_starts, k_starts, causal, scale)


# -- on a GPU ----------------------------------------------------------------------------------------------------------


@torch.library.custom_op("dragoman::packed_attention", mutates_args=())
def _attend(
    q: Tensor, k: Tensor, v: Tensor, q_starts: Tensor, k_starts: Tensor, longest: int, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """c (N, H, D_v), and log Σ e^e of each query (N, H), by the GPU kernel, as an operator for torch.compile."""
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
    """∂q, ∂k and ∂v from ∂c, by the GPU kernel, as an operator for torch.compile."""
    from dragoman.nn.kernels import packed_triton

    return packed_triton.backward(dc, q, k, v, c, lse, q_starts, k_starts, longest, causal, scale)


@_attend_backward.register_fake
def _(dc: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: object) -> tuple[Tensor, ...]:
    return tuple(torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))


def _save_for_backward(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    q, k, v, q_starts, k_starts, ctx.longest, ctx.causal, ctx.scale = inputs
    ctx.save_for_backward(q, k, v, *output, q_starts, k_starts)


def _backward(ctx, dc, dlse):  # type: ignore[no-untyped-def]
    # The gradient of the log-sums is ignored.
    q, k, v, c, lse, q_starts, k_starts = ctx.saved_tensors
    gradients = _attend_backward(dc, q, k, v, c, lse, q_starts, k_starts, ctx.longest, ctx.causal, ctx.scale)
    return *gradients, None, None, None, None, None


_attend.register_autograd(_backward, setup_context=_save_for_backward)


# -- reference ---------------------------------------------------------------------------------------------------------


def padded_attention(
    q: Tensor, k: Tensor, v: Tensor, q_starts: Tensor, k_starts: Tensor, causal: bool, scale: float
) -> Tensor:
    """The reference of `packed_attention`: pad the rows, use torch's own attention, pack the result, (N, H, D_v)."""
    (queries, q_real), (keys, k_real), (values, _) = pad_rows(q, q_starts), pad_rows(k, k_starts), pad_rows(v, k_starts)
    mask = k_real[:, None, None]  # (B, 1, 1, S)
    if causal:
        T, S = q_real.shape[1], k_real.shape[1]
        mask = mask & torch.ones(T, S, dtype=torch.bool, device=q.device).tril()
    context = nn.functional.scaled_dot_product_attention(
        queries.transpose(1, 2),
        keys.transpose(1, 2),
        values.transpose(1, 2),
        mask,
        scale=scale,
        enable_gqa=k.shape[1] < q.shape[1],
    )  # (B, H, T, D_v)
    context = context.masked_fill(~mask.any(-1, keepdim=True), 0.0)
    c = q.new_zeros(q.shape[0], q.shape[1], v.shape[2])
    index = packed_index(q_starts, q_real.shape[1])
    return c.index_put((index[q_real],), context.transpose(1, 2)[q_real])


def pad_rows(x: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
    """Packed (N, …) → padded with zeros (B, longest, …), and a mask (B, longest), false at padding."""
    lengths = starts.diff()
    size = int(lengths.max()) if len(lengths) else 0
    real = torch.arange(size, device=x.device) < lengths[:, None]
    index = packed_index(starts, size).clamp(max=max(len(x) - 1, 0))
    rows = x[index] if len(x) else x.new_zeros(*real.shape, *x.shape[1:])
    return rows.masked_fill(~real.view(*real.shape, *(1,) * (x.dim() - 1)), 0.0), real


def packed_index(starts: Tensor, size: int) -> Tensor:
    """(B, size): the index of each position of each row among the packed positions."""
    return starts[:-1, None].long() + torch.arange(size, device=starts.device)
