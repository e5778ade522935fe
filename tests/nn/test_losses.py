"""Cross entropy with label smoothing against a plain loop."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from dragoman.core.interfaces import PAD
from dragoman.nn.losses import cross_entropy, token_log_probs

B, T, V = 2, 4, 6


def a_problem() -> tuple[Tensor, Tensor]:
    gold = torch.randint(1, V, (B, T))
    gold[1, 2:] = PAD
    return 3 * torch.randn(B, T, V), gold


def log_softmax(row: list[float]) -> list[float]:
    total = math.log(sum(math.exp(x) for x in row))
    return [x - total for x in row]


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
def test_the_loss_is_the_cross_entropy_with_a_smoothed_gold(smoothing: float) -> None:
    logits, gold = a_problem()
    expected = 0.0
    for b in range(B):
        for t in range(T):
            if gold[b, t] != PAD:
                log_p = log_softmax(logits[b, t].tolist())
                wanted = [smoothing / V] * V
                wanted[int(gold[b, t])] += 1 - smoothing
                expected -= sum(p * q for p, q in zip(wanted, log_p, strict=True))
    assert cross_entropy(logits, gold, smoothing).item() == pytest.approx(expected, rel=1e-5)


def test_padding_counts_nothing_and_pulls_on_nothing() -> None:
    logits, gold = a_problem()
    logits.requires_grad_()
    cross_entropy(logits, gold, 0.1).backward()
    assert logits.grad is not None
    assert logits.grad[1, 2:].abs().sum() == 0
    assert (logits.grad[gold != PAD].abs().sum(-1) > 0).all()


def test_token_log_probs_are_those_of_the_gold_in_float64() -> None:
    logits, gold = a_problem()
    found = token_log_probs(logits, gold)
    assert found.dtype == torch.float64
    for b in range(B):
        for t in range(T):
            token = int(gold[b, t])
            expected = log_softmax(logits[b, t].tolist())[token] if token != PAD else 0.0
            assert found[b, t].item() == pytest.approx(expected, abs=1e-5)


def test_half_precision_logits_are_summed_in_float32() -> None:
    logits, gold = a_problem()
    low = logits.bfloat16()
    assert cross_entropy(low, gold).dtype == torch.float32
    assert cross_entropy(low, gold).item() == pytest.approx(cross_entropy(low.float(), gold).item())
