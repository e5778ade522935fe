"""The gated convolution of the convolutional encoder and decoder, scaled so that variances stay even.

    GLU(W [h_i; …; h_{i+k−1}] + b)      where GLU([a; b]) = a ∘ σ(b)          add_scaled(a, b) = (a + b)·√½

Weights are initialized as in Gehring et al. (2017): N(0, √(4p/n)) before a GLU, which passes about a quarter of the
variance, and N(0, √(p/n)) elsewhere, with n the inputs of a neuron and p the probability that dropout keeps one; biases
are 0.

T positions, k kernel, D width.
"""

from __future__ import annotations

import math

from torch import Tensor, nn
from torch.nn.utils import parametrizations


class GatedConvolution(nn.Module):
    """Every k neighbors → one vector of the same width, without padding."""

    def __init__(self, d: int, kernel: int, keep: float, weight_norm: bool) -> None:
        super().__init__()
        self.kernel = kernel
        self.W = projection(d * kernel, 2 * d, 4 * keep, weight_norm)

    def forward(self, h: Tensor) -> Tensor:
        """GLU(W [h_i; …; h_{i+k−1}] + b) of every window of k positions: h (…, T + k − 1, D) → (…, T, D)"""
        if h.shape[-2] < self.kernel:  # T = 0, which unfold does not support
            return h[..., :0, :]
        # A matrix product rather than torch's convolution: on a CPU as fast for whole sentences, and twice as fast for
        # a single step of 20 hypotheses (0.26 against 0.53 ms; width 256, k = 3, one thread).
        windows = h.unfold(-2, self.kernel, 1).flatten(-2)  # (…, T, D·k)
        return nn.functional.glu(self.W(windows), -1)


def projection(d_in: int, d_out: int, gain: float, weight_norm: bool) -> nn.Module:
    """W x + b, initialized with N(0, √(gain/n)) and 0; with weight_norm, W = g v/‖v‖ for each neuron."""
    layer = nn.Linear(d_in, d_out)
    nn.init.normal_(layer.weight, std=math.sqrt(gain / d_in))
    nn.init.zeros_(layer.bias)
    return parametrizations.weight_norm(layer) if weight_norm else layer


def add_scaled(a: Tensor, b: Tensor) -> Tensor:
    """(a + b)·√½, which has the variance of a and of b."""
    return (a + b) * math.sqrt(0.5)
