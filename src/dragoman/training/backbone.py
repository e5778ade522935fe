"""Initialize a part of a new model with weights that another library trained.

    name in the file ─map: prefix in the file → prefix in the model→ name in the model

    training:
      backbone: {file: resnet18.safetensors, map: {"": frontend.net}}

Weights of the file may be left over (the classifier of a ResNet, or its last stage). But the model may not lack any:
every weight below a prefix of the map must be in the file, and have its shape.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from torch import nn

from dragoman.checkpoint import model_folder
from dragoman.config import Backbone
from dragoman.core.errors import ModelError, RunError

MAX_PROBLEMS = 4  # named in an error


def load_backbone(model: nn.Module, options: Backbone) -> list[str]:
    """Load pretrained weights into the parts of a model that the map names; returns the unused names of the file."""
    path = Path(options.file)
    if not path.is_file():
        raise RunError(f"training.backbone.file: there is no file '{path}'; name a safetensors file with weights")
    try:
        pretrained = model_folder.load_tensors(path.parent, path.name)
    except ModelError as error:
        raise RunError(f"training.backbone.file: {error}; convert the checkpoint to safetensors") from None
    own = model_folder.unique_weights(model)
    file_names = map_names(pretrained, options.map)
    filled = {name: x for name, x in own.items() if any(is_below(name, prefix) for prefix in options.map.values())}
    problems = [
        f"no weight of the model is below '{prefix}'"
        for prefix in options.map.values()
        if not any(is_below(name, prefix) for name in own)
    ]
    problems += [f"'{name}' is missing" for name in filled if name not in file_names]
    problems += [
        f"'{file_names[name]}' is {tuple(pretrained[file_names[name]].shape)}, "
        f"but '{name}' of the model is {tuple(x.shape)}"
        for name, x in filled.items()
        if name in file_names and pretrained[file_names[name]].shape != x.shape
    ]
    if problems:
        more = f" and {len(problems) - MAX_PROBLEMS} more" if len(problems) > MAX_PROBLEMS else ""
        raise RunError(
            f"training.backbone: {options.file} does not fit: {'; '.join(problems[:MAX_PROBLEMS])}{more}. The file "
            f"begins with {', '.join(list(pretrained)[:2])}; set model.frontend to the same sizes, and backbone.map to "
            "its names"
        )
    with torch.no_grad():
        for name, x in filled.items():
            x.copy_(pretrained[file_names[name]])
    used = {file_names[name] for name in filled}
    return [name for name in pretrained if name not in used]


def map_names(file_names: Iterable[str], prefixes: Mapping[str, str]) -> dict[str, str]:
    """Name in the model → name in the file; of several prefixes that fit a name, the longest is replaced."""
    mapped = {}
    for name in file_names:
        fitting = [prefix for prefix in prefixes if is_below(name, prefix)]
        if fitting:
            prefix = max(fitting, key=len)
            mapped[f"{prefixes[prefix]}.{name.removeprefix(prefix).removeprefix('.')}"] = name
    return mapped


def is_below(name: str, prefix: str) -> bool:
    """Whether a weight belongs to a module, as layer1.0.weight to layer1; every weight belongs to ''."""
    return not prefix or name.startswith(f"{prefix}.")
