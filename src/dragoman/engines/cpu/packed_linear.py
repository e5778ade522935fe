"""y = W x + b on a CPU, with the weights laid out once for what multiplies them.

    float32    W in oneDNN's blocked layout: as exact as before, and for five rows two to four times as fast
    bfloat16   the same in half the bytes: W and x rounded to 8 bits of fraction, sums in float32
    int8       y = s_x s_w ⊙ (Q_W q_x) + b      Q_W = round(W / s_w), s_w = max |row of W| / 127, for each output
                                                q_x = round(x / s_x), s_x = max |x| / 127,        for each row of x

Of few weights (2¹⁶) the product is torch's own, in float32, whatever was asked: for 128 × 384 of them and 1 / 5 / 64
rows it took 6 / 15 / 75 µs, oneDNN's 18 / 20 / 73, the one in int8 32 / 34 / 62.

In int8 the sums are whole numbers and the scales belong to a row alone, so a row's result is the same to the last bit
whatever stands in the batch with it. (torch's own dynamic int8 has one scale for all rows: a row moved by 0.40 with
louder batch-mates, against 0.02 of quantization error.)

x (M, K) → y (M, N), float32 both; M rows, K inputs, N outputs.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

Linear = Callable[[Tensor], Tensor]
FEW = 2**16  # weights: up to these, dividing and repacking costs more than it saves, for whatever number of rows
TINY = 1e-20  # a row of zeros has a scale, too; 127 / TINY is still a float32


class Float32Linear:
    """W x + b in float32."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight, self.bias = torch.ops.mkldnn._reorder_linear_weight(weight.float(), None), bias
        self.product = torch.ops.mkldnn._linear_pointwise.default

    def __call__(self, x: Tensor) -> Tensor:
        y: Tensor = self.product(x, self.weight, self.bias, "none", [], "")
        return y


class BFloat16Linear:
    """W x + b in bfloat16, the result in float32."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.bfloat16(), None)
        self.bias = None if bias is None else bias.bfloat16()

    def __call__(self, x: Tensor) -> Tensor:
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x.bfloat16(), self.weight, self.bias, "none", [], "")
        return y.float()


class Int8Linear:
    """W x + b in whole numbers of 8 bits.

    torch's product quantizes x with one scale for all rows, from the least and the largest number in it. Each row is
    divided by its own maximum first, and a row (1, −1, 0, …) goes along: so that scale is always that of −1 … 1.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        scale = weight.abs().amax(1).clamp(min=TINY).double() / 127  # (N,)
        with warnings.catch_warnings():  # that torch's quantized tensors will go one day
            warnings.simplefilter("ignore")
            whole = torch.quantize_per_channel(weight.float(), scale, torch.zeros_like(scale).long(), 0, torch.qint8)
            self.packed = torch.ops.quantized.linear_prepack(whole, None)
        self.product = torch.ops.quantized.linear_dynamic.default
        self.bias = None if bias is None else bias.float()
        self.narrow = not torch.cpu._is_vnni_supported()  # older instructions overflow with more than 7 bits of x

    def __call__(self, x: Tensor) -> Tensor:
        s = x.abs().amax(-1, keepdim=True).clamp_(min=TINY)  # (M, 1)
        guarded = guarded_rows(*x.shape)
        torch.div(x, s, out=guarded[1:])
        y: Tensor = self.product(guarded, self.packed, self.narrow)[1:]
        return y.mul_(s) if self.bias is None else torch.addcmul(self.bias, y, s, out=y)


_rows: dict[int, Tensor] = {}


def guarded_rows(M: int, K: int) -> Tensor:
    """Room for M rows after the row (1, −1, 0, …), the same for every product of this width."""
    room = _rows.get(K)
    if room is None or len(room) <= M:
        room = torch.zeros(M + 1, K)
        room[0, 0], room[0, 1] = 1.0, -1.0
        _rows[K] = room
    return room[: M + 1]


class PlainLinear:
    """W x + b in float32 as torch computes it: for few weights, and where there is no oneDNN."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight, self.bias = weight.float().t().contiguous(), None if bias is None else bias.float()

    def __call__(self, x: Tensor) -> Tensor:
        return torch.mm(x, self.weight) if self.bias is None else torch.addmm(self.bias, x, self.weight)


KINDS: dict[str, Callable[[Tensor, Tensor | None], Linear]] = {
    "float32": Float32Linear,
    "bfloat16": BFloat16Linear,
    "int8": Int8Linear,
}


def joined(linears: Sequence[nn.Linear], precision: str) -> Linear:
    """Several projections of the same x as one, side by side."""
    weight = torch.cat([linear.weight for linear in linears]).detach()
    biases = [linear.bias.detach() for linear in linears if linear.bias is not None]
    available: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    kind = KINDS[precision] if available and weight.numel() > FEW else PlainLinear
    return kind(weight, torch.cat(biases) if biases else None)


def fast_here(precision: str) -> bool:
    """Whether this CPU has what makes a precision faster than float32: instructions for bfloat16, or for int8."""
    if precision == "float32":
        return True
    supported = torch.cpu._is_avx512_bf16_supported if precision == "bfloat16" else torch.cpu._is_vnni_supported
    return torch.backends.mkldnn.is_available() and supported()  # type: ignore[no-untyped-call]
