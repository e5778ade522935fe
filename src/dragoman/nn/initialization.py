"""How the weights of a whole model begin.

    parts     as each part has it               xavier   matrices U(−b, b), b = √(6 / (n_in + n_out)), biases 0
    uniform   U(−r, r)                          normal   matrices N(0, σ²), biases 0

An initializer is called once, as initializer(model), and writes over what the parts began with. It leaves norms alone
(gain 1, bias 0) and the <pad> rows of embeddings at 0; a weight that is computed from others, such as g v/‖v‖, begins
as the rule says, by the choice of those others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from dragoman.core.registry import PositiveFloat, Registry

initializers: Registry[Callable[[nn.Module], None]] = Registry("initializer")

Rule = Callable[[nn.Module, str, Tensor], None]  # fills the tensor, which is called so in the module; or leaves it


@initializers.register("parts")
class Parts:
    """Each part begins as it likes."""

    def __call__(self, model: nn.Module) -> None:
        pass


@initializers.register("uniform")
class Uniform:
    """Every weight and bias from U(−range, range), as in Sutskever et al. 2014."""

    def __init__(self, *, range: PositiveFloat = 0.08) -> None:
        self.range = range

    def __call__(self, model: nn.Module) -> None:
        def rule(module: nn.Module, name: str, w: Tensor) -> None:
            w.uniform_(-self.range, self.range)

        begin(model, rule)


@initializers.register("normal")
class Normal:
    """Matrices from N(0, std²), biases 0; `orthogonal` for the recurrent ones, each gate by itself (Bahdanau 2015)."""

    def __init__(self, *, std: PositiveFloat = 0.02, orthogonal: bool = False) -> None:
        self.std, self.orthogonal = std, orthogonal

    def __call__(self, model: nn.Module) -> None:
        recurrent = _recurrent(model) if self.orthogonal else set()

        def rule(module: nn.Module, name: str, w: Tensor) -> None:
            if (module, name) in recurrent:
                for gate in torch.split(w, w.shape[1]):  # (G·D, D): the gates one below the other
                    nn.init.orthogonal_(gate)
            elif w.dim() > 1:
                w.normal_(std=self.std)
            elif "bias" in name:
                w.zero_()

        begin(model, rule)


@initializers.register("xavier")
class Xavier:
    """Matrices evenly within ±√(6 / (inputs + outputs)), biases 0 (Glorot and Bengio 2010).

    Embeddings keep their own beginning: a look-up table is no sum over V inputs.
    """

    def __call__(self, model: nn.Module) -> None:
        def rule(module: nn.Module, name: str, w: Tensor) -> None:
            if w.dim() > 1 and not isinstance(module, nn.Embedding):
                nn.init.xavier_uniform_(w)
            elif "bias" in name:
                w.zero_()

        begin(model, rule)


@torch.no_grad()
def begin(model: nn.Module, rule: Rule) -> None:
    """Apply a rule to every weight of a model, norms aside; a shared one is filled once."""
    filled: set[nn.Parameter] = set()
    for module in model.modules():
        if isinstance(module, parametrize.ParametrizationList) or _is_norm(module):
            continue
        for name, parameter in module.named_parameters(recurse=False):
            if parameter not in filled:
                rule(module, name, parameter)
                filled.add(parameter)
        for name in _computed(module):
            w = getattr(module, name).clone()
            rule(module, name, w)
            setattr(module, name, w)  # torch finds the g and v that give this w
    for module in model.modules():  # last, as an output layer may share the table
        if isinstance(module, nn.Embedding) and module.padding_idx is not None:
            module.weight[module.padding_idx] = 0.0


def _is_norm(module: nn.Module) -> bool:
    """Whether its weight is a vector: a gain for each feature."""
    weight = getattr(module, "weight", None)
    return isinstance(weight, Tensor) and weight.dim() == 1


def _computed(module: nn.Module) -> Iterator[str]:
    """Names of weights that are computed from others."""
    return iter(module.parametrizations) if parametrize.is_parametrized(module) else iter(())  # type: ignore[arg-type]


def _recurrent(model: nn.Module) -> set[tuple[nn.Module, str]]:
    """The matrices that a state is multiplied with: in torch's layers `weight_hh…`, in ours what the part names.

    A part of ours lists its layers of that kind in `recurrent`, such as ("U", "Un").
    """
    torchs = {
        (module, name)
        for module in model.modules()
        if isinstance(module, nn.RNNBase | nn.RNNCellBase)
        for name, _ in module.named_parameters(recurse=False)
        if name.startswith("weight_hh")
    }
    listed = ((module, getattr(module, "recurrent", ())) for module in model.modules())
    ours = {
        (module.get_submodule(name), "weight") for module, names in listed if isinstance(names, tuple) for name in names
    }
    return torchs | ours
