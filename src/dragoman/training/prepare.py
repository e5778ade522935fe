"""From the data files of a config to the data of a training: the data check, token stores, validation examples."""

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

from dragoman.checkpoint import kept_examples
from dragoman.config import Config, compatibility, source_readers
from dragoman.core.errors import DataError
from dragoman.core.types import Example
from dragoman.data.objectives import Objective, objectives
from dragoman.data.quality.diagnosis import check_pairs
from dragoman.data.readers import find_reader, read_pairs, spec_files
from dragoman.data.store import cache as caching
from dragoman.data.store.store import TokenStore
from dragoman.modalities.archives import check_search_paths, has_archive_suffix, source_files
from dragoman.text.codec import Codec

SAMPLE_SEED = 1  # not the config's: runs with different seeds are validated on the same examples


@dataclass
class TrainingData:
    """The data of a run as the training loop reads it."""

    codec: Codec
    objective: Objective
    corpora: list[tuple[TokenStore, float]]  # with their weights
    valid: TokenStore | None = None
    examples: list[Example] = field(default_factory=list)  # a sample of the validation set, as text, to decode
    kept_examples: list[Example] = field(default_factory=list)  # a few of it, which every checkpoint holds

    @property
    def fingerprints(self) -> list[str]:
        """What tells the data of two runs apart: the names of the stores, which are hashes."""
        stores = [store for store, _ in self.corpora] + ([self.valid] if self.valid is not None else [])
        return [store.folder.name for store in stores]


def check_data(config: Config, on_example: Callable[[Example], None] | None = None) -> Iterator[str]:
    """The fast data check: raises an error that must be mended, and yields every other finding as a sentence."""
    data = config.data
    check_search_paths(data.files)
    valid = [data.valid] if data.valid else []
    report = check_pairs(
        [corpus.path for corpus in data.train],
        valid,
        columns=config.columns,
        normalization=data.normalization,
        fast=True,
        on_train_example=on_example,
        on_error=data.on_error,
    )
    errors = [finding for finding in report.findings if finding.severity == "error"]
    if errors and data.on_error == "stop":
        errors.sort(key=lambda finding: not finding.locations)  # an error with a line number helps most
        first = errors[0]
        file = first.locations[0].rsplit(":", 1)[0] if first.locations else ""
        message = first.message.removeprefix(f"{file}: ")
        more = f" ({len(errors) - 1} more: dragoman data check shows all)" if len(errors) > 1 else ""
        has_location = not first.locations or first.locations[0] in message
        raise DataError(f"{message if has_location else f'{first.locations[0]}: {message}'}{more}")
    ignored = {"length-limits"}
    if source_readers(config)[0] is not None:  # a source is the name of a file
        ignored |= {"unseen-source", "length-ratio"}
    yield from (finding.message for finding in report.findings if finding.code not in ignored)


def resolve_max_source(config: Config) -> Config:
    """The config with an explicit data.max_source, so that a resumed run keeps the default it was started with."""
    data = config.data.model_copy(update={"max_source": compatibility.max_source_length(config)})
    return config.model_copy(update={"data": data})


def prepare_data(config: Config, codec: Codec, cache: Path) -> TrainingData:
    """Open or build the token stores of all corpora, and sample the validation examples where metrics need them."""
    objective = objectives.build(config.training.objective)
    objective.bind_codec(codec)

    def store(path: str, keep_text: bool) -> TokenStore:
        read_key = [
            find_reader(path).read_key(path),
            config.columns,
            config.data.on_error,
            objective_key,
            *media_fingerprints(config, path, cache),
        ]
        return caching.open_or_build(
            spec_files(path),
            lambda: expand_references(read_examples(config, path)),
            codec,
            cache,
            max_source=compatibility.max_source_length(config),
            max_target=config.data.max_target,
            keep_text=keep_text,
            read_key=json.dumps(read_key),
            objective=objective,
        )

    # The pairs that a store leaves out depend on the objective's options: how long its rows may become, for example.
    part = config.training.objective
    objective_key = sorted(part.to_mapping().items()) if part.options else part.name
    corpora = [(store(corpus.path, codec.is_stochastic), corpus.weight) for corpus in config.data.train]
    data = TrainingData(codec, objective, corpora)
    if config.data.valid is not None:
        data.valid = store(config.data.valid, False)
        if config.training.validate_metrics:
            data.examples = sample_examples(
                read_examples(config, config.data.valid),
                config.training.validate_examples,
                lambda example: is_readable(example, codec),
            )
        few = sample_examples(
            read_examples(config, config.data.valid), kept_examples.MAX_EXAMPLES, kept_examples.is_worth_keeping
        )
        data.kept_examples = kept_examples.without_files(few, codec, continues_text=objective.continues_text)
    return data


def media_fingerprints(config: Config, path: str, cache: Path) -> list[str]:
    """Hashes of the files (images, sounds …) that the sources of a corpus name; none where all sources are text."""
    first, second = source_readers(config)
    are_media = {"source": first is not None, "second_source": second not in (None, "text")}
    sides = [side for side, is_media in are_media.items() if is_media]
    if not sides:
        return []
    files_by_name: dict[str, list[str]] = {}
    for example in read_examples(config, path):
        for name in (getattr(example, side) for side in sides):
            if name not in files_by_name:
                files_by_name[name] = source_files(replace(example, source=name), config.data.files)
    every = dict.fromkeys(itertools.chain(*files_by_name.values(), filter(os.path.isfile, config.data.files)))
    archives = [file for file in every if has_archive_suffix(file)]
    base_names = json.dumps([[os.path.basename(file) for file in files] for files in files_by_name.values()])
    return [
        caching.hash_files(archives, cache),
        caching.hash_files([file for file in every if not has_archive_suffix(file)], cache),
        hashlib.sha256(base_names.encode()).hexdigest(),
    ]


def read_examples(config: Config, path: str) -> Iterator[Example]:
    """Read the pairs of a file; of the validation set, additional columns are further references."""
    extra_targets = path == config.data.valid and "target" in config.columns
    return read_pairs(path, columns=config.columns, extra_targets=extra_targets, on_error=config.data.on_error)


def sample_examples(
    examples: Iterable[Example], count: int, is_usable: Callable[[Example], bool], seed: int = SAMPLE_SEED
) -> list[Example]:
    """Sample `count` usable examples uniformly, in their order; the same ones for the same seed.

    Every example draws a random key, and those with the smallest keys are kept. So memory does not grow with the set,
    and `is_usable` is called only for examples that would be kept: about count × (1 + ln(all / count)).
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
    """Whether the files that an example names as sources can be read; one that cannot would end a validation."""
    try:
        if codec.modality is not None:
            codec.encode_source(example)
        if (codec.second_source or "text") != "text":
            codec.encode_second_source(example)
    except DataError:
        return False
    return True


def expand_references(examples: Iterable[Example]) -> Iterator[Example]:
    """Yield a pair for each reference of an example, or the example itself if there are fewer than two."""
    for example in examples:
        if len(example.references) < 2:
            yield example
        else:
            yield from (replace(example, target=target, references=()) for target in example.references)


def skipped_notices(data: TrainingData) -> Iterator[str]:
    """A sentence for every corpus with pairs that are left out."""
    stores = [(f"training corpus {i + 1}", store) for i, (store, _) in enumerate(data.corpora)]
    stores += [("validation set", data.valid)] if data.valid is not None else []
    for name, store in stores:
        if store.skipped:
            yield f"{name}: {len(store):,} pairs are used; left out: {store.skip_summary}"
