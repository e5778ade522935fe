"""What is made small in training.

    cross entropy      L = Σ_t −log p(y_t); with label smoothing (1 − ε) of the mass is on the gold token
    divergence         D = ½ Σ_t (KL(p_t ‖ q_t) + KL(q_t ‖ p_t))           of two passes with their own dropout (R-Drop)
    score function     S = −Σ_t A_t log π(a_t),  A_t = Σ_{t'≥t} γ^(t'−t) (log p(y_t') − b)       of choices drawn

In the last the gradient of an expectation over draws a_t ~ π is that of their log-probability, weighted by how much
better than the baseline b things went from there on (Williams 1992; hard attention in Xu et al. 2015). With γ = 1 that
is exact on average; a smaller γ asks a draw to answer less for what came long after it, which is far less noisy.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dragoman.core.types import PAD


def precise(logits: Tensor) -> Tensor:
    """At least float32: probabilities are summed here."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def cross_entropy(logits: Tensor, gold: Tensor, smoothing: float = 0.0) -> Tensor:
    """The summed loss of (B, T, V) logits against (B, T) gold tokens; padding counts nothing."""
    return nn.functional.cross_entropy(
        precise(logits).flatten(0, 1), gold.flatten(), ignore_index=PAD, label_smoothing=smoothing, reduction="sum"
    )


def token_log_probs(logits: Tensor, gold: Tensor) -> Tensor:
    """log p(y_t) for each gold token, (B, T) in float64; 0 where the gold is padding."""
    log_p = torch.log_softmax(precise(logits), -1).gather(-1, gold[..., None])[..., 0]
    return log_p.double().masked_fill(gold == PAD, 0.0)


def divergence(logits: Tensor, others: Tensor, gold: Tensor) -> Tensor:
    """How far two passes (B, T, V) disagree, summed over the real positions."""
    p, q = precise(logits).log_softmax(-1), precise(others).log_softmax(-1)
    both = ((p.exp() - q.exp()) * (p - q)).sum(-1) / 2  # KL(p‖q) + KL(q‖p) = Σ (p − q)(log p − log q)
    return both.masked_fill(gold == PAD, 0.0).sum()


def agreeing(logits: Tensor, others: Tensor, gold: Tensor, smoothing: float, weight: float) -> Tensor:
    """R-Drop's loss of two passes, halved, so that a token weighs what it weighs in one (Liang et al. 2021)."""
    both = cross_entropy(logits, gold, smoothing) + cross_entropy(others, gold, smoothing)
    return (both + weight * divergence(logits, others, gold)) / 2


def score_function(choice: Tensor, log_p: Tensor, baseline: Tensor, real: Tensor, discount: float = 1.0) -> Tensor:
    """A term of value 0, its gradient that of the expected −log p: choice, log_p (B, T), real where a token counts."""
    better = (log_p.detach().to(choice.dtype) - baseline.to(choice.dtype)) * real
    t = torch.arange(choice.shape[1], device=choice.device)
    later = (discount ** (t[:, None] - t).clamp(min=0)).to(choice.dtype).tril()  # (t', t): γ^(t' − t) where t' ≥ t
    term = -(better @ later * choice * real).sum()
    return term - term.detach()  # its value says nothing of how well a model does, and would be reported as if it did
