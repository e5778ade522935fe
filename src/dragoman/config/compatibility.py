"""Which parts of a model go together: the model families, and what the parts of a config must be to form one.

family                  encoder         decoder | head                     objective
encoder-decoder         any             decoder, any                       pairs, denoising, span_corruption, prefix
decoder-only            none            decoder with source: prefix        pairs, prefix
prefix language model   none            decoder with source: full_prefix   pairs, prefix, unilm
language model          none            decoder with source: prefix        lm
classifier              any             head: classifier                   labels
tagger                  any             head: tagger                       tags
masked language model   any             head: tagger                       masked

With two sources (model.second_source) it is an encoder-decoder whose decoder attends to the source, or a classifier.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dragoman.core.errors import PartError
from dragoman.core.registry import Part
from dragoman.core.types import PAD, Batch, Modality
from dragoman.data.objectives import Objective, objectives
from dragoman.nn.frontends import frontend_class
from dragoman.text.frozen_tokenizer import FrozenTokenizer
from dragoman.text.tokenizers import tokenizers

if TYPE_CHECKING:
    from dragoman.config.schema import Config, ModelOptions

# How a decoder-only model reads its source, and what an objective needs each for.
PREFIXES = {"prefix": "reads from left to right only", "full_prefix": "sees words from both sides"}
PARTS_WITHOUT_LAYERS = ("none", "identity")
MAX_SOURCE_TOKENS = 256  # of a text, where a config does not set data.max_source


def find_problems(config: Config) -> Iterator[str]:
    """Yield a sentence for each thing in a config that does not go together."""
    model = config.model
    name, source = config.training.objective.name, source_mode(model)
    try:
        objective = objectives.build(config.training.objective)
    except PartError as error:  # it may refuse its own options
        yield f"training.objective: {error}"
        return
    if objective.is_paired and "target" not in config.data.columns:
        yield f"data.columns must name 'target' (several times for several targets), found {config.data.columns}"
    if not objective.is_paired and config.training.validate_metrics:
        yield f"training.validate_metrics needs pairs, but training.objective is {name}: leave it empty"
    yield from _vocabulary_problems(config, name, objective.needs_joint_vocabulary or not objective.is_paired)
    yield from _extension_problems(config)
    yield from _head_problems(model, name, objective)
    if objective.continues_text and model.pointer is not None:
        yield f"model.pointer copies from the source, but training.objective is {name}: set model.pointer to null"
    yield from _decoder_only_problems(config.training.objective, objective.decoder_source, source)
    if source in PREFIXES and model.encoder.name != "none":
        yield f"model.decoder.source is {source}, so the decoder reads the source itself: set model.encoder to none"
    if source not in PREFIXES and model.encoder.name == "none" and model.decoder is not None:
        yield "model.encoder is none, so the decoder must read the source itself: set model.decoder.source to prefix"
    yield from _second_source_problems(config, objective, source)
    yield from _position_problems(config, objective, source)
    yield from _block_problems(config)
    if config.runtime.sharding != "none":
        yield from _sharding_problems(config)


def _block_problems(config: Config) -> Iterator[str]:
    """Yield a problem for each part without blocks, where runtime options work on blocks."""
    model, runtime = config.model, config.runtime
    parts = {"encoder": model.encoder, "decoder": model.decoder}
    if model.second_source is not None:
        parts["second_source.encoder"] = model.second_source.encoder
    for key, off in {"sharding": "none", "activation_checkpointing": False}.items():
        if (value := getattr(runtime, key)) == off:
            continue
        for name, part in parts.items():
            if part is not None and part.name not in ("transformer", *PARTS_WITHOUT_LAYERS):
                yield (
                    f"runtime.{key} is {str(value).lower()}, which works on Transformer blocks, but model.{name} is "
                    f"{part.name}: set runtime.{key} to {str(off).lower()}"
                )


def _sharding_problems(config: Config) -> Iterator[str]:
    """Yield what needs whole weights on every rank, or would let the ranks run different blocks."""
    training, model = config.training, config.model
    full = "runtime.sharding is full"
    if training.adapter is not None:
        yield f"{full}, but the matrices of training.adapter fit on every rank: set runtime.sharding to none"
    if training.optimizer.name == "adafactor":
        yield f"{full}, but training.optimizer adafactor needs whole matrices: set training.optimizer to adamw"
    if training.scheduled_sampling.name != "teacher_forcing":
        yield f"{full}, and samples need whole weights: set training.scheduled_sampling to teacher_forcing"
    for name, part in {"encoder": model.encoder, "decoder": model.decoder}.items():
        if part is not None and part.options.get("layer_drop"):
            yield f"{full}, so all ranks must run the same blocks: set model.{name}.layer_drop to 0"


def _decoder_only_problems(part: Part, needed: str | None, source: str) -> Iterator[str]:
    """Yield a problem if an objective needs the decoder source `needed`, and the model has another."""
    if needed is None or source == needed:
        return
    chosen = [key for key, value in part.options.items() if value is True]
    name = f"{part.name} with {' and '.join(chosen)}" if chosen else part.name
    if source in PREFIXES:
        yield f"training.objective is {name}, which {PREFIXES[needed]}: set model.decoder.source to {needed}"
    else:
        yield (
            f"training.objective is {name}, which needs a decoder-only model: "
            f"set model.encoder to none and model.decoder.source to {needed}"
        )


def _second_source_problems(config: Config, objective: Objective, source: str) -> Iterator[str]:
    """Yield what a model with a second source lacks, or a column of second sources without such a model."""
    if config.model.second_source is None:
        if "second_source" in config.data.columns:
            yield "data.columns names 'second_source', but model.second_source is null: set it, or write '-' there"
        return
    if "second_source" not in config.data.columns:
        yield f"model.second_source is set, but data.columns does not name 'second_source': {config.data.columns}"
    if not objective.is_paired or objective.has_token_labels:
        yield "model.second_source needs an objective with a target alone: set training.objective to pairs or labels"
    if source in PREFIXES:
        yield f"model.second_source cannot be read as a prefix: set model.decoder.source to attention, not {source}"
    if config.model.second_source.encoder.name == "none":
        yield "model.second_source.encoder is none, and no decoder reads a second source itself: set it to identity"


def source_mode(model: ModelOptions) -> str:
    """Return how the decoder reads the source: attention, prefix or full_prefix; "" without a decoder."""
    return str(model.decoder.options.get("source", "attention")) if model.decoder is not None else ""


def _vocabulary_problems(config: Config, name: str, joint: bool) -> Iterator[str]:
    """Yield what needs one vocabulary for both sides (the objective, if `joint`) where there are two."""
    model = config.model
    if config.tokenizer.joint or config.tokenizer.load or config.training.start_from:
        return
    if model.tie in ("all", "embeddings") and not _is_frozen(
        config.tokenizer.source
    ):  # two files may have one vocabulary, as Marian's do
        yield f"model.tie is '{model.tie}', but tokenizer.joint is false: for one table set tokenizer.joint to true"
    if joint:
        yield f"training.objective is {name}, so source and target are of one kind: set tokenizer.joint to true"
    if model.pointer is not None:
        yield "model.pointer needs one vocabulary for both sides: set tokenizer.joint to true"


def _extension_problems(config: Config) -> Iterator[str]:
    """Yield what hinders the vocabulary of the model to start from to grow."""
    if config.model.extend is None:
        return
    if config.training.start_from is None:
        yield "model.extend adds to the vocabulary of training.start_from, which is missing; name a trained model there"
    if not config.model.output_bias:
        yield "model.extend needs model.output_bias: true, which keeps new tokens from being generated until learned"
    if config.training.adapter is not None:
        yield "model.extend adds rows to tables, which training.adapter keeps frozen: leave out one of the two"
    if config.tokenizer.target is not None and not config.tokenizer.joint and not _is_frozen(config.tokenizer.target):
        yield "model.extend keeps the tokenizers of start_from, and tokenizer.target learns one: leave it out"


def _is_frozen(part: Part) -> bool:
    """Whether a tokenizer is that of an imported model, which cannot be learned."""
    return issubclass(tokenizers[part.name], FrozenTokenizer)  # type: ignore[arg-type]


def _head_problems(model: ModelOptions, name: str, objective: Objective) -> Iterator[str]:
    """Yield a problem if the objective needs another head, or tied embeddings that the model does not have."""
    head = model.head.name if model.head is not None else None
    needed = objective.head
    if needed is not None and head != needed:
        yield (
            f"training.objective is {name}, which an encoder answers alone: "
            f"set model.head to {needed} and model.decoder to null"
        )
    if needed is None and head is not None:
        fitting = " or ".join(other for other in objectives.names if getattr(objectives[other], "head", None) == head)
        yield f"model.head is {head}, but training.objective is {name}: it must be {fitting or 'one with this head'}"
    if objective.shares_embeddings and model.tie not in ("all", "embeddings"):
        yield f"training.objective is {name}, so one table of embeddings serves the whole text: set model.tie to all"


def _position_problems(config: Config, objective: Objective, source: str) -> Iterator[str]:
    """Yield a problem for each side whose limited positions are fewer than the data's maximum length."""
    model = config.model
    shares_positions = source in PREFIXES and not objective.continues_text  # whose text is all target
    max_target, max_source = config.data.max_target, max_source_length(config)
    of_source, vectors = f"data.max_source is {max_source}", max_frontend_vectors(model.frontend, max_source)
    of_target, tokens = f"data.max_target is {max_target}", max_target
    if shares_positions:
        of_target, tokens = f"data.max_source + data.max_target is {max_source + max_target}", vectors + max_target
    sides = [("encoder", model.encoder, of_source, vectors), ("decoder", model.decoder, of_target, tokens)]
    if (second := model.second_source) is not None:
        vectors = max_frontend_vectors(second.frontend, max_source)
        sides.append(("second_source.encoder", second.encoder, of_source, vectors))
    for side, part, sentence, limit in sides:
        position = part.options.get("position") if part is not None else None
        length = position.options.get("length") if isinstance(position, Part) else None
        if length is not None and length < limit:
            yield f"{sentence}, but model.{side}.position has only {length} positions: raise its length to {limit}"


def max_source_length(config: Config) -> int:
    """Return the most source positions in training: data.max_source, or else the default of its modality."""
    if config.data.max_source is not None:
        return config.data.max_source
    second = [] if config.model.second_source is None else [config.model.second_source.frontend]
    parts = (config.model.frontend, *second)
    return max(MAX_SOURCE_TOKENS, *(frontend_class(part).default_max_length(part.options) for part in parts))


def max_frontend_vectors(frontend: Part, length: int) -> int:
    """Return the most vectors that a frontend makes of a source of `length` positions."""
    return frontend_class(frontend).max_vectors(frontend.options, length)


def rehearsal_batch(
    config: Config, modality: Modality | None = None, second_source: Modality | str | None = None
) -> Batch:
    """Build a tiny batch of two rows in the form that a config trains on."""
    objective = objectives.build(config.training.objective)
    ids, lengths = torch.tensor([[4, 5, 2], [6, 2, PAD]]), torch.tensor([3, 2])
    source, source_lengths, has_labels = ids, lengths, objective.has_token_labels
    if objective.has_empty_source:
        source, source_lengths = ids[:, :0], lengths * 0
    if modality is not None:
        source, source_lengths, has_labels = *blank_sources(modality), False
    batch = Batch(source, source_lengths, ids, lengths, token_labels=ids if has_labels else None)
    if second_source is not None:
        batch.second_source, batch.second_source_lengths = (
            (ids, lengths) if isinstance(second_source, str) else blank_sources(second_source)
        )
    return batch


def blank_sources(modality: Modality) -> tuple[Tensor, Tensor]:
    """Return two blank sources of a modality, stacked, and their lengths."""
    blank = torch.from_numpy(modality.blank())
    return torch.stack([blank, blank]), torch.tensor([len(blank)] * 2)
