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

FillWeight = Callable[[nn.Module, str, Tensor], None]  # module, name, weight: fills the weight in place, or leaves it


@initializers.register("default")
class DefaultInitializer:
    """Every part keeps its own initial weights."""

    def __call__(self, model: nn.Module) -> None:
        """Do nothing."""


@initializers.register("uniform")
class UniformInitializer:
    """Every weight and bias from U(−range, range), as in Sutskever et al. 2014."""

    def __init__(self, *, range: PositiveFloat = 0.08) -> None:
        self.range = range

    def __call__(self, model: nn.Module) -> None:
        """Fill every weight and bias of a model, except norms, from U(−range, range), in place."""

        def fill(module: nn.Module, name: str, w: Tensor) -> None:
            w.uniform_(-self.range, self.range)

        initialize_weights(model, fill)


@initializers.register("normal")
class NormalInitializer:
    """Matrices from N(0, std²), biases 0; `orthogonal` for the recurrent ones, each gate by itself (Bahdanau 2015)."""

    def __init__(self, *, std: PositiveFloat = 0.02, orthogonal: bool = False) -> None:
        self.std, self.orthogonal = std, orthogonal

    def __call__(self, model: nn.Module) -> None:
        """Fill matrices from N(0, std²), recurrent ones orthogonally if asked for, and biases with 0, in place."""
        recurrent = _recurrent_weights(model) if self.orthogonal else set()

        def fill(module: nn.Module, name: str, w: Tensor) -> None:
            if (module, name) in recurrent:
                for gate in torch.split(w, w.shape[1]):  # (G·D, D): the gates one below the other
                    nn.init.orthogonal_(gate)
            elif w.dim() > 1:
                w.normal_(std=self.std)
            elif "bias" in name:
                w.zero_()

        initialize_weights(model, fill)


@initializers.register("xavier")
class XavierInitializer:
    """Matrices evenly within ±√(6 / (inputs + outputs)), biases 0 (Glorot and Bengio 2010).

    Embeddings keep their initial weights: a table lookup is no sum over V inputs.
    """

    def __call__(self, model: nn.Module) -> None:
        """Fill matrices, except embeddings, with Glorot's uniform weights, and biases with 0, in place."""

        def fill(module: nn.Module, name: str, w: Tensor) -> None:
            if w.dim() > 1 and not isinstance(module, nn.Embedding):
                nn.init.xavier_uniform_(w)
            elif "bias" in name:
                w.zero_()

        initialize_weights(model, fill)


@torch.no_grad()
def initialize_weights(model: nn.Module, fill: FillWeight) -> None:
    """Apply `fill` to every weight of a model except norms, to a shared one once; reset the <pad> rows to 0."""
    filled: set[nn.Parameter] = set()
    for module in model.modules():
        if isinstance(module, parametrize.ParametrizationList) or _is_norm(module):
            continue
        for name, parameter in module.named_parameters(recurse=False):
            if parameter not in filled:
                fill(module, name, parameter)
                filled.add(parameter)
        for name in _parametrized_names(module):
            w = getattr(module, name).clone()
            fill(module, name, w)
            setattr(module, name, w)  # torch computes the g and v of this w
    for module in model.modules():  # last, since an output layer may share the table
        if isinstance(module, nn.Embedding) and module.padding_idx is not None:
            module.weight[module.padding_idx] = 0.0


def _is_norm(module: nn.Module) -> bool:
    """Whether the module's weight is a vector, a gain for each feature, as that of a norm."""
    weight = getattr(module, "weight", None)
    return isinstance(weight, Tensor) and weight.dim() == 1


def _parametrized_names(module: nn.Module) -> list[str]:
    """The names of the module's weights that are computed from others."""
    parametrizations = getattr(module, "parametrizations", None)
    return list(parametrizations) if isinstance(parametrizations, nn.ModuleDict) else []


def _recurrent_weights(model: nn.Module) -> set[tuple[nn.Module, str]]:
    """The matrices that multiply a hidden state: `weight_hh…` of torch's layers, and the layers a part lists.

    A part lists the names of its recurrent layers in `recurrent`, such as ("U", "Un").
    """
    of_torch = {
        (module, name)
        for module in model.modules()
        if isinstance(module, nn.RNNBase | nn.RNNCellBase)
        for name, _ in module.named_parameters(recurse=False)
        if name.startswith("weight_hh")
    }
    listed = ((module, getattr(module, "recurrent", ())) for module in model.modules())
    of_parts = {
        (module.get_submodule(name), "weight") for module, names in listed if isinstance(names, tuple) for name in names
    }
    return of_torch | of_parts
