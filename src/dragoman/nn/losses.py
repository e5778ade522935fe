"""L = Σ_t −log p(y_t), with label smoothing: (1 − ε) of the mass on the gold token, ε spread over the vocabulary."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dragoman.core.interfaces import PAD


def cross_entropy(logits: Tensor, gold: Tensor, smoothing: float = 0.0) -> Tensor:
    """The summed loss of (B, T, V) logits against (B, T) gold tokens; padding counts nothing."""
    return nn.functional.cross_entropy(
        logits.flatten(0, 1).float(), gold.flatten(), ignore_index=PAD, label_smoothing=smoothing, reduction="sum"
    )


def token_log_probs(logits: Tensor, gold: Tensor) -> Tensor:
    """log p(y_t) for each gold token, (B, T) in float64; 0 where the gold is padding."""
    log_p = torch.log_softmax(logits.float(), -1).gather(-1, gold[..., None])[..., 0]
    return log_p.double().masked_fill(gold == PAD, 0.0)
