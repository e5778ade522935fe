"""Initial weights of a new model, from another Dragoman model or another library; and frozen parameters.

    name in another library's file ─map: prefix in the file → prefix in the model→ name in the model

    training:
      backbone: {file: resnet18.safetensors, map: {"": frontend.net}}

Weights of the file may be left over (the classifier of a ResNet), but none below a prefix of the map may be missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from torch import nn

from dragoman.checkpoint import model_folder
from dragoman.config import Backbone
from dragoman.core.errors import ModelError, RunError, UserError


def load_initial_weights(model: nn.Module, path: Path, parts: Sequence[str]) -> None:
    """Copy the weights of another model, or only those below the names in `parts`; an error names what does not fit."""
    other = model_folder.resolve(path)
    model_folder.verify(other)  # with tokenizer.load nobody else has: a flipped bit loads silently
    # Buffers may be missing there: hard attention has a baseline, which the soft attention it starts from has not.
    buffers = model_folder.unique_weights(model).keys() - dict(model.named_parameters()).keys()
    weights = {name: model.get_buffer(name) for name in buffers} | model_folder.load_tensors(other, "model.safetensors")
    try:
        model_folder.load_weights(model, weights, str(other), parts)
    except ModelError as error:
        raise RunError(
            f"training.start_from: {error}. The model section must equal that model's, and so must the vocabulary "
            "(without tokenizer.load its tokenizers are used); with training.start_parts only those parts must"
        ) from None


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
