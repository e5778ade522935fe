"""What a search may choose at a step: log p with the forbidden tokens at −∞."""

from __future__ import annotations

import math

from torch import Tensor

from dragoman.core.interfaces import BOS, EOS, PAD


def allowed(log_p: Tensor, t: int, shortest: int) -> Tensor:
    """Padding and <s> are never results; </s> only once the result is long enough. log_p (…, V), t tokens so far."""
    log_p = log_p.clone()
    log_p[..., [PAD, BOS]] = -math.inf
    if t < shortest:
        log_p[..., EOS] = -math.inf
    return log_p
