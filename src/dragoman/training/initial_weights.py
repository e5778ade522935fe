"""Initial weights of a new model, from another Dragoman model or another library; adapters; frozen parameters.

    name in another library's file ─map: prefix in the file → prefix in the model→ name in the model

    training:
      backbone: {file: resnet18.safetensors, map: {"": frontend.net}}

Weights of the file may be left over (the classifier of a ResNet), but none below a prefix of the map may be missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from dragoman.checkpoint import model_folder
from dragoman.config import Backbone
from dragoman.core.errors import ModelError, PartError, RunError, UserError
from dragoman.core.registry import Part
from dragoman.nn.adapters import adapters

UNUSED_BIAS = -20.0  # of an output that no training has seen: e^−20 of the others' probability


def load_initial_weights(model: nn.Module, path: Path, parts: Sequence[str], grows: bool = False) -> None:
    """Copy the weights of another model, or only those below the names in `parts`; an error names what does not fit.

    With `grows` (model.extend), tables with more rows than there get new ones.
    """
    other = model_folder.resolve(path)
    config, _ = model_folder.verify(other)  # with tokenizer.load nobody else has: a flipped bit loads silently
    # Buffers may be missing there: hard attention has a baseline, which the soft attention it starts from has not.
    buffers = model_folder.unique_weights(model).keys() - dict(model.named_parameters()).keys()
    weights = {name: model.get_buffer(name) for name in buffers} | model_folder.merged_weights(other, config)
    if grows:
        shapes = {name: x.shape for name, x in model_folder.unique_weights(model).items()}
        weights = {name: grow_table(name, x, shapes.get(name, x.shape)) for name, x in weights.items()}
    try:
        model_folder.load_weights(model, weights, str(other), parts)
    except ModelError as error:
        raise RunError(
            f"training.start_from: {error}. The model section must equal that model's, and so must the vocabulary "
            "(without tokenizer.load its tokenizers are used); with training.start_parts only those parts must"
        ) from None


def grow_table(name: str, x: Tensor, shape: torch.Size) -> Tensor:
    """A table with as many rows as `shape` has: a new one is the mean of the others, so that it is no stranger.

    In a bias new rows are UNUSED_BIAS: until a token is learned, it takes nothing from the probability of the others.
    """
    missing = shape[0] - x.shape[0] if x.dim() and x.shape[1:] == shape[1:] else 0
    if missing <= 0:
        return x
    row = torch.full((), UNUSED_BIAS).to(x) if name.endswith("bias") else x.mean(0)
    return torch.cat([x, row.expand(missing, *x.shape[1:])])


def load_backbone(model: nn.Module, options: Backbone) -> list[str]:
    """Load pretrained weights into the parts of a model that the map names; returns the unused names of the file."""
    path = Path(options.file)
    if not path.is_file():
        raise RunError(f"training.backbone.file: there is no file '{path}'; name a safetensors file with weights")
    try:
        pretrained = model_folder.load_tensors(path.parent, path.name)
    except ModelError as error:
        raise RunError(f"training.backbone.file: {error}; convert the checkpoint to safetensors") from None
    file_names = map_names(pretrained, options.map)
    used = {name: file_names[name] for name in model_folder.unique_weights(model) if name in file_names}
    weights = {name: pretrained[file_name] for name, file_name in used.items()}
    try:
        model_folder.load_weights(model, weights, options.file, list(options.map.values()))
    except ModelError as error:
        first = ", ".join(list(pretrained)[:2])
        remedy = "set model.frontend to the same sizes, and backbone.map to its names"
        raise RunError(f"training.backbone: {error}. The file begins with {first}; {remedy}") from None
    return [name for name in pretrained if name not in used.values()]


def map_names(file_names: Iterable[str], prefixes: Mapping[str, str]) -> dict[str, str]:
    """Name in the model → name in the file; of several prefixes that fit a name, the longest is replaced."""
    mapped = {}
    for name in file_names:
        fitting = [prefix for prefix in prefixes if not prefix or name.startswith(f"{prefix}.")]
        if fitting:
            prefix = max(fitting, key=len)
            mapped[f"{prefixes[prefix]}.{name.removeprefix(prefix).removeprefix('.')}"] = name
    return mapped


def attach_adapter(model: nn.Module, adapter: Part, base: Path) -> model_folder.WeightsFile:
    """Freeze a model that has the weights of `base` and add an adapter to it; returns the weights file of `base`."""
    if model_folder.has_adapter(base):
        raise RunError(
            f"training.start_from: {base} holds an adapter, and an adapter cannot have one of its own; pack it first "
            f"(dragoman pack {base} -o base.zip) and start from that"
        )
    try:
        adapters.build(adapter).attach(model)
    except PartError as error:
        raise RunError(f"training.adapter: {error}") from None
    return model_folder.locate_weights(base)


def freeze_parameters(model: nn.Module, prefixes: Sequence[str]) -> None:
    """Exclude parameters below these names from training; UserError if a name fits none, or nothing is left."""
    names = [name for name, _ in model.named_parameters()]
    for prefix in prefixes:
        frozen = [name for name in names if name == prefix or name.startswith(prefix + ".")]
        if not frozen:
            parts = sorted({name.split(".")[0] for name in names})
            raise UserError(f"training.freeze: no parameter begins with '{prefix}' (there is {', '.join(parts)}, …)")
        for name in frozen:
            model.get_parameter(name).requires_grad_(False)
    if not any(p.requires_grad for p in model.parameters()):
        raise UserError("training.freeze: every parameter is frozen, so there is nothing to train")
