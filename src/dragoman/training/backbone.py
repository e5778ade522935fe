"""Weights that another library trained, put into a part of a new model before training begins.

    name in the file ─map: the beginning of a name → another beginning→ name in the model

    training:
      backbone: {file: resnet18.safetensors, map: {"": frontend.net}}

Of a file some weights may be left over (the classifier of a ResNet, or its last stage). But the model may not lack any:
all that stands below a place of the map must be in the file, and in its shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from dragoman.checkpoint import model_folder
from dragoman.config import Backbone
from dragoman.core.errors import ModelError, RunError

SHOWN = 4  # names in a message


def load(model: nn.Module, options: Backbone) -> list[str]:
    """Fill the parts of a model that the map names; returns the names of the file that nothing was done with."""
    path = Path(options.file)
    if not path.is_file():
        raise RunError(f"training.backbone.file: there is no file '{path}'; name a safetensors file with weights")
    try:
        found = model_folder.tensors(path.parent, path.name)
    except ModelError as error:
        raise RunError(f"training.backbone.file: {error}; a checkpoint in another form must be saved as one") from None
    own = model_folder.unique_weights(model)
    renamed = rename(found, options.map)
    wanted = {name: x for name, x in own.items() if any(below(name, place) for place in options.map.values())}
    problems = [
        f"no weight of the model stands below '{place}'"
        for place in options.map.values()
        if not any(below(name, place) for name in own)
    ]
    problems += [f"'{name}' is missing" for name in wanted if name not in renamed]
    problems += [
        f"'{renamed[name]}' is {tuple(found[renamed[name]].shape)}, but '{name}' of the model is {tuple(x.shape)}"
        for name, x in wanted.items()
        if name in renamed and found[renamed[name]].shape != x.shape
    ]
    if problems:
        more = f" and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
        raise RunError(
            f"training.backbone: {options.file} does not fit: {'; '.join(problems[:SHOWN])}{more}. The file begins "
            f"with {', '.join(list(found)[:2])}; set model.frontend to the same sizes, and backbone.map to its names"
        )
    with torch.no_grad():
        for name, x in wanted.items():
            x.copy_(found[renamed[name]])
    return [name for name in found if name not in {renamed[name] for name in wanted}]


def rename(found: Mapping[str, Tensor], places: Mapping[str, str]) -> dict[str, str]:
    """Name in the model → name in the file; the longest beginning that fits a name decides."""
    renamed = {}
    for name in found:
        fitting = [beginning for beginning in places if below(name, beginning)]
        if fitting:
            beginning = max(fitting, key=len)
            renamed[f"{places[beginning]}.{name.removeprefix(beginning).removeprefix('.')}"] = name
    return renamed


def below(name: str, place: str) -> bool:
    """Whether a name stands below a place, as layer1.0.weight below layer1; all do below ''."""
    return not place or name.startswith(f"{place}.")
