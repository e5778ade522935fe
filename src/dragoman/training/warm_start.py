"""What a model begins with besides chance: the weights of another, all or some of them kept as they are.

Weights from elsewhere, under other names, are read by training/backbone.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dragoman.checkpoint import model_folder
from dragoman.core.errors import ModelError, RunError, UserError
from dragoman.nn.seq2seq import Seq2Seq


def start_from(model: Seq2Seq, path: Path, parts: Sequence[str]) -> None:
    """Take over the weights of another model, all or those of some parts; every one that does not fit is named.

    What is only counted along may be missing there and begins anew: hard attention, begun with soft attention's
    weights, has a baseline that those never needed.
    """
    other = model_folder.resolve(path)
    counted = model_folder.unique_weights(model).keys() - dict(model.named_parameters()).keys()
    weights = {name: model.get_buffer(name) for name in counted} | model_folder.tensors(other, "model.safetensors")
    try:
        model_folder.fill(model, weights, str(other), parts)
    except ModelError as error:
        raise RunError(
            f"training.start_from: {error}. The model section must equal that model's, and so must the vocabulary "
            "(without tokenizer.load its tokenizers are taken over); with training.start_parts only those parts must"
        ) from None


def freeze(model: Seq2Seq, prefixes: Sequence[str]) -> None:
    """Parameters whose name begins with one of the prefixes are not trained."""
    names = [name for name, _ in model.named_parameters()]
    for prefix in prefixes:
        hit = [name for name in names if name == prefix or name.startswith(prefix + ".")]
        if not hit:
            parts = sorted({name.split(".")[0] for name in names})
            raise UserError(f"training.freeze: no parameter begins with '{prefix}' (there is {', '.join(parts)}, …)")
        for name in hit:
            model.get_parameter(name).requires_grad_(False)
    if not any(p.requires_grad for p in model.parameters()):
        raise UserError("training.freeze: every parameter is frozen, so there is nothing to train")
