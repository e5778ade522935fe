"""Each way to begin by its definition: what is drawn how, and what is left alone."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.testing import assert_close

from dragoman.core.registry import Part
from dragoman.core.types import PAD
from dragoman.nn.initialization import initializers
from dragoman.nn.layers import norms


class Cell(nn.Module):
    """A part that names its own recurrent layers."""

    recurrent = ("U",)

    def __init__(self) -> None:
        super().__init__()
        self.W, self.U = nn.Linear(40, 80), nn.Linear(40, 80, bias=False)


class Model(nn.Module):
    """One of everything."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 40, padding_idx=PAD)
        self.gru = nn.GRU(40, 40)
        self.cell = Cell()
        self.norms = nn.ModuleList([norms.build(Part(name), 40) for name in norms.names])
        self.normed = parametrizations.weight_norm(nn.Conv1d(40, 60, 3))
        self.query = nn.Parameter(torch.full((40,), 7.0))
        self.output = nn.Linear(40, 50)
        self.output.weight = self.table.weight


def begun(name: str, **options: Any) -> Model:
    model = Model()
    for p in model.normed.parameters():
        nn.init.normal_(p)
    nn.init.ones_(model.output.bias)
    initializers.build(initializers.parse({"name": name, **options}))(model)
    return model


def matrices(model: Model) -> dict[str, Tensor]:
    return {
        "gru.weight_ih": model.gru.weight_ih_l0,
        "cell.W": model.cell.W.weight,
        "normed": model.normed.weight,
    }


def recurrent(model: Model) -> list[Tensor]:
    return [model.gru.weight_hh_l0, model.cell.U.weight]


def biases(model: Model) -> list[Tensor]:
    return [model.gru.bias_ih_l0, model.gru.bias_hh_l0, model.cell.W.bias, model.normed.bias, model.output.bias]


def assert_uniform(x: Tensor, bound: float) -> None:
    assert x.abs().max() <= bound * (1 + 1e-5)
    assert x.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.1)


@pytest.mark.parametrize("name", initializers.names)
def test_norms_begin_with_gain_one_and_padding_with_zeros(name: str) -> None:
    model = begun(name)
    for norm in model.norms:
        for key, p in norm.named_parameters():
            assert torch.equal(p, torch.ones(40) if key == "weight" else torch.zeros(40))
    assert name == "default" or not model.table.weight[PAD].any()
    assert model.table.weight[PAD + 1 :].all()
    assert model.output.weight is model.table.weight


@pytest.mark.parametrize("name", initializers.names)
def test_a_normed_weight_still_learns(name: str) -> None:
    """w = g v/‖v‖ with the g of the new w, and gradients for both."""
    conv: Any = begun(name).normed
    g, v = conv.parametrizations.weight.original0, conv.parametrizations.weight.original1
    assert_close(conv.weight, g * v / v.norm(dim=(1, 2), keepdim=True))
    conv(torch.randn(1, 40, 5)).sum().backward()
    assert all(isinstance(p, nn.Parameter) and p.grad is not None and p.grad.any() for p in (g, v))


def test_parts_changes_nothing() -> None:
    model = Model()
    before = {name: p.clone() for name, p in model.state_dict().items()}
    initializers.build(Part("default"))(model)
    assert all(torch.equal(p, before[name]) for name, p in model.state_dict().items())


def test_uniform_draws_everything_from_one_range() -> None:
    model = begun("uniform", range=0.3)
    table = model.table.weight[PAD + 1 :]
    for x in [*matrices(model).values(), *recurrent(model), table, torch.cat(biases(model)), model.query]:
        assert_uniform(x, 0.3) if x.numel() > 200 else assert_close(x.abs().clamp(max=0.3), x.abs())
    assert initializers.parse("uniform").options["range"] == 0.08


@pytest.mark.parametrize("orthogonal", [False, True])
def test_normal_draws_matrices_and_sets_biases_to_zero(orthogonal: bool) -> None:
    model = begun("normal", std=0.5, orthogonal=orthogonal)
    drawn = [*matrices(model).values(), model.table.weight[PAD + 1 :], *([] if orthogonal else recurrent(model))]
    for x in drawn:
        assert x.std().item() == pytest.approx(0.5, rel=0.1)
        assert x.abs().max() > 1.2  # no uniform of that variance reaches so far
    assert not torch.cat(biases(model)).any()
    assert (model.query == 7).all()  # a vector that is no bias keeps its beginning
    if orthogonal:
        for gate in torch.cat(recurrent(model)).split(40):
            assert_close(gate @ gate.T, torch.eye(40), atol=1e-5, rtol=0)


def test_xavier_draws_within_the_bound_of_each_matrix() -> None:
    model = begun("xavier")
    inputs_outputs = {"gru.weight_ih": 40 + 120, "cell.W": 40 + 80, "normed": 3 * (40 + 60)}
    for name, x in matrices(model).items():
        assert_uniform(x, math.sqrt(6 / inputs_outputs[name]))
    assert not torch.cat(biases(model)).any()
    assert model.table.weight[PAD + 1 :].std().item() == pytest.approx(1, rel=0.1)  # torch's own
