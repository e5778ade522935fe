"""Cross entropy and symmetric_kl against plain loops, the score function against every draw there is."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from dragoman.core.types import BOS, PAD
from dragoman.nn.losses import cross_entropy, output_log_probs, reinforce_loss, symmetric_kl, token_log_probs

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


def test_the_probabilities_of_what_may_be_generated_sum_to_1_without_padding_and_beginning() -> None:
    logits = torch.randn(2, 3, 9)
    logits[..., [PAD, BOS]] += 4.0
    found = output_log_probs(logits)
    for row, log_p in zip(logits.flatten(0, 1).tolist(), found.flatten(0, 1).tolist(), strict=True):
        assert log_p[PAD] == log_p[BOS] == -math.inf
        assert log_p[BOS + 1 :] == pytest.approx(log_softmax(row[BOS + 1 :]), abs=1e-5)


def test_token_log_probs_are_those_of_the_gold_in_float64() -> None:
    logits, gold = a_problem()
    found = token_log_probs(logits.log_softmax(-1), gold)
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


def test_the_divergence_is_the_mean_of_both_directions_over_real_positions() -> None:
    (p_logits, gold), (q_logits, _) = a_problem(), a_problem()
    expected = 0.0
    for b in range(B):
        for t in range(T):
            if gold[b, t] != PAD:
                p, q = log_softmax(p_logits[b, t].tolist()), log_softmax(q_logits[b, t].tolist())
                expected += 0.5 * sum(math.exp(a) * (a - c) for a, c in zip(p, q, strict=True))
                expected += 0.5 * sum(math.exp(c) * (c - a) for a, c in zip(p, q, strict=True))
    assert symmetric_kl(p_logits, q_logits, gold).item() == pytest.approx(expected, rel=1e-4)
    assert symmetric_kl(p_logits, p_logits, gold).item() == 0.0


@pytest.mark.parametrize("b", [0.0, -1.7])
def test_over_all_samples_the_reinforce_loss_has_the_gradient_of_the_expected_log_p(b: float) -> None:
    """Two rows of three steps, the second with one to spare; what was drawn decides all later odds and rewards."""
    draws = list(itertools.product(range(2), repeat=3))
    policy = torch.randn(2, 3, 4, 2, dtype=torch.float64, requires_grad=True)  # row, step, the last two draws, draw
    reward = torch.randn(2, 3, 8, dtype=torch.float64, requires_grad=True)  # row, step, all draws so far
    real = torch.tensor([[True, True, True], [True, True, False]])

    def run(drawn: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """log π of each draw and log p of each gold token, (2, 3)."""
        odds = policy.log_softmax(-1)
        before = [0, drawn[0], 2 * drawn[0] + drawn[1]]
        choice = torch.stack([odds[:, t, before[t], drawn[t]] for t in range(3)], 1)
        so_far = [drawn[0], 2 * drawn[0] + drawn[1], 4 * drawn[0] + 2 * drawn[1] + drawn[2]]
        log_p = torch.stack([-reward[:, t, so_far[t]].exp() for t in range(3)], 1)
        return choice, log_p

    expected, estimated = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for drawn in draws:
        choice, log_p = run(drawn)
        chance = choice.sum(1).exp()  # of these draws, for each row: they are drawn row by row
        expected = expected - (chance * (log_p * real).sum(1)).sum()
        for i in range(2):
            row = slice(i, i + 1)
            term = reinforce_loss(choice[row], log_p[row], torch.tensor(b), real[row])
            estimated = estimated + chance[i].detach() * (term - (log_p * real)[row].sum())
    wanted = torch.autograd.grad(expected, (policy, reward), retain_graph=True)
    found = torch.autograd.grad(estimated, (policy, reward))
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other)
    assert wanted[0].abs().max() > 1e-3
