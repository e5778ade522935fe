"""Optimizers by name, against one step worked out by hand; weight decay on matrices only."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from dragoman.checkpoint.model_folder import build_manifest, tensors_to_bytes
from dragoman.core.errors import PartError
from dragoman.core.registry import Part
from dragoman.optim.optimizers import optimizers
from dragoman.optim.schedules import schedules
from dragoman.training.state import Progress, restore_state, serialize_state


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
    assert {"adadelta", "adafactor", "adam", "adamw", "sgd"} <= set(optimizers.names)


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


def test_nesterov_s_step_is_taken_from_where_momentum_leads() -> None:
    p = nn.Parameter(torch.tensor([1.0]))
    optimizer = built("sgd", [p], rate=0.1, momentum=0.5, nesterov=True)
    value, v = 1.0, 0.0
    for g in (1.0, -3.0, 0.5):
        p.grad = torch.tensor([g])
        optimizer.step()
        v = 0.5 * v + g
        value -= 0.1 * (g + 0.5 * v)
    assert p.item() == pytest.approx(value)
    with pytest.raises(PartError, match="momentum is 0"):
        built("sgd", [p], nesterov=True)


def test_rmsprop_by_hand() -> None:
    p = nn.Parameter(torch.tensor([1.0]))
    optimizer = built("rmsprop", [p], rate=0.1, rho=0.75, eps=0.01)
    value, v = 1.0, 0.0
    for g in (2.0, -1.0, 0.5):
        p.grad = torch.tensor([g])
        optimizer.step()
        v = 0.75 * v + 0.25 * g * g
        value -= 0.1 * g / (math.sqrt(v) + 0.01)
    assert p.item() == pytest.approx(value, rel=1e-5)


def test_adadelta_is_zeiler_s_algorithm() -> None:
    p = nn.Parameter(torch.tensor([1.0]))
    optimizer = built("adadelta", [p], rho=0.75, eps=0.01)
    value, squares, changes = 1.0, 0.0, 0.0
    for g in (2.0, -1.0, 0.5):
        p.grad = torch.tensor([g])
        optimizer.step()
        squares = 0.75 * squares + 0.25 * g * g
        change = -math.sqrt(changes + 0.01) / math.sqrt(squares + 0.01) * g
        changes = 0.75 * changes + 0.25 * change * change
        value += change  # the rate is 1
    assert p.item() == pytest.approx(value, rel=1e-5)
    options = optimizers.parse("adadelta").options
    assert (options["rate"], options["rho"], options["eps"]) == (1.0, 0.95, 1e-6)


@pytest.mark.parametrize("size", [1.0, 1e-5])  # gradients of large models are small
def test_adafactor_is_the_paper_s_algorithm(size: float) -> None:
    rate, eps, n, m = 0.2, 1e-3, 2, 3
    matrix, vector = nn.Parameter(torch.randn(n, m)), nn.Parameter(torch.zeros(m))  # RMS(θ) = 0: ε holds
    optimizer = built("adafactor", [matrix, vector], rate=rate, eps=eps)
    w, b = matrix.tolist(), vector.tolist()
    rows, columns, squares = [0.0] * n, [0.0] * m, [0.0] * m

    def rms(*rows: list[float]) -> float:
        return math.sqrt(sum(v * v for row in rows for v in row) / len(rows) / m)

    for t in range(1, 31):  # past t = 25, where 1/√t is below the rate
        fade = 0.05 if t == 30 else 1.0  # a step so much smaller that clipping does nothing
        G, g = torch.randn(n, m) * size * fade, torch.randn(m) * size * fade
        matrix.grad, vector.grad = G.clone(), g.clone()
        optimizer.step()
        beta = 1 - t**-0.8
        Gs, gs = G.tolist(), g.tolist()
        rows = [beta * r + (1 - beta) * sum(x * x for x in Gs[i]) / m for i, r in enumerate(rows)]
        columns = [beta * c + (1 - beta) * sum(Gs[i][j] ** 2 for i in range(n)) / n for j, c in enumerate(columns)]
        squares = [beta * v + (1 - beta) * x * x for v, x in zip(squares, gs, strict=True)]
        mean = sum(rows) / n
        U = [[Gs[i][j] / math.sqrt(rows[i] * columns[j] / mean) for j in range(m)] for i in range(n)]
        u = [x / math.sqrt(v) for x, v in zip(gs, squares, strict=True)]
        rho = min(rate, 1 / math.sqrt(t))
        alpha = rho * max(eps, rms(*w)) / max(1, rms(*U))
        w = [[w[i][j] - alpha * U[i][j] for j in range(m)] for i in range(n)]
        alpha = rho * max(eps, rms(b)) / max(1, rms(u))
        b = [x - alpha * y for x, y in zip(b, u, strict=True)]
    assert_close(matrix.detach(), torch.tensor(w), atol=1e-4, rtol=1e-3)
    assert_close(vector.detach(), torch.tensor(b), atol=1e-4, rtol=1e-3)


def test_a_row_without_gradient_stays_where_it_is_with_adafactor() -> None:
    """Words that a batch does not have: 0/0 must be 0."""
    table = nn.Parameter(torch.randn(3, 4))
    optimizer, before = built("adafactor", [table]), table.detach().clone()
    table.grad = torch.randn(3, 4)
    table.grad[1] = 0.0
    optimizer.step()
    assert torch.equal(table[1], before[1])
    assert table.isfinite().all()


@pytest.mark.parametrize(
    ("name", "options"), [*((name, {}) for name in optimizers.names), ("sgd", {"momentum": 0.9, "nesterov": True})]
)
def test_a_checkpoint_holds_the_whole_state_of_an_optimizer(name: str, options: Any, tmp_path: Path) -> None:
    one, other = a_model(), a_model()
    first = built(name, one.parameters(), rate=0.1, **options)
    second = built(name, other.parameters(), rate=0.1, **options)
    for step in range(5):
        if step == 3:
            saved = serialize_state(Progress(step=step), one, first, None)
            saved["model.safetensors"] = tensors_to_bytes(one.state_dict())
            saved["manifest.json"] = build_manifest(saved)
            for file, data in saved.items():
                (tmp_path / file).write_bytes(data)
            restore_state(tmp_path, other, second, schedules.build(Part("constant"), 10), None)
        for p, q in zip(one.parameters(), other.parameters(), strict=True):
            p.grad = torch.randn_like(p)
            q.grad = p.grad.clone()
        first.step()
        if step >= 3:
            second.step()
    assert all(torch.equal(p, q) for p, q in zip(one.parameters(), other.parameters(), strict=True))
