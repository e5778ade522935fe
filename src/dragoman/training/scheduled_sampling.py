"""Scheduled sampling: at each place of the target, the gold token or what the model itself would have said there.

    ỹ_0 = <s>        ỹ_t = y_t with probability ε, else a draw from p(· | ỹ_<t, x)

What was said so far decides what the model says next, so the inputs are found one by one, without a gradient; the loss
is then that of one ordinary pass over them. No gradient goes through a draw, so this is exactly the method of Bengio et
al. (2015), for every decoder alike.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dragoman.core.types import BOS, EOS, PAD, Batch, Capacity
from dragoman.nn.seq2seq import Seq2Seq


@torch.no_grad()
def mixed_inputs(model: Seq2Seq, batch: Batch, gold_share: float) -> Tensor | None:
    """What the decoder reads, (B, T): gold tokens with that probability, the model's own otherwise."""
    gold = batch.target[:, :-1]
    if gold_share >= 1.0 or gold.shape[1] < 2:
        return None
    mode = model.training
    model.eval()  # what it says, not what it says with half of its units switched off
    try:
        return _drawn(model, batch, gold, gold_share)
    finally:
        model.train(mode)  # also where memory ran out, after which the batch is split and tried again


def _drawn(model: Seq2Seq, batch: Batch, gold: Tensor, gold_share: float) -> Tensor:
    state = model.start(model.encode(*batch.given), Capacity(1, gold.shape[1]))
    inputs, keep = [gold[:, 0]], torch.rand(gold.shape, device=gold.device) < gold_share
    for t in range(1, gold.shape[1]):
        log_p, state = model.step(inputs[-1][:, None], state)  # (B, 1, V)
        p = log_p[:, 0].exp().nan_to_num()  # whether weights are finite is for the update to find out
        p[:, [PAD, BOS]] = 0.0
        p[:, EOS] += p.sum(-1) == 0.0
        said = torch.multinomial(p, 1)[:, 0]
        inputs.append(torch.where(keep[:, t] | (gold[:, t] == PAD), gold[:, t], said))
    return torch.stack(inputs, 1)
