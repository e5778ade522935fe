"""y = W x + b on a CPU, with weights repacked once for the library that multiplies them.

    float32    W in oneDNN's blocked layout: as exact as before, and for five rows two to four times as fast
    bfloat16   the same in half the bytes: W and x rounded to 8 bits of fraction, sums in float32
    int8       y = s_x s_w ⊙ (Q_W q_x) + b      Q_W = round(W / s_w), s_w = max |row of W| / 127, for each output
                                                q_x = round(x / s_x), s_x = max |x| / 127,        for each row of x

Up to 2¹⁶ weights the product is torch's own, in float32 whatever the precision: for 128 × 384 weights and 1 / 5 / 64
rows it took 6 / 15 / 75 µs, oneDNN's 18 / 20 / 73, the one in int8 32 / 34 / 62.

In int8 the sums are integers and each row has its own scale, so the result of a row is the same to the last bit
whatever else is in the batch. (torch's own dynamic int8 has one scale for all rows: a row moved by 0.40 with larger
rows in the batch, against 0.02 of quantization error.)

x (M, K) → y (M, N), float32 both; M rows, K inputs, N outputs.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

Linear = Callable[[Tensor], Tensor]
UNPACKED_WEIGHTS = 2**16  # up to so many weights, repacking costs more than it saves, for any number of rows
MIN_SCALE = 1e-20  # the scale of a row of zeros; 127 / MIN_SCALE is still a float32


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
    """W x + b in 8-bit integers.

    torch's product quantizes x with one scale for all rows, from its smallest and largest number. So each row is first
    divided by its own maximum, and a row (1, −1, 0, …) is added: the scale is then always that of −1 … 1.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        scale = weight.abs().amax(1).clamp(min=MIN_SCALE).double() / 127  # (N,)
        with warnings.catch_warnings():  # that torch will remove its quantized tensors
            warnings.simplefilter("ignore")
            quantized = torch.quantize_per_channel(
                weight.float(), scale, torch.zeros_like(scale).long(), 0, torch.qint8
            )
            self.packed = torch.ops.quantized.linear_prepack(quantized, None)
        self.product = torch.ops.quantized.linear_dynamic.default
        self.bias = None if bias is None else bias.float()
        self.reduce_range = not torch.cpu._is_vnni_supported()  # older instructions overflow with more than 7 bits of x

    def __call__(self, x: Tensor) -> Tensor:
        """x (M, K) → W x + b, (M, N), each row quantized with its own scale; uses the shared buffer."""
        s = x.abs().amax(-1, keepdim=True).clamp_(min=MIN_SCALE)  # (M, 1)
        guarded = guarded_rows(*x.shape)
        torch.div(x, s, out=guarded[1:])
        y: Tensor = self.product(guarded, self.packed, self.reduce_range)[1:]
        return y.mul_(s) if self.bias is None else torch.addcmul(self.bias, y, s, out=y)


_rows: dict[int, Tensor] = {}


def guarded_rows(M: int, K: int) -> Tensor:
    """A buffer of M + 1 rows of which the first is (1, −1, 0, …), shared by all products of this width."""
    buffer = _rows.get(K)
    if buffer is None or len(buffer) <= M:
        buffer = torch.zeros(M + 1, K)
        buffer[0, 0], buffer[0, 1] = 1.0, -1.0
        _rows[K] = buffer
    return buffer[: M + 1]


class UnpackedLinear:
    """W x + b in float32 by torch: for few weights, and where there is no oneDNN."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight, self.bias = weight.float().t().contiguous(), None if bias is None else bias.float()

    def __call__(self, x: Tensor) -> Tensor:
        return torch.mm(x, self.weight) if self.bias is None else torch.addmm(self.bias, x, self.weight)


LINEARS: dict[str, Callable[[Tensor, Tensor | None], Linear]] = {
    "float32": Float32Linear,
    "bfloat16": BFloat16Linear,
    "int8": Int8Linear,
}


def pack_linears(linears: Sequence[nn.Linear], precision: str) -> Linear:
    """Several projections of the same x as one, repacked for a precision; few weights stay in torch's float32."""
    weight = torch.cat([linear.weight for linear in linears]).detach()
    biases = [linear.bias.detach() for linear in linears if linear.bias is not None]
    linear = LINEARS[precision] if has_onednn() and weight.numel() > UNPACKED_WEIGHTS else UnpackedLinear
    return linear(weight, torch.cat(biases) if biases else None)


def has_onednn() -> bool:
    """Whether torch was built with oneDNN, which the repacked products need."""
    return bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]


def precision_blocker(precision: str) -> str | None:
    """Why this CPU does not compute in a precision faster than in float32; None: it does."""
    if precision == "float32":
        return None
    supported = torch.cpu._is_avx512_bf16_supported if precision == "bfloat16" else torch.cpu._is_vnni_supported
    if has_onednn() and supported():
        return None
    return f"this CPU has no instructions for {precision}"
