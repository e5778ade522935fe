"""The losses of training.

    cross entropy      L = Σ_t −log p(y_t); with label smoothing (1 − ε) of the mass is on the gold token
    symmetric KL       D = ½ Σ_t (KL(p_t ‖ q_t) + KL(q_t ‖ p_t))           of two passes with their own dropout (R-Drop)
    REINFORCE          R = −Σ_t A_t log π(a_t),  A_t = Σ_{t'≥t} γ^(t'−t) (log p(y_t') − b)       of sampled a_t ~ π

The gradient of R is that of the expected −log p(y): each sample's log-probability is weighted by its advantage A_t, the
reward from t on less a baseline b (Williams 1992; hard attention in Xu et al. 2015). With γ = 1 it is unbiased; with a
smaller γ a sample is credited less for later rewards, which is far less noisy.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dragoman.core.types import EOS, PAD


def at_least_float32(x: Tensor) -> Tensor:
    """x in float32, or in float64 if it is: half precision is too coarse for sums of probabilities."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def cross_entropy(logits: Tensor, gold: Tensor, smoothing: float = 0.0) -> Tensor:
    """The summed loss of (B, T, V) logits against (B, T) gold tokens with label smoothing, padding excluded."""
    return nn.functional.cross_entropy(
        at_least_float32(logits).flatten(0, 1),
        gold.flatten(),
        ignore_index=PAD,
        label_smoothing=smoothing,
        reduction="sum",
    )


def output_log_probs(logits: Tensor) -> Tensor:
    """log p of each token (…, V) that a model may generate; −∞ for <pad> and <s>, the first two, which it may not.

    Label smoothing trains some probability for these two. The softmax leaves them out, so that the rest sums to 1.
    """
    log_p = torch.log_softmax(at_least_float32(logits[..., EOS:]), -1)
    return nn.functional.pad(log_p, (EOS, 0), value=-torch.inf)


def token_log_probs(log_p: Tensor, gold: Tensor) -> Tensor:
    """log p(y_t) for each gold token of log p (B, T, V), in float64; 0 where the gold is padding."""
    return log_p.gather(-1, gold[..., None])[..., 0].double().masked_fill(gold == PAD, 0.0)


def symmetric_kl(logits: Tensor, other_logits: Tensor, gold: Tensor) -> Tensor:
    """½ (KL(p‖q) + KL(q‖p)) of two passes (B, T, V), summed over the positions that are not padding."""
    p, q = at_least_float32(logits).log_softmax(-1), at_least_float32(other_logits).log_softmax(-1)
    both = ((p.exp() - q.exp()) * (p - q)).sum(-1) / 2  # KL(p‖q) + KL(q‖p) = Σ (p − q)(log p − log q)
    return both.masked_fill(gold == PAD, 0.0).sum()


def r_drop_loss(logits: Tensor, other_logits: Tensor, gold: Tensor, smoothing: float, weight: float) -> Tensor:
    """R-Drop: half the sum of two passes' cross entropies and `weight` times their symmetric KL (Liang et al. 2021)."""
    both = cross_entropy(logits, gold, smoothing) + cross_entropy(other_logits, gold, smoothing)
    return (both + weight * symmetric_kl(logits, other_logits, gold)) / 2


def reinforce_loss(choice: Tensor, log_p: Tensor, baseline: Tensor, real: Tensor, discount: float = 1.0) -> Tensor:
    """A term of value 0 with the REINFORCE gradient: choice log π(a_t), log_p log p(y_t), real (not padding) (B, T)."""
    reward = (log_p.detach().to(choice.dtype) - baseline.to(choice.dtype)) * real
    t = torch.arange(choice.shape[1], device=choice.device)
    later = (discount ** (t[:, None] - t).clamp(min=0)).to(choice.dtype).tril()  # (t', t): γ^(t' − t) where t' ≥ t
    term = -(reward @ later * choice * real).sum()
    return term - term.detach()  # only the gradient has a meaning, and the value would be reported
