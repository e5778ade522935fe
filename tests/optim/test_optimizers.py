"""Optimizers by name, against one step worked out by hand; weight decay on matrices only."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from dragoman.optim.optimizers import optimizers


def a_model() -> nn.Module:
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 3), nn.LayerNorm(3), nn.Conv1d(3, 2, 2))
    for p in model.parameters():
        nn.init.normal_(p)
        p.grad = torch.randn_like(p)
    return model


def built(name: str, parameters: Any, **options: Any) -> torch.optim.Optimizer:
    return optimizers.build(optimizers.parse({"name": name, **options}), parameters)


def stepped(name: str, model: nn.Module, **options: Any) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """(before, gradient, after) of every parameter for one step."""
    before = [p.detach().clone() for p in model.parameters()]
    built(name, model.parameters(), **options).step()
    return [(x, p.grad, p.detach()) for x, p in zip(before, model.parameters(), strict=True)]  # type: ignore[misc]


def test_the_optimizers_of_the_lectures_exist() -> None:
    assert {"adam", "adamw", "sgd"} <= set(optimizers.names)


@pytest.mark.parametrize("name", optimizers.names)
def test_every_parameter_is_taken_once_at_the_given_rate(name: str) -> None:
    model = a_model()
    optimizer = built(name, model.parameters(), rate=0.25)
    taken = [p for group in optimizer.param_groups for p in group["params"]]
    assert sorted(map(id, taken)) == sorted(map(id, model.parameters()))
    assert {group["lr"] for group in optimizer.param_groups} == {0.25}


@pytest.mark.parametrize("name", optimizers.names)
def test_a_generator_of_parameters_and_only_vectors_or_only_matrices_do(name: str) -> None:
    for size in ((3,), (3, 3)):
        p = nn.Parameter(torch.ones(size))
        p.grad = torch.ones(size)
        built(name, (p for p in [p]), rate=0.1).step()
        assert (p < 1).all()


def test_the_first_step_of_adam_is_the_rate_in_the_direction_of_the_gradient() -> None:
    for before, gradient, after in stepped("adam", a_model(), rate=0.1, eps=1e-12):
        assert_close(after, before - 0.1 * gradient.sign(), atol=1e-5, rtol=1e-5)


def test_two_steps_of_adam_by_hand() -> None:
    p = nn.Parameter(torch.tensor([1.0]))
    optimizer = built("adam", [p], rate=0.1, beta1=0.8, beta2=0.5, eps=0.01)
    value, m, v = 1.0, 0.0, 0.0
    for t, g in enumerate([2.0, -1.0], 1):
        p.grad = torch.tensor([g])
        optimizer.step()
        m, v = 0.8 * m + 0.2 * g, 0.5 * v + 0.5 * g * g
        value -= 0.1 * (m / (1 - 0.8**t)) / (math.sqrt(v / (1 - 0.5**t)) + 0.01)
    assert p.item() == pytest.approx(value, rel=1e-5)


def test_weight_decay_of_adamw_touches_matrices_only() -> None:
    for before, gradient, after in stepped("adamw", a_model(), rate=0.1, weight_decay=0.5, eps=1e-12):
        decay = 0.1 * 0.5 if before.dim() > 1 else 0.0
        assert_close(after, before * (1 - decay) - 0.1 * gradient.sign(), atol=1e-5, rtol=1e-5)


def test_weight_decay_of_sgd_touches_matrices_only() -> None:
    for before, gradient, after in stepped("sgd", a_model(), rate=0.1, weight_decay=0.5):
        pull = 0.5 * before if before.dim() > 1 else 0.0
        assert_close(after, before - 0.1 * (gradient + pull), atol=1e-6, rtol=1e-5)


def test_momentum_remembers() -> None:
    p = nn.Parameter(torch.tensor([1.0]))
    optimizer = built("sgd", [p], rate=0.1, momentum=0.5)
    for g in (1.0, 0.0, 0.0):
        p.grad = torch.tensor([g])
        optimizer.step()
    assert p.item() == pytest.approx(1 - 0.1 * (1 + 0.5 + 0.25))


def test_the_defaults_of_adam_are_the_transformer_paper_s() -> None:
    options = optimizers.parse("adam").options
    assert (options["beta1"], options["beta2"], options["eps"]) == (0.9, 0.98, 1e-9)


@pytest.mark.parametrize("name", optimizers.names)
def test_the_state_of_an_optimizer_is_all_it_remembers(name: str) -> None:
    one, other = nn.Linear(3, 2), nn.Linear(3, 2)
    first = built(name, one.parameters(), rate=0.1)
    for step in range(4):
        for p in one.parameters():
            p.grad = torch.randn_like(p)
        if step == 2:
            other.load_state_dict(one.state_dict())
            second = built(name, other.parameters(), rate=0.1)
            second.load_state_dict(copy.deepcopy(first.state_dict()))
        first.step()
        if step >= 2:
            for p, q in zip(one.parameters(), other.parameters(), strict=True):
                q.grad = p.grad.clone()  # type: ignore[union-attr]
            second.step()
    assert all(torch.equal(p, q) for p, q in zip(one.parameters(), other.parameters(), strict=True))
