"""Initial weights from another Dragoman model, and frozen parameters.

training/backbone.py reads weights of other libraries, under other names.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dragoman.checkpoint import model_folder
from dragoman.core.errors import ModelError, RunError, UserError
from dragoman.nn.seq2seq import Seq2Seq


def load_initial_weights(model: Seq2Seq, path: Path, parts: Sequence[str]) -> None:
    """Copy the weights of another model, or only those below the names in `parts`; an error names what does not fit.

    Buffers may be missing there and keep their initial values: hard attention that starts from soft attention's
    weights has a baseline that soft attention does not.
    """
    other = model_folder.resolve(path)
    buffers = model_folder.unique_weights(model).keys() - dict(model.named_parameters()).keys()
    weights = {name: model.get_buffer(name) for name in buffers} | model_folder.load_tensors(other, "model.safetensors")
    try:
        model_folder.load_weights(model, weights, str(other), parts)
    except ModelError as error:
        raise RunError(
            f"training.start_from: {error}. The model section must equal that model's, and so must the vocabulary "
            "(without tokenizer.load its tokenizers are used); with training.start_parts only those parts must"
        ) from None


def freeze_parameters(model: Seq2Seq, prefixes: Sequence[str]) -> None:
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
