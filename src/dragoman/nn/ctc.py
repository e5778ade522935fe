"""Connectionist temporal classification (Graves et al. 2006): a second output layer, on the encoder's states.

    p(y | x) = Σ_π Π_j p(π_j | h_j)        π: a path of a token or the blank at each of S positions, which becomes y
                                           when repeats are merged and blanks removed

Its predictions do not depend on earlier ones. Interpolated with the decoder's loss,

    L = (1 − λ) L_decoder + λ L_ctc                                          (Watanabe et al. 2017)

it makes the encoder's states follow the order of the target, which attention alone learns late. <pad> is the blank.

B batch, S source positions, V vocabulary, D width.
"""

from __future__ import annotations

from torch import Tensor, nn

from dragoman.core.types import PAD, Batch, Memory
from dragoman.nn.layers import linear
from dragoman.nn.losses import at_least_float32


class CTC(nn.Module):
    """log p of every token and of the blank at every source position."""

    def __init__(self, d: int, size: int) -> None:
        super().__init__()
        self.W = linear(d, size)

    def forward(self, states: Tensor) -> Tensor:
        """log softmax(W h) at every source position, in float32 at least: (B, S, D) → (B, S, V)"""
        return at_least_float32(self.W(states)).log_softmax(-1)

    def loss(self, memory: Memory, batch: Batch) -> Tensor:
        """−log p(y | x) of each row, (B,); the target's <s> and </s> are left out.

        A target with more tokens than its source has positions has no path π; its loss is 0 instead of infinite.
        """
        return nn.functional.ctc_loss(
            self(memory.states).transpose(0, 1),
            batch.target[:, 1:],
            memory.lengths,
            batch.target_lengths - 2,
            blank=PAD,
            reduction="none",
            zero_infinity=True,
        )
