"""Initializers of the weights of a whole model.

    default   as each part initializes itself   xavier   matrices U(−b, b), b = √(6 / (n_in + n_out)), biases 0
    uniform   U(−r, r)                          normal   matrices N(0, σ²), biases 0

An initializer is called once, as initializer(model), and overwrites the initial weights of the parts. It leaves norms
alone (gain 1, bias 0) and the <pad> rows of embeddings at 0. A parametrized weight, such as g v/‖v‖, is initialized
through its parameters.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from dragoman.core.registry import PositiveFloat, Registry

initializers: Registry[Callable[[nn.Module], None]] = Registry("initializer")


class Initializer:
    """Fills the weights of a model in place: every weight but those of norms, a shared one once."""

    def fill(self, module: nn.Module, name: str, w: Tensor) -> None:
        """Fill the weight w in place, which is module.name, or leave it."""
        raise NotImplementedError

    @torch.no_grad()
    def __call__(self, model: nn.Module) -> None:
        filled: set[nn.Parameter] = set()
        for module in model.modules():
            weight = getattr(module, "weight", None)
            is_norm = isinstance(weight, Tensor) and weight.dim() == 1  # a gain for each feature
            if isinstance(module, parametrize.ParametrizationList) or is_norm:
                continue
            for name, parameter in module.named_parameters(recurse=False):
                if parameter not in filled:
                    self.fill(module, name, parameter)
                    filled.add(parameter)
            for name in getattr(module, "parametrizations", ()):  # weights that are computed from others
                w = getattr(module, name).clone()
                self.fill(module, name, w)
                setattr(module, name, w)  # torch computes the g and v of this w
        for module in model.modules():  # last, since an output layer may share the table
            if isinstance(module, nn.Embedding) and module.padding_idx is not None:
                module.weight[module.padding_idx] = 0.0


@initializers.register("default")
class DefaultInitializer:
    """Every part keeps its own initial weights."""

    def __call__(self, model: nn.Module) -> None:
        pass


@initializers.register("uniform")
class UniformInitializer(Initializer):
    """Every weight and bias from U(−range, range), as in Sutskever et al. 2014."""

    def __init__(self, *, range: PositiveFloat = 0.08) -> None:
        self.range = range

    def fill(self, module: nn.Module, name: str, w: Tensor) -> None:
        w.uniform_(-self.range, self.range)


@initializers.register("normal")
class NormalInitializer(Initializer):
    """Matrices from N(0, std²), biases 0; `orthogonal` for the recurrent ones, each gate by itself (Bahdanau 2015)."""

    def __init__(self, *, std: PositiveFloat = 0.02, orthogonal: bool = False) -> None:
        self.std, self.orthogonal = std, orthogonal

    def __call__(self, model: nn.Module) -> None:
        self.recurrent = _recurrent_weights(model) if self.orthogonal else set()
        super().__call__(model)

    def fill(self, module: nn.Module, name: str, w: Tensor) -> None:
        if (module, name) in self.recurrent:
            for gate in torch.split(w, w.shape[1]):  # (G·D, D): the gates one below the other
                nn.init.orthogonal_(gate)
        elif w.dim() > 1:
            w.normal_(std=self.std)
        elif "bias" in name:
            w.zero_()


@initializers.register("xavier")
class XavierInitializer(Initializer):
    """Matrices evenly within ±√(6 / (inputs + outputs)), biases 0 (Glorot and Bengio 2010).

    Embeddings keep their initial weights: a table lookup is no sum over V inputs.
    """

    def fill(self, module: nn.Module, name: str, w: Tensor) -> None:
        if w.dim() > 1 and not isinstance(module, nn.Embedding):
            nn.init.xavier_uniform_(w)
        elif "bias" in name:
            w.zero_()


def _recurrent_weights(model: nn.Module) -> set[tuple[nn.Module, str]]:
    """The matrices that multiply a hidden state: torch's `weight_hh…`, and what a part lists in `recurrent`."""
    recurrent: set[tuple[nn.Module, str]] = set()
    for module in model.modules():
        if isinstance(module, nn.RNNBase | nn.RNNCellBase):
            names = [name for name, _ in module.named_parameters(recurse=False)]
            recurrent |= {(module, name) for name in names if name.startswith("weight_hh")}
        listed = getattr(module, "recurrent", ())
        if isinstance(listed, tuple):
            recurrent |= {(module.get_submodule(name), "weight") for name in listed}
    return recurrent
