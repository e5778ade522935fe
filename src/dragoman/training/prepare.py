"""From the files a config names to what a training loop reads: tokenizers, token stores, validation examples."""

from __future__ import annotations

import hashlib
import heapq
import itertools
import json
import os
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from dragoman import config as configs
from dragoman.checkpoint import model_folder
from dragoman.config import Config, compatibility
from dragoman.core.errors import DataError, RunError
from dragoman.core.types import Example, Modality
from dragoman.data.objectives import Objective, objectives
from dragoman.data.quality.diagnosis import check
from dragoman.data.readers import files_of, read_pairs, reader_of
from dragoman.data.store import cache as caching
from dragoman.data.store.store import Store
from dragoman.modalities.archives import behind, called_archive, check_places
from dragoman.text import codec as codecs
from dragoman.text.codec import Codec, Reader, copies, reads_text, tags
from dragoman.text.normalization import normalize
from dragoman.text.tokenizers import tokenizers

LEARN_FROM = 5_000_000  # lines that tokenizers are learned from at most
SAMPLE_SEED = 1  # not the config's: runs that differ in their seed are measured on the same examples


@dataclass
class Prepared:
    """What training reads."""

    codec: Codec
    objective: Objective
    corpora: list[tuple[Store, float]]
    valid: Store | None = None
    examples: list[Example] = field(default_factory=list)  # a sample of the validation set, as text, to decode


def examine(config: Config) -> Iterator[str]:
    """The fast part of the data doctor: errors stop, everything else is a line to show."""
    data = config.data
    check_places(data.files)
    valid = [data.valid] if data.valid else []
    report = check(
        [c.path for c in data.train], valid, columns=config.columns, normalization=data.normalization, fast=True
    )
    errors = [finding for finding in report.findings if finding.severity == "error"]
    if errors and data.on_error == "stop":
        errors.sort(key=lambda finding: not finding.places)  # one that says where is the most help
        first = errors[0]
        file = first.places[0].rsplit(":", 1)[0] if first.places else ""
        what = first.message.removeprefix(f"{file}: ")
        more = f" ({len(errors) - 1} more: dragoman data check shows all)" if len(errors) > 1 else ""
        known = not first.places or first.places[0] in what
        raise DataError(f"{what if known else f'{first.places[0]}: {what}'}{more}")
    silent = {"length-limits"}
    if configs.modality(config) is not None:  # the letters of a file's name, and how many, are nothing to learn from
        silent |= {"unseen-source", "length-ratio"}
    yield from (finding.message for finding in report.findings if finding.code not in silent)


def adopt(config: Config, other: Config) -> Config:
    """The config with the tokenizers, and the normalization before them, of another model's."""
    section = other.tokenizer.model_copy(update={"load": config.tokenizer.load})
    if reads_text(*readers(config)) and not reads_text(*readers(other)):
        # Where no source is a text there is one tokenizer, the target's: a language model of that reads and writes it.
        section = section.model_copy(update={"source": section.target or section.source, "target": None, "joint": True})
    data = config.data.model_copy(update={"normalization": other.data.normalization})
    return config.model_copy(update={"tokenizer": section, "data": data})


def readers(config: Config) -> tuple[Modality | None, Reader | None]:
    """What reads the first source of a config, and the second."""
    return configs.modality(config), configs.second_source(config)


def with_readers(codec: Codec, config: Config) -> Codec:
    """The tokenizers of another model, and what reads this config's own files."""
    modality, second = readers(config)
    source = codec.source if reads_text(modality, second) else codec.target
    return replace(codec, source=source, modality=modality, second_source=second)


def settled(config: Config) -> Config:
    """The config with the length of sources that it leaves open, so that the run keeps what it began with."""
    data = config.data.model_copy(update={"max_source": compatibility.max_source_length(config)})
    return config.model_copy(update={"data": data})


def open_codec(config: Config) -> tuple[Codec, Config]:
    """The tokenizers of this run: those of another model, or learned now; and the config that says so.

    A tokenizer that the config names for the target is learned anew in any case: labels need not be words.
    """
    other = config.tokenizer.load or config.training.start_from
    if other is not None:
        model = model_folder.load(other)
        if config.tokenizer.target is not None and not config.tokenizer.joint:
            return with_new_target(config, model)
        config = adopt(config, model.config)
        if getattr(config.model, "tie", None) == "all" and not config.tokenizer.joint:
            raise RunError(f"model.tie is 'all', but the tokenizers of {other} are two; one table needs one vocabulary")
        return with_readers(model.codec, config), config

    languages = {tag for corpus in config.data.train for example in pairs(config, corpus.path) for tag in tags(example)}
    options, shape = config.tokenizer, config.model
    count = (16 if getattr(shape, "pointer", None) else 0) if options.copies is None else options.copies
    extra = [*objectives.build(config.training.objective).symbols, *copies(count), *sorted(languages)]
    modality, second = readers(config)
    sources = [lines(config, lambda example: example.source)] if modality is None else []
    sources += [lines(config, lambda example: example.second_source)] if second == "text" else []
    codec = codecs.learn(
        options.source,
        options.target or options.source,
        options.joint,
        config.data.normalization,
        itertools.chain(*sources),
        lines(config, lambda example: example.target or ""),
        extra,
        modality,
        second,
    )
    return codec, config


def lines(config: Config, side: Callable[[Example], str]) -> Iterator[str]:
    """One side of the training pairs, as far as tokenizers are learned from it."""
    examples = itertools.chain.from_iterable(one_by_one(pairs(config, corpus.path)) for corpus in config.data.train)
    return (side(example) for example in itertools.islice(examples, LEARN_FROM) if not example.source_truncated)


def with_new_target(config: Config, model: model_folder.Model) -> tuple[Codec, Config]:
    """The source's tokenizer of another model, and one for the target learned now."""
    assert config.tokenizer.target is not None
    adopted = adopt(config, model.config)
    section = adopted.tokenizer.model_copy(update={"target": config.tokenizer.target, "joint": False})
    target = tokenizers.build(config.tokenizer.target)
    form = adopted.data.normalization
    target.learn(normalize(line, form) for line in lines(config, lambda example: example.target or ""))
    source = model.codec.source if reads_text(model.codec.modality, model.codec.second_source) else target
    codec = with_readers(replace(model.codec, source=source, target=target), config)
    return codec, adopted.model_copy(update={"tokenizer": section})


def prepare(config: Config, codec: Codec, cache: Path) -> Prepared:
    """Token stores of all corpora (from the cache where they were built before) and the validation examples."""
    objective = objectives.build(config.training.objective)
    objective.prepare(codec)

    def store(path: str, keep_text: bool) -> Store:
        reading = [
            type(reader_of(path)).__name__,
            config.columns,
            config.data.on_error,
            kind,
            *held(config, path, cache),
        ]
        return caching.prepare(
            files_of(path),
            lambda: one_by_one(pairs(config, path)),
            codec,
            cache,
            max_source=compatibility.max_source_length(config),
            max_target=config.data.max_target,
            keep_text=keep_text,
            reading=json.dumps(reading),
            objective=objective,
        )

    # What a store leaves out depends on the objective's options too: how long its rows may become, for one.
    part = config.training.objective
    kind = sorted(part.plain().items()) if part.options else part.name
    corpora = [(store(corpus.path, codec.samples), corpus.weight) for corpus in config.data.train]
    prepared = Prepared(codec, objective, corpora)
    if config.data.valid is not None:
        prepared.valid = store(config.data.valid, False)
        if config.training.validate_metrics:
            prepared.examples = sample(
                pairs(config, config.data.valid),
                config.training.validate_examples,
                lambda example: is_readable(example, codec),
            )
    return prepared


def held(config: Config, path: str, cache: Path) -> list[str]:
    """What is in the files that the sources of a corpus name; nothing where no source is a file."""
    modality, second = readers(config)
    reads = {"source": modality is not None, "second_source": second not in (None, "text")}
    if not any(reads.values()):
        return []
    named: dict[str, list[str]] = {}
    for example in pairs(config, path):
        for name in (getattr(example, side) for side, asked in reads.items() if asked):
            if name not in named:
                named[name] = behind(replace(example, source=name), config.data.files)
    every = dict.fromkeys(itertools.chain(*named.values(), filter(os.path.isfile, config.data.files)))
    archives = [file for file in every if called_archive(file)]
    there = json.dumps([[os.path.basename(file) for file in found] for found in named.values()])
    return [
        caching.fingerprint([Path(file) for file in archives], cache),
        caching.fingerprint_of_many([file for file in every if not called_archive(file)], cache),
        hashlib.sha256(there.encode()).hexdigest(),
    ]


def pairs(config: Config, path: str) -> Iterator[Example]:
    """The pairs of a file; further columns of a validation set are further references."""
    several = path == config.data.valid
    several = several and config.columns.count("target") > 0
    return read_pairs(path, columns=config.columns, extra_targets=several, on_error=config.data.on_error)


def sample(
    examples: Iterable[Example], count: int, is_usable: Callable[[Example], bool], seed: int = SAMPLE_SEED
) -> list[Example]:
    """At most `count` usable examples, each as likely as any other, in their order; always the same for one seed.

    Every example draws a random key and those with the smallest are kept, so that memory does not grow with the set
    and `is_usable` is asked only of what would be kept: about count × (1 + ln(all / count)) examples.
    """
    rng = random.Random(seed)
    kept: list[tuple[float, int, Example]] = []  # a heap with the largest key, negated, at its root
    for number, example in enumerate(examples):
        entry = (-rng.random(), number, example)
        if (len(kept) == count and entry < kept[0]) or not is_usable(example):
            continue
        if len(kept) < count:
            heapq.heappush(kept, entry)
        else:
            heapq.heapreplace(kept, entry)
    return [example for _, _, example in sorted(kept, key=lambda entry: entry[1])]


def is_readable(example: Example, codec: Codec) -> bool:
    """Whether its files can be read: a store leaves others out, and at a validation they would end the run."""
    try:
        if codec.modality is not None:
            codec.encode_source(example)
        if (codec.second_source or "text") != "text":
            codec.encode_second_source(example)
    except DataError:
        return False
    return True


def one_by_one(examples: Iterable[Example]) -> Iterator[Example]:
    """A pair of its own for each target that is accepted: all five captions of an image are learned from."""
    for example in examples:
        if len(example.references) < 2:
            yield example
        else:
            yield from (replace(example, target=target, references=()) for target in example.references)


def skipped(prepared: Prepared) -> Iterator[str]:
    """One sentence for every corpus of which something was left out."""
    named: Iterable[tuple[str, Store]] = [
        *((f"training corpus {i + 1}", store) for i, (store, _) in enumerate(prepared.corpora)),
        *([("validation set", prepared.valid)] if prepared.valid is not None else []),
    ]
    for name, store in named:
        if store.skipped:
            yield f"{name}: {len(store):,} pairs are used; left out: {store.why_skipped}"


def same_data(saved: list[str], prepared: Prepared, where: Path) -> None:
    """Refuse to go on with other data than a run began with."""
    if saved != fingerprints(prepared):
        raise RunError(
            f"{where}: the training or validation files changed since this run began, so it cannot be resumed exactly. "
            "Start a new run with --run DIR, or accept the change with --allow-change data"
        )


def fingerprints(prepared: Prepared) -> list[str]:
    every = [store for store, _ in prepared.corpora] + ([prepared.valid] if prepared.valid is not None else [])
    return [store.folder.name for store in every]
