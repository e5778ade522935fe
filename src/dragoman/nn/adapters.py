"""Small trained matrices beside the frozen weights of a trained model.

    lora    W' = W + s B A    s = α / r    in training: y = W x + b + s B A drop(x)    Hu et al. 2021

A (r, d_in) begins as torch's own linear layers do, B (d_out, r) with zeros, so before the first step W' is W. All other
parameters are frozen. A checkpoint holds A and B alone, and merging them gives ordinary weights again.

Adapted are the linear layers below `parts`: in a Transformer W_Q, W_K, W_V, W_O and the feed-forward's W₁, W₂, W₃. Left
out are those whose matrix is read, not called (in a score), is shared, or has a row for each token (output and CTC).
The matrices inside torch's LSTM and GRU are no linear layers.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.core.errors import PartError, did_you_mean
from dragoman.core.registry import PositiveFloat, PositiveInt, Registry, UnitInterval
from dragoman.nn.kernels.dropout import Dropout
from dragoman.nn.scores import scores

TOKEN_LAYERS = ("output", "ctc")  # parts of a model with a row of weights for each token
DEFAULT_PARTS = ("encoder", "decoder")  # a model may have only one of them


class Adapter(Protocol):
    """Attaches its matrices to the layers of a model, and merges saved ones into a model's weights."""

    def check(self, model: nn.Module) -> None:
        """Raise PartError if it does not fit a model, which may be on the meta device."""
        ...

    def attach(self, model: nn.Module) -> None:
        """Freeze a model and add the adapter's own parameters to it."""
        ...

    def merge(self, weights: Mapping[str, Tensor], saved: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The weights of an ordinary model, from those of the base model and what a checkpoint holds."""
        ...


adapters: Registry[Adapter] = Registry("adapter")


class LowRankUpdate(nn.Module):
    """s B A drop(x): what a linear layer's output gains."""

    def __init__(self, layer: nn.Linear, rank: int, scale: float, dropout: float) -> None:
        super().__init__()
        d_out, d_in = layer.weight.shape
        A = nn.init.kaiming_uniform_(torch.empty(rank, d_in), a=math.sqrt(5))  # on the CPU: equal on every device
        self.A = nn.Parameter(A.to(layer.weight))
        self.B = nn.Parameter(layer.weight.new_zeros(d_out, rank))
        self.scale, self.dropout = scale, Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """s B A drop(x): (…, d_in) → (…, d_out)"""
        return self.scale * F.linear(F.linear(self.dropout(x), self.A), self.B)


@adapters.register("lora")
class LoRA:
    """W' = W + (α/r) B A for the linear layers below `parts`; `rank` is r, and dropout is that of the input of A."""

    def __init__(
        self,
        *,
        rank: PositiveInt = 8,
        alpha: PositiveFloat = 16.0,
        dropout: UnitInterval = 0.0,
        parts: list[str] = [*DEFAULT_PARTS],
    ) -> None:
        self.rank, self.scale, self.dropout, self.parts = rank, alpha / rank, dropout, parts

    def check(self, model: nn.Module) -> None:
        self.find_layers(model)

    def attach(self, model: nn.Module) -> None:
        model.requires_grad_(False)
        for layer in self.find_layers(model).values():
            layer.add_module("adapter", LowRankUpdate(layer, self.rank, self.scale, self.dropout))
            layer.register_forward_hook(_add_update)

    def find_layers(self, model: nn.Module) -> dict[str, nn.Linear]:
        """The layers to adapt, by name; PartError if there are none, or one is too small for the rank."""
        candidates = _linear_layers(model)
        layers = {name: layer for name, layer in candidates.items() if _is_below(name, self.parts)}
        for part in self.parts:
            if part not in DEFAULT_PARTS and not any(_is_below(name, [part]) for name in candidates):
                known = sorted({name.partition(".")[0] for name in candidates})
                raise PartError(
                    f"no linear layer is below '{part}'{did_you_mean(part, known)} (there are some in "
                    f"{', '.join(known) or 'no part of this model'})"
                )
        if not layers:
            raise PartError(f"no linear layer is below {' or '.join(self.parts) or 'the empty list of parts'}")
        for name, layer in layers.items():
            if self.rank > (limit := min(layer.weight.shape)):
                shape = " × ".join(map(str, layer.weight.shape))
                raise PartError(f"rank is {self.rank}, but '{name}' is {shape}: set rank to at most {limit}")
        return layers

    def merge(self, weights: Mapping[str, Tensor], saved: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """W + s B A; what `saved` holds besides A and B are buffers, which replace those in `weights`."""
        merged = dict(weights) | {name: x for name, x in saved.items() if not is_adapter_weight(name)}
        for name in {name.rpartition(".adapter.")[0] for name in saved if is_adapter_weight(name)}:
            W = weights.get(f"{name}.weight")
            A, B = saved.get(f"{name}.adapter.A"), saved.get(f"{name}.adapter.B")
            if W is None or A is None or B is None or W.dim() != 2:
                raise PartError(f"has no A and B for a layer '{name}' of the base model")
            if (*B.shape, *A.shape) != (W.shape[0], self.rank, self.rank, W.shape[1]):  # before a product is formed
                found = f"B {tuple(B.shape)} and A {tuple(A.shape)}"
                raise PartError(f"'{name}' has {found}, which do not fit {tuple(W.shape)} with rank {self.rank}")
            merged[f"{name}.weight"] = (W.float() + self.scale * (B.float() @ A.float())).to(W.dtype)
        return merged


def is_adapter_weight(name: str) -> bool:
    """Whether a saved weight of this name belongs to an adapter."""
    return name.endswith((".adapter.A", ".adapter.B"))


def adapter_parameters(model: nn.Module) -> set[str]:
    """The names of the parameters that adapters have added to a model."""
    return {
        f"{name}.{key}"
        for name, module in model.named_modules()
        if isinstance(module, LowRankUpdate)
        for key, _ in module.named_parameters()
    }


def _add_update(layer: nn.Module, inputs: tuple[Any, ...], y: Tensor) -> Tensor:
    """A forward hook: layer(x) + s B A drop(x)."""
    update: Tensor = layer.adapter(inputs[0])  # type: ignore[operator]
    return y + update


def _linear_layers(model: nn.Module) -> dict[str, nn.Linear]:
    """The linear layers of a model that can be adapted, by name; one that several parts share is there once."""
    modules = list(model.modules())
    owners = Counter(id(p) for module in modules for p in module._parameters.values())
    kinds = tuple(kind for name in scores.names if isinstance(kind := scores[name], type))
    in_scores = {id(part) for module in modules if isinstance(module, kinds) for part in module.modules()}
    return {
        name: layer
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Linear)
        and owners[id(layer.weight)] == 1
        and id(layer) not in in_scores
        and not _is_below(name, TOKEN_LAYERS)
    }


def _is_below(name: str, parts: Sequence[str]) -> bool:
    return any(name == part or name.startswith(f"{part}.") for part in parts)
