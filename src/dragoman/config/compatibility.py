"""Which whole shapes there are, and what the parts of a config must be to make one.

shape                   encoder         decoder | head                     objective
encoder-decoder         any             decoder, any                       pairs, denoising, span_corruption, prefix
one network             none            decoder with source: prefix        pairs, prefix
prefix language model   none            decoder with source: full_prefix   pairs, prefix, unilm
language model          none            decoder with source: prefix        lm
classifier              any             head: classifier                   labels
tagger                  any             head: tagger                       tags
masked language model   any             head: tagger                       masked

With two sources (model.second_source) it is an encoder-decoder whose decoder attends to the source, or a classifier.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dragoman.core.errors import PartError
from dragoman.core.registry import Part
from dragoman.core.types import PAD, Batch, Modality
from dragoman.data.objectives import Objective, objectives
from dragoman.nn.frontends import frontends

if TYPE_CHECKING:
    from torch import Tensor

# The ways in which one network reads source and target, and what an objective needs each for.
PREFIXES = {"prefix": "reads from left to right alone", "full_prefix": "sees words from both sides"}
TOKENS = 256  # of a source that is a text, at most, where a config does not say


def problems(config: Any) -> Iterator[str]:
    """What does not go together, one sentence each."""
    model: Any = config.model
    name, source = config.training.objective.name, how_the_source_is_read(model)
    try:
        objective = objectives.build(config.training.objective)
    except PartError as error:  # it may refuse its own options
        yield f"training.objective: {error}"
        return
    if objective.paired and "target" not in config.data.columns:
        yield f"data.columns must name 'target' (several times for several targets), found {config.data.columns}"
    if not objective.paired and config.training.validate_metrics:
        yield f"training.validate_metrics needs pairs, but training.objective is {name}: leave it empty"
    yield from _vocabulary(config, name, objective.joint or not objective.paired)
    yield from _head(model, name, objective)
    if objective.continues_text and model.pointer is not None:
        yield f"model.pointer copies from the source, but training.objective is {name}: set model.pointer to null"
    yield from _one_network(config.training.objective, objective.decoder_source, source)
    if source in PREFIXES and model.encoder.name != "none":
        yield f"model.decoder.source is {source}, so the decoder reads the source itself: set model.encoder to none"
    if source not in PREFIXES and model.encoder.name == "none" and model.decoder is not None:
        yield "model.encoder is none, so the decoder must read the source itself: set model.decoder.source to prefix"
    yield from _two_sources(config, objective, source)
    yield from _reach(config, objective, source)


def _one_network(part: Part, needed: str | None, source: str) -> Iterator[str]:
    """What reads source and target in one way alone."""
    if needed is None or source == needed:
        return
    chosen = [key for key, value in part.options.items() if value is True]
    name = f"{part.name} with {' and '.join(chosen)}" if chosen else part.name
    if source in PREFIXES:
        yield f"training.objective is {name}, which {PREFIXES[needed]}: set model.decoder.source to {needed}"
    else:
        yield (
            f"training.objective is {name}, so there is one network and no source apart: "
            f"set model.encoder to none and model.decoder.source to {needed}"
        )


def _two_sources(config: Any, objective: Objective, source: str) -> Iterator[str]:
    """What reads two sources, and what cannot."""
    if config.model.second_source is None:
        if "second_source" in config.data.columns:
            yield "data.columns names 'second_source', but model.second_source is null: set it, or write '-' there"
        return
    if "second_source" not in config.data.columns:
        yield f"model.second_source is set, but data.columns does not name 'second_source': {config.data.columns}"
    if not objective.paired or objective.token_labels:
        yield "model.second_source needs an objective with a target alone: set training.objective to pairs or labels"
    if source in PREFIXES:
        yield f"model.second_source cannot be read as a prefix: set model.decoder.source to attention, not {source}"
    if config.model.second_source.encoder.name == "none":
        yield "model.second_source.encoder is none, and no decoder reads a second source itself: set it to identity"


def how_the_source_is_read(model: Any) -> str:
    return str(model.decoder.options.get("source", "attention")) if model.decoder is not None else ""


def _vocabulary(config: Any, name: str, joint: bool) -> Iterator[str]:
    model: Any = config.model
    if config.tokenizer.joint or config.tokenizer.load or config.training.start_from:
        return
    if model.tie in ("all", "embeddings"):
        yield f"model.tie is '{model.tie}', but tokenizer.joint is false: for one table set tokenizer.joint to true"
    if joint:
        yield f"training.objective is {name}, so source and target are of one kind: set tokenizer.joint to true"
    if model.pointer is not None:
        yield "model.pointer needs one vocabulary for both sides: set tokenizer.joint to true"


def _head(model: Any, name: str, objective: Objective) -> Iterator[str]:
    head = model.head.name if model.head is not None else None
    needed = objective.head
    if needed is not None and head != needed:
        yield (
            f"training.objective is {name}, which an encoder answers alone: "
            f"set model.head to {needed} and model.decoder to null"
        )
    if needed is None and head is not None:
        kinds: dict[str, Any] = {other: objectives[other] for other in objectives.names}
        fitting = " or ".join(other for other, kind in kinds.items() if kind.head == head)
        yield f"model.head is {head}, but training.objective is {name}: it must be {fitting or 'one with this head'}"
    if objective.one_table and model.tie not in ("all", "embeddings"):
        yield f"training.objective is {name}, so one table of embeddings serves the whole text: set model.tie to all"


def _reach(config: Any, objective: Objective, source: str) -> Iterator[str]:
    """Positions that end must reach as far as the data does."""
    model: Any = config.model
    together = source in PREFIXES and not objective.continues_text  # whose text is all target
    sizes, most = config.data.max_target, max_source_length(config)
    first = vectors(model.frontend, most)
    limits = {
        "encoder": (f"data.max_source is {most}", first),
        "decoder": (f"data.max_source + data.max_target is {most + sizes}", first + sizes)
        if together
        else (f"data.max_target is {sizes}", sizes),
    }
    parts = {side: getattr(model, side) for side in limits}
    if model.second_source is not None:
        parts["second_source.encoder"] = model.second_source.encoder
        limits["second_source.encoder"] = limits["encoder"][0], vectors(model.second_source.frontend, most)
    for side, (found, limit) in limits.items():
        part = parts[side]
        position = part.options.get("position") if part is not None else None
        reach = position.options.get("length") if isinstance(position, Part) else None
        if reach is not None and reach < limit:
            yield f"{found}, but model.{side}.position reaches only {reach} tokens: raise its length to {limit}"


def max_source_length(config: Any) -> int:
    """The most positions that a source may have in training: data.max_source, where the config says it.

    Else TOKENS, or what is usual for the files that are read, whichever is more. With 256 for all, a set of read
    speech, a hundred frames a second, would lose all utterances of more than 2.6 s.
    """
    given: int | None = config.data.max_source
    if given is not None:
        return given
    second = [] if config.model.second_source is None else [config.model.second_source.frontend]
    kinds: list[tuple[Any, Part]] = [(frontends[part.name], part) for part in (config.model.frontend, *second)]
    return max([TOKENS, *(int(kind.longest(part.options)) for kind, part in kinds)])


def vectors(frontend: Part, length: int) -> int:
    """The most vectors that an encoder reads of a source of so many positions."""
    kind: Any = frontends[frontend.name]
    return int(kind.most(frontend.options, length))


def rehearsal(config: Any, modality: Modality | None = None, second_source: Modality | str | None = None) -> Batch:
    """A tiny batch of the kind a config trains on."""
    import torch

    objective = objectives.build(config.training.objective)
    ids, lengths = torch.tensor([[4, 5, 2], [6, 2, PAD]]), torch.tensor([3, 2])
    source, sizes, asked = ids, lengths, objective.token_labels
    if objective.empty_source:
        source, sizes = ids[:, :0], lengths * 0
    if modality is not None:
        source, sizes, asked = *blanks(modality), False
    batch = Batch(source, sizes, ids, lengths, token_labels=ids if asked else None)
    if second_source is not None:
        batch.second_source, batch.second_source_lengths = (
            (ids, lengths) if isinstance(second_source, str) else blanks(second_source)
        )
    return batch


def blanks(modality: Modality) -> tuple[Tensor, Tensor]:
    """Two sources with nothing in them, and their lengths."""
    import torch

    blank = torch.from_numpy(modality.blank())
    return torch.stack([blank, blank]), torch.tensor([len(blank)] * 2)
