"""The small parts of a block: norms and feed-forward.

    layer   a (x − μ) / √(σ² + ε) + b    μ and σ² over the width of each vector
    batch   the same                     μ and σ² of each feature over all real positions of a batch
    rms     a x / √(mean x² + ε)         over the width of each vector
    feed    W₂ f(W₁ x + b₁) + b₂         gated: W₂ (f(W₁ x + b₁) ⊙ (W₃ x + b₃)) + b₂

B batch, T length, D width; x (…, D), real (B, T): false at padding.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.core.registry import Registry
from dragoman.core.types import Segments
from dragoman.nn.kernels.dropout import Dropout

Activation = Literal["relu", "gelu", "gelu_tanh", "swish", "swiglu", "geglu", "geglu_tanh"]


class NormLayer(Protocol):
    """x (…, D) → the same normalized; real (B, T) is false at padding."""

    uses_batch_statistics: bool  # in training a position's output depends on other positions

    def __call__(self, x: Tensor, real: Tensor | None = None) -> Tensor: ...


norms: Registry[Any] = Registry("norm")  # of NormLayer; Any, since engines also read the fields of those they know


@norms.register("layer")
class LayerNorm(nn.LayerNorm):
    """a (x − μ) / √(σ² + ε) + b over the width, population σ."""

    uses_batch_statistics = False

    def __init__(self, d: int, *, eps: float = 1e-5) -> None:
        super().__init__(d, eps=eps)

    def forward(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        return super().forward(x)


@norms.register("rms")
class RMSNorm(nn.RMSNorm):
    """a x / √(mean x² + ε) over the width."""

    uses_batch_statistics = False

    def __init__(self, d: int, *, eps: float = 1e-6) -> None:
        super().__init__(d, eps=eps)

    def forward(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        return super().forward(x)


@norms.register("batch")
class BatchNorm(nn.Module):
    """a (x − μ) / √(σ² + ε) + b, each feature over the real positions of a batch; running averages in evaluation.

    As in torch, a batch is normalized with its population variance, and the running variance averages the unbiased one,
    which is n/(n−1) times as large.
    """

    uses_batch_statistics = True
    momentum = 0.1  # the weight of the newest batch in the running averages

    def __init__(self, d: int, *, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight, self.bias = nn.Parameter(torch.ones(d)), nn.Parameter(torch.zeros(d))
        self.register_buffer("running_mean", torch.zeros(d))
        self.register_buffer("running_var", torch.ones(d))
        self.running_mean: Tensor
        self.running_var: Tensor

    def forward(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        mean, var = self.batch_statistics(x, real) if self.training else (self.running_mean, self.running_var)
        return ((x - mean) / torch.sqrt(var + self.eps) * self.weight + self.bias).to(x.dtype)

    def batch_statistics(self, x: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor]:
        """μ and σ² of this batch, (D,) each; updates the running averages."""
        # Masked sums rather than x[real], whose size would need a synchronization with the GPU.
        padding = x.new_zeros(x.shape[:-1], dtype=torch.bool)[..., None] if real is None else ~real[..., None]  # (…, 1)
        dims = tuple(range(x.dim() - 1))
        n = (~padding).sum()
        mean = x.to(self.running_mean.dtype).masked_fill(padding, 0.0).sum(dims) / n.clamp(min=1)
        var = (x - mean).square().masked_fill(padding, 0.0).sum(dims) / n.clamp(min=1)
        with torch.no_grad():
            weight = self.momentum * (n > 0).to(mean.dtype)  # a batch without real positions changes nothing
            self.running_mean.lerp_(mean, weight)
            self.running_var.lerp_(var * n / (n - 1).clamp(min=1), weight)
        return mean, var


class FeedForward(nn.Module):
    """W₂ f(W₁ x + b₁) + b₂, the same at every position; in swiglu and geglu, f is multiplied by W₃ x + b₃."""

    def __init__(self, d: int, inner: int, activation: Activation, dropout: float, bias: bool = True) -> None:
        super().__init__()
        self.W1, self.W2 = linear(d, inner, bias), linear(inner, d, bias)
        self.W3 = linear(d, inner, bias) if activation in ("swiglu", "geglu", "geglu_tanh") else None
        functions: dict[Activation, Callable[[Tensor], Tensor]] = {
            "relu": F.relu,
            "gelu": F.gelu,
            "gelu_tanh": partial(F.gelu, approximate="tanh"),
            "swish": F.silu,
            "swiglu": F.silu,
            "geglu": F.gelu,
            "geglu_tanh": partial(F.gelu, approximate="tanh"),
        }
        self.f = functions[activation]
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """W₂ f(W₁ x), or W₂ (f(W₁ x) ⊙ W₃ x), with biases and dropout before W₂: x (…, D) → (…, D)."""
        h = self.f(self.W1(x))  # (B, T, inner)
        if self.W3 is not None:
            h = h * self.W3(x)
        y: Tensor = self.W2(self.dropout(h))
        return y


def stack_neighbors(x: Tensor, lengths: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Every n neighbors side by side, (B, S, D) → (B, ⌈S/n⌉, n·D), padding zeroed, and the new lengths."""
    x = x.masked_fill(~Segments(lengths).mask(x.shape[1])[..., None], 0.0)
    x = F.pad(x, (0, 0, 0, -x.shape[1] % n))
    return x.view(x.shape[0], x.shape[1] // n, n * x.shape[2]), (lengths + n - 1) // n


def linear(d_in: int, d_out: int, bias: bool = True) -> nn.Linear:
    """W x + b, initialized with Glorot's W and b = 0, as in the Transformer paper's code."""
    layer = nn.Linear(d_in, d_out, bias=bias)
    nn.init.xavier_uniform_(layer.weight)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer
