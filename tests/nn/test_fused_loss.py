"""The loss that never holds all logits is the plain one, with the same gradient."""

from __future__ import annotations

import pytest
import torch

from dragoman.core.registry import Part
from dragoman.core.types import Batch
from dragoman.nn.losses import cross_entropy
from dragoman.nn.seq2seq import Seq2Seq


def batch():
    source = torch.tensor([[5, 6, 7, 2], [4, 2, 0, 0]])
    target = torch.tensor([[1, 8, 9, 2], [1, 7, 2, 0]])
    return Batch(source, torch.tensor([4, 2]), target, torch.tensor([4, 3]))


@pytest.mark.parametrize("decoder", ["transformer", "rnn", "conv"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_models_loss_and_gradient_are_those_of_its_logits(decoder, smoothing):
    options = {"dropout": 0.0} | ({"layers": 1} if decoder != "rnn" else {})
    encoder = Part("transformer", {"layers": 1, "heads": 2, "dropout": 0.0})
    model = Seq2Seq(12, 12, width=8, encoder=encoder, decoder=Part(decoder, options)).double().train()
    found = model.loss(batch(), smoothing)
    found.backward()
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    plain = model(batch())
    expected = cross_entropy(plain.logits, plain.gold, smoothing)
    expected.backward()
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(gradients, [p.grad for p in model.parameters() if p.grad is not None])


def test_where_no_gradient_is_asked_for_the_loss_is_the_same():
    model = Seq2Seq(12, 12, width=8, encoder=Part("transformer", {"layers": 1, "heads": 2})).eval()
    with torch.no_grad():
        silent = model.loss(batch())
    torch.testing.assert_close(silent, model.loss(batch()).detach())
