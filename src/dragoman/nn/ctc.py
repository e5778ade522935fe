"""Connectionist temporal classification (Graves et al. 2006): a second output layer, on the encoder's states.

    p(y | x) = Σ_π Π_j p(π_j | h_j)        π: a token or the blank at each of S positions, which reads as y
                                           once repeats are taken for one and blanks are left out

It says what is heard where, without knowing what was said before. Mixed into training,

    L = (1 − λ) L_decoder + λ L_ctc                                          (Watanabe et al. 2017)

it makes the encoder's states stand in the order of the words, which attention alone finds late. <pad> is the blank.

B batch, S source positions, V vocabulary, D width.
"""

from __future__ import annotations

from torch import Tensor, nn

from dragoman.core.types import PAD, Batch, Memory
from dragoman.nn.layers import linear
from dragoman.nn.losses import precise


class CTC(nn.Module):
    """log p of every token, and of the blank, at every position of the source."""

    def __init__(self, d: int, size: int) -> None:
        super().__init__()
        self.W = linear(d, size)

    def forward(self, states: Tensor) -> Tensor:
        """(B, S, D) → (B, S, V)"""
        return precise(self.W(states)).log_softmax(-1)

    def loss(self, memory: Memory, batch: Batch) -> Tensor:
        """−log p(y | x) of each row, (B,); the target's <s> and </s> are not heard.

        A target with more tokens than its source has positions cannot be read from any π: it counts nothing, instead
        of infinitely much.
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
