"""Scheduled sampling: each decoder input is the gold token or one that the model itself samples.

    ỹ_0 = <s>        ỹ_t = y_t with probability ε, else a sample from p(· | ỹ_<t, x)

Each sample depends on the inputs before it, so the inputs are sampled step by step, without a gradient; the loss is
then that of one ordinary pass over them. No gradient flows through a sample: this is the method of Bengio et al. (2015)
for every decoder.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dragoman.core.types import BOS, EOS, PAD, Batch, Capacity
from dragoman.nn.seq2seq import Seq2Seq


@torch.no_grad()
def sample_inputs(model: Seq2Seq, batch: Batch, teacher_forcing_ratio: float) -> Tensor | None:
    """Decoder inputs (B, T): gold tokens with this probability, else samples of the model; None: all are gold."""
    gold = batch.target[:, :-1]
    if teacher_forcing_ratio >= 1.0 or gold.shape[1] < 2:
        return None
    mode = model.training
    model.eval()  # sample without dropout
    try:
        return _sample_inputs(model, batch, gold, teacher_forcing_ratio)
    finally:
        model.train(mode)  # also where memory ran out, after which the batch is split and tried again


def _sample_inputs(model: Seq2Seq, batch: Batch, gold: Tensor, teacher_forcing_ratio: float) -> Tensor:
    state = model.start(model.encode(*batch.encoder_inputs), Capacity(1, gold.shape[1]))
    inputs, use_gold = [gold[:, 0]], torch.rand(gold.shape, device=gold.device) < teacher_forcing_ratio
    for t in range(1, gold.shape[1]):
        log_p, state = model.step(inputs[-1][:, None], state)  # (B, 1, V)
        p = log_p[:, 0].exp().nan_to_num()  # weights that are not finite are noticed by the update
        p[:, [PAD, BOS]] = 0.0
        p[:, EOS] += p.sum(-1) == 0.0
        sampled = torch.multinomial(p, 1)[:, 0]
        inputs.append(torch.where(use_gold[:, t] | (gold[:, t] == PAD), gold[:, t], sampled))
    return torch.stack(inputs, 1)
