"""Hard attention in a whole model: over all that may be drawn, its gradient is that of the expected loss.

Xu et al. 2015: E_s[−log p(y | s, x)] has no gradient through the draws s, but one by the score function.
"""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from dragoman.core.registry import Part
from dragoman.core.types import BOS, EOS, Batch
from dragoman.nn.seq2seq import Seq2Seq

SIZE, S, T = 7, 2, 3  # source positions and target tokens: 2³ ways to look
DRAWS = list(itertools.product(range(S), repeat=T))


def a_model(order: str) -> Seq2Seq:
    hard = Part("hard", {"discount": 1.0})
    decoder = Part("rnn", {"cell": "gru", "order": order, "normalizer": hard, "gate": True, "dropout": 0.0})
    encoder = Part("rnn", {"cell": "gru", "dropout": 0.0})
    return Seq2Seq(SIZE, SIZE, width=4, tie="none", encoder=encoder, decoder=decoder).double().train()


def seeds_of(model: Seq2Seq, batch: Batch) -> dict[tuple[int, ...], int]:
    """A seed under which each way to look is drawn: every one has one among a few hundred."""
    seeds: dict[tuple[int, ...], int] = {}
    for seed in range(3000):
        torch.manual_seed(seed)
        attention = model(batch).output.attention
        assert attention is not None
        seeds.setdefault(tuple(attention[0].argmax(-1).tolist()), seed)
        if len(seeds) == len(DRAWS):
            break
    return seeds


@pytest.mark.parametrize(("order", "baseline"), [("before", -1.3), ("after", 0.0)])
def test_the_mean_gradient_over_all_samples_is_that_of_the_expected_loss(order: str, baseline: float) -> None:
    torch.manual_seed(5)  # one model for all, whose eight ways to look all have a fair chance
    model = a_model(order)
    batch = Batch(
        torch.tensor([[4, 5]]), torch.tensor([S]), torch.tensor([[BOS, 4, 6, EOS]]), torch.tensor([T + 1]), lines=[0]
    )
    weights = list(model.parameters())
    expected, found, chances = torch.zeros(()).double(), [torch.zeros_like(w) for w in weights], 0.0

    def looked() -> tuple[Tensor, Tensor]:
        """log of the chance of what is drawn, and log p(y) given that."""
        logits, gold, output = model(batch)
        log_p = logits.log_softmax(-1).gather(-1, gold[..., None]).sum()
        return output.extras["choice"].sum(), log_p

    def estimate() -> list[Tensor]:
        assert model.baseline is not None
        model.baseline.fill_(baseline)
        gradients = torch.autograd.grad(model.loss(batch), weights, allow_unused=True)
        return [torch.zeros_like(w) if g is None else g for g, w in zip(gradients, weights, strict=True)]

    seeds = seeds_of(model, batch)
    assert sorted(seeds) == DRAWS
    for seed in seeds.values():
        torch.manual_seed(seed)
        chance, log_p = looked()
        expected = expected - chance.exp() * log_p
        p = chance.exp().item()
        chances += p
        torch.manual_seed(seed)
        found = [total + p * g for total, g in zip(found, estimate(), strict=True)]
    assert chances == pytest.approx(1.0)
    wanted = torch.autograd.grad(expected, weights, allow_unused=True)
    sizes = []
    for g, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(g, torch.zeros_like(g) if other is None else other, rtol=1e-7, atol=1e-9)
        sizes.append(g.abs().max().item())
    scores = [i for i, (name, _) in enumerate(model.named_parameters()) if ".attention." in name]
    assert min(sizes[i] for i in scores) > 1e-6  # what decides where to look learns from nothing else
