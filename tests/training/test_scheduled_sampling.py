"""Scheduled sampling: gold inputs as often as asked, and in between what the model itself would say."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from dragoman.core.registry import Part
from dragoman.core.types import BOS, EOS, PAD, Batch, Capacity
from dragoman.data.batching import collate
from dragoman.nn.seq2seq import Seq2Seq
from dragoman.training.scheduled_sampling import sample_inputs

V, FAVORITE = 7, 6


def a_model(dropout: float = 0.0) -> Seq2Seq:
    part = Part("rnn", {"dropout": dropout})
    return Seq2Seq(V, V, width=4, encoder=part, decoder=part, tie="none").train()


def obsessed() -> Seq2Seq:
    """A model that says one word, whatever it has read."""
    model = a_model()
    with torch.no_grad():
        model.output.bias[FAVORITE] = 1000.0
    return model


def copies(count: int, target: list[int]) -> Batch:
    return collate([([4, 5, EOS], target)] * count, list(range(count)))


def test_teacher_forcing_samples_no_inputs() -> None:
    assert sample_inputs(a_model(), copies(2, [4, 5, EOS]), 1.0) is None
    assert sample_inputs(a_model(), copies(2, [EOS]), 0.0) is None  # <s> is all that is read


def test_without_teacher_forcing_every_input_but_the_first_is_sampled() -> None:
    batch = collate([([4, EOS], [5, 4, 5, EOS]), ([5, EOS], [4, EOS])], [0, 1])
    found = sample_inputs(obsessed(), batch, 0.0)
    assert found is not None
    assert found.tolist() == [[BOS, 6, 6, 6], [BOS, 6, 6, PAD]]


def test_inputs_are_gold_as_often_as_the_ratio_says() -> None:
    found = sample_inputs(obsessed(), copies(3000, [4, 5, 4, EOS]), 0.7)
    assert found is not None
    assert (found[:, 0] == BOS).all()
    for t, gold in ((1, 4), (2, 5), (3, 4)):
        assert ((found[:, t] == gold) | (found[:, t] == FAVORITE)).all()
        assert abs((found[:, t] == gold).double().mean().item() - 0.7) < 6 * math.sqrt(0.21 / 3000)


def test_samples_follow_the_models_distribution_without_dropout() -> None:
    model, count = a_model(dropout=0.5), 6000
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(6.0)  # what is switched off would show
    found = sample_inputs(model, copies(count, [4, 5, EOS]), 0.0)
    assert found is not None
    assert model.training
    model.eval()
    one = copies(1, [4, EOS])

    def conditional(state: Any, token: int) -> tuple[torch.Tensor, Any]:
        log_p, state = model.step(torch.tensor([[token]]), state)
        p = log_p[0, 0].exp()
        p[[PAD, BOS]] = 0.0
        return p / p.sum(), state

    with torch.no_grad():
        for first in range(V):
            state = model.start(model.encode(one.source, one.source_lengths), Capacity(1, 2))
            p, state = conditional(state, BOS)
            q, _ = conditional(state, first)
            for second in range(V):
                chance = p[first].item() * q[second].item()
                share = ((found[:, 1] == first) & (found[:, 2] == second)).double().mean().item()
                assert abs(share - chance) < 6 * math.sqrt(chance * (1 - chance) / count) + 5e-4


def test_no_gradient_flows_through_a_sample_and_the_loss_is_that_of_one_pass_over_the_inputs() -> None:
    model, batch = a_model(), copies(3, [4, 5, EOS])
    inputs = sample_inputs(model, batch, 0.0)
    assert inputs is not None
    assert not inputs.requires_grad
    log_p = model.decode(inputs, model.encode(batch.source, batch.source_lengths)).o @ model.output.weight.T
    log_p = (log_p + model.output.bias).log_softmax(-1)
    wanted = -sum(log_p[i, t, y].item() for i in range(3) for t, y in enumerate([4, 5, EOS]))
    assert model.loss(batch, inputs=inputs).item() == pytest.approx(wanted, rel=1e-5)


def test_a_model_that_runs_out_of_memory_while_sampling_still_trains_afterwards() -> None:
    model = a_model()

    def too_much(*_: Any) -> None:
        raise MemoryError

    model.decoder.register_forward_pre_hook(too_much)
    model.encoder.register_forward_pre_hook(too_much)
    with pytest.raises(MemoryError):
        sample_inputs(model, copies(2, [4, 5, EOS]), 0.0)
    assert model.training
