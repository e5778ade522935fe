"""A converted copy of a model, which answers texts without importing torch.

    Pipeline ─write_converted→ ~/.cache/dragoman/converted/KEY/ ─open_converted→ ConvertedPipeline

    model.bin, config.json, *_vocabulary.json   the weights for CTranslate2
    *.tokenizer.*                               the tokenizers
    copy.json                                   how sources are read and searched, with the sizes and SHA-256 of the
                                                other files, and its own

Importing torch takes most of the time of a short `dragoman predict`. The copy is written at the first prediction that
CTranslate2 serves, and is used by later ones that ask for the same search. The key is what decides a model's results
(checkpoint/manifest.py), the precision and the versions, so a copy never goes stale; the model's own files are verified
all the same. Copies that were not used for longest are removed.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.checkpoint import manifest
from dragoman.core import files
from dragoman.core.errors import DragomanError
from dragoman.core.generation import GenerationOptions, length_bounds, scope_of
from dragoman.core.registry import Part
from dragoman.core.types import Example, Hypothesis
from dragoman.engines.cpu.converted_model import ConvertedModel, ConvertedSearch
from dragoman.inference.prediction import Prediction
from dragoman.text.codec import Codec, build_codec, truncate
from dragoman.version import __version__

if TYPE_CHECKING:
    from dragoman.inference.pipeline import Pipeline

KIND, FORMAT = "dragoman converted copy", 1
COPY = "copy.json"
MAX_COPY_BYTES = 200_000
MAX_COPIES = 16
BEAMS = range(1, 11)  # that a request may ask for
# What a request may set and still be served: the beam, and lengths. Other options need the search's own code.
OPTIONS = {"beam", "max_new_tokens", "max_length_ratio", "max_length_extra"}


EMPTY = Prediction("", 0.0, 0.0, [], [], "empty_source", [])


@dataclass
class ConvertedPipeline:
    """The predictions of a Pipeline from a converted copy of its model."""

    path: Path  # of the model
    precision: str
    codec: Codec
    generation: GenerationOptions  # the model's own
    searches: dict[str, ConvertedSearch]  # by the requested beam, "" for the model's own search
    max_source_length: int
    max_target_positions: int | None
    converted: ConvertedModel

    def stream(self, sources: Iterable[Example], options: GenerationOptions, window: int) -> Iterator[Prediction]:
        """Predict for any number of sources, `window` of them at a time, in order."""
        iterator = iter(sources)
        while examples := list(islice(iterator, window)):
            yield from self._predict(examples, options)

    def _predict(self, examples: list[Example], options: GenerationOptions) -> Iterator[Prediction]:
        search, merged = self.searches[_search_name(options)], self.generation.merge(options)
        rows = [i for i, example in enumerate(examples) if example.source.strip()]
        encoded = [self.codec.encode_source(examples[i]) for i in rows]
        sources = [truncate(ids, self.max_source_length) for ids in encoded]
        limits = [self._max_length(len(ids), merged) for ids in sources]
        nbest_lists = self.converted.decode(sources, limits, search)
        rest = [examples[i] for i, nbest in zip(rows, nbest_lists, strict=True) if nbest is None]
        others = iter(self._model.predict(rest, options, token_log_probs=False) if rest else [])
        results: dict[int, Prediction] = {}
        for i, ids, nbest in zip(rows, encoded, nbest_lists, strict=True):
            is_truncated = examples[i].source_truncated or len(ids) > self.max_source_length
            results[i] = next(others) if nbest is None else self._to_prediction(nbest[0], is_truncated)
        yield from (results.get(i, EMPTY) for i in range(len(examples)))

    def _max_length(self, source_length: int, options: GenerationOptions) -> int:
        most, _ = length_bounds(options, source_length)
        return most if self.max_target_positions is None else max(min(most, self.max_target_positions - 1), 1)

    def _to_prediction(self, best: Hypothesis, is_truncated: bool) -> Prediction:
        text = self.codec.decode(best.tokens)
        return Prediction(text, best.score, best.total, [], [], best.finish_reason, [], is_truncated, ids=best.tokens)

    @cached_property
    def _model(self) -> Pipeline:
        """The model itself, for the sentences of which CTranslate2 would find another result."""
        from dragoman.inference import pipeline

        return pipeline.load(self.path, "cpu", precision=self.precision)


def _search_name(options: GenerationOptions) -> str:
    return str(options.beam) if "beam" in options.model_fields_set else ""


# -- the copies --------------------------------------------------------------------------------------------------------


def cache_folder() -> Path:
    """The folder of all copies, in the user's cache."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "dragoman" / "converted"


def copy_folder(model: Path, precision: str | None) -> Path:
    """The folder of the copy of a model folder, whose manifest is read."""
    parts = [manifest.fingerprint(model), precision, FORMAT, __version__, metadata.version("ctranslate2")]
    return cache_folder() / hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def open_converted(path: Path, precision: str | None, options: GenerationOptions) -> ConvertedPipeline | None:
    """Open the converted copy of a model for a request with these options.

    None if there is no copy, if it does not serve the request, or if anything is wrong with the copy or the model.
    """
    try:
        model = manifest.resolve(path)
        folder = copy_folder(model, precision)
        if not folder.is_dir() or not options.model_fields_set <= OPTIONS:
            return None
        manifest.verify_checksums(model)
        value = _read_copy(folder)
        searches = {name: ConvertedSearch(*search) for name, search in value["searches"].items()}
        if _search_name(options) not in searches:
            return None
        described: dict[str, Any] = value["codec"]
        described |= {side: Part.parse(described[side]) for side in ("source", "target")}
        saved = {name: (folder / name).read_bytes() for name in value["files"]}
        codec = build_codec(**described).restore(saved)
        converted = ConvertedModel(
            str(folder), value["precision"], tuple(value["sizes"]), value["positions"], os.cpu_count() or 1
        )
        generation = GenerationOptions.model_validate(value["generation"])
        os.utime(folder)  # when it was used last
    except (DragomanError, OSError, ValueError, KeyError, TypeError, RuntimeError, metadata.PackageNotFoundError):
        return None  # the model itself is asked, and says what is wrong
    limits = value["max_source_length"], value["max_target_positions"]
    return ConvertedPipeline(path, value["precision"], codec, generation, searches, *limits, converted)


def _read_copy(folder: Path) -> dict[str, Any]:
    """The content of copy.json; ValueError if it, or a file that it lists, is not as it was written."""
    value: dict[str, Any] = json.loads(files.read_plain(folder / COPY, MAX_COPY_BYTES))
    signed = value.pop("sha256")
    if (value["kind"], value["format"]) != (KIND, FORMAT) or signed != _digest(value):
        raise ValueError(COPY)
    for name, entry in value["files"].items():
        with files.open_plain(folder / name) as file:
            manifest.check_digest(folder / name, manifest.stream_digest(file), entry)
    return value


def _digest(value: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def write_converted(pipeline: Pipeline, precision: str | None) -> None:
    """Write the converted copy of a pipeline's model if CTranslate2 serves it; without a copy nothing is lost.

    `precision` is the one that was asked for, None for the model's own.
    """
    searches = _converted_searches(pipeline)
    if searches and pipeline.path is not None:
        with suppress(DragomanError, OSError):
            folder = copy_folder(manifest.resolve(pipeline.path), precision)
            if not folder.exists():
                _write(pipeline, searches, folder)
            _remove_oldest(folder.parent)


def _converted_searches(pipeline: Pipeline) -> dict[str, ConvertedSearch]:
    """What CTranslate2 searches for each beam that may be asked for, "" for none; {} if it does not serve the model."""
    import torch

    from dragoman.engines.cpu.ctranslate2 import convert_search
    from dragoman.engines.cpu.engine import CPUEngine
    from dragoman.search import SearchConstraints, build_search

    objective, codec = pipeline.input_processor.objective, pipeline.codec
    if not isinstance(pipeline.engine, CPUEngine) or not objective.has_source_eos or not objective.is_paired:
        return {}
    if codec.modality is not None or codec.second_source is not None or codec.target_template.prefix:
        return {}
    found: dict[str, ConvertedSearch] = {}
    for beam in (None, *BEAMS):
        options = pipeline.resolve_options(beam=beam)
        search = build_search(options)
        converted = convert_search(search)
        plain = {"search", "length"}
        is_plain = options.nbest == 1 and all(scope_of(name) in plain for name in options.explicit)
        has_least = options.min_new_tokens or options.min_length_ratio
        limits = SearchConstraints(torch.tensor([1]))
        is_served = is_plain and not has_least and pipeline.engine.uses_ctranslate2(search, limits)
        if is_served and isinstance(converted, ConvertedSearch):
            found["" if beam is None else str(beam)] = converted
    return found


def _write(pipeline: Pipeline, searches: dict[str, ConvertedSearch], folder: Path) -> None:
    """Write a copy, which appears as a whole."""
    from dragoman.engines.cpu.ctranslate2 import build_spec, position_limit, save_spec

    codec, processor, tokenizer = pipeline.codec, pipeline.input_processor, pipeline.config.tokenizer
    with files.new_folder(folder) as temporary:
        save_spec(build_spec(pipeline.model), str(temporary), pipeline.precision)
        for name, data in codec.to_files().items():
            files.write_file(temporary / name, data)
        names = sorted(path.name for path in temporary.iterdir())
        value = {
            "kind": KIND,
            "format": FORMAT,
            "precision": pipeline.precision,
            "sizes": [len(codec.source), len(codec.target)],
            "positions": position_limit(pipeline.model),
            "codec": {
                "source": tokenizer.source.to_mapping(),
                "target": (tokenizer.target or tokenizer.source).to_mapping(),
                "joint": tokenizer.joint,
                "normalization": pipeline.config.data.normalization,
                "source_template": tokenizer.source_template,
                "target_template": tokenizer.target_template,
            },
            "generation": pipeline.resolve_options().model_dump(mode="json"),
            "searches": {name: list(search) for name, search in searches.items()},
            "max_source_length": processor.max_source_length,
            "max_target_positions": pipeline.model.max_target_positions,
            "files": {name: manifest.describe_file((temporary / name).read_bytes()) for name in names},
        }
        files.write_file(temporary / COPY, json.dumps(value | {"sha256": _digest(value)}).encode())


def _remove_oldest(cache: Path) -> None:
    """Keep the copies that were used last."""
    copies = sorted((path for path in cache.iterdir() if path.is_dir()), key=lambda path: -path.stat().st_mtime)
    for path in copies[MAX_COPIES:]:
        files.remove_folder(path)
