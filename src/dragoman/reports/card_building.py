"""Make the card of a run when it is packed: describe the model, count its data, measure it on pairs that it never saw.

    run ─held_out_pairs→ validation and test pairs ─assess→ scores and examples ─→ ModelCard

The test pairs of `dragoman train PAIRS` are measured if there are any, else the validation pairs. A model that was
packed already keeps its card, since its data are elsewhere.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from dragoman.checkpoint.packing import base_names
from dragoman.config import Config
from dragoman.core import files
from dragoman.core.errors import DragomanError
from dragoman.core.registry import Part
from dragoman.core.types import Example
from dragoman.data.readers import read_pairs
from dragoman.inference.pipeline import Pipeline
from dragoman.inspection.assessment import Assessment, assess
from dragoman.reports.card import CardExample, CardScore, DataPart, ModelCard, read_card
from dragoman.reports.report import evaluate
from dragoman.search import searches
from dragoman.training.prepare import is_readable, sample_examples
from dragoman.version import __version__

MAX_SCORED = 1000  # pairs that are decoded for the scores
PLAN = "plan.json"  # of `dragoman train PAIRS`
MAX_FACTS_BYTES = 2**20  # of a run's small JSON files


def build_card(
    pipeline: Pipeline,
    model: Path,
    *,
    name: str | None = None,
    license: str | None = None,
    notes: str | None = None,
    examples: int = 5,
) -> ModelCard:
    """Describe and measure the model that a run folder, a model folder or a zip holds."""
    own = {"name": name, "license": license, "notes": notes}
    given: dict[str, Any] = {key: value for key, value in own.items() if value is not None}
    packed = read_card(model)
    if packed is not None:
        return packed.model_copy(update=given | {"examples": packed.examples[:examples]})
    config = pipeline.config
    parts = [("training", corpus.path) for corpus in config.data.train]
    parts += held_out_pairs(config, model).items()
    measured = _measure(pipeline, model, examples)
    card = ModelCard(
        name=config.name,
        task=describe_task(pipeline),
        architecture=_describe_architecture(config),
        parameters=sum(p.numel() for p in pipeline.model.parameters()),
        tokenizers=_describe_tokenizers(pipeline),
        languages=pipeline.codec.target_languages,
        columns=str(config.columns) if not isinstance(config.columns, list) else ", ".join(config.columns),
        seed=config.seed,
        division=str(_read_facts(model / PLAN).get("division", "")),
        data=[DataPart(role=role, file=base_names(path), pairs=count_pairs(config, path)) for role, path in parts],
        headline=measured.headline,
        measured=measured.sentence,
        scores=measured.scores,
        examples=measured.examples,
        versions=_read_versions(model),
        plugins=find_plugins(pipeline),
        reads_files=pipeline.codec.modality is not None,
    )
    return card.model_copy(update=given)


# -- the model ---------------------------------------------------------------------------------------------------------


def describe_task(pipeline: Pipeline) -> str:
    """One sentence: what the model makes of what."""
    codec, config = pipeline.codec, pipeline.config
    if pipeline.continues_text:
        return f"A language model: it continues a text, read as {_units(config.tokenizer.source.name)}."
    sources = [_source_kind(config.tokenizer.source.name, codec.modality)]
    if codec.second_source is not None:
        second = None if isinstance(codec.second_source, str) else codec.second_source
        sources.append(_source_kind(config.tokenizer.source.name, second))
    target = config.tokenizer.target or config.tokenizer.source
    result = f"a text, written as {_units(target.name)}"
    if pipeline.model.head is not None:
        result = "one label" if config.training.objective.name == "labels" else "a label for each of its tokens"
    return f"It reads {' and '.join(sources)}, and answers with {result}."


def _source_kind(tokenizer: str, modality: Any) -> str:
    return f"a text as {_units(tokenizer)}" if modality is None else f"a file ({modality.kind})"


def _units(tokenizer: str) -> str:
    return {"bpe": "subwords (BPE)", "unigram": "subwords (unigram)"}.get(tokenizer, tokenizer)


def _describe_architecture(config: Config) -> str:
    model = config.model
    last = model.decoder or model.head
    return f"{model.encoder.name} → {last.name if last is not None else 'none'}, width {model.width}"


def _describe_tokenizers(pipeline: Pipeline) -> str:
    codec, options = pipeline.codec, pipeline.config.tokenizer
    if codec.is_joint:
        return f"tokenizer {options.source.name} ({len(codec.source):,} for both sides)"
    target = options.target or options.source
    return (
        f"tokenizers {options.source.name} ({len(codec.source):,}) for sources and {target.name} "
        f"({len(codec.target):,}) for targets"
    )


def find_plugins(pipeline: Pipeline) -> list[str]:
    """The modules of parts that are neither ours nor torch's: whoever uses the model must have them, too."""
    codec, search = pipeline.codec, searches[pipeline.config.generation.search.name]
    parts = [*pipeline.model.modules(), codec.source, codec.target, codec.modality]
    modules = {search.__module__, *(type(part).__module__ for part in parts if part is not None)}
    return sorted(name for name in modules if name.partition(".")[0] not in ("dragoman", "torch"))


def _read_versions(run: Path) -> dict[str, str]:
    facts = _read_facts(run / "env.json")
    now = {"dragoman": __version__, "torch": torch.__version__, "python": platform.python_version()}
    return {name: str(facts.get(name, version)) for name, version in now.items()}


def _read_facts(path: Path) -> dict[str, Any]:
    """Read a small JSON file of a run; nothing if it is missing or damaged."""
    try:
        value = json.loads(files.read_plain(path, MAX_FACTS_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


# -- the data ----------------------------------------------------------------------------------------------------------


def held_out_pairs(config: Config, run: Path) -> dict[str, str]:
    """The files of pairs that the weights were not trained on, by what they were for: validation, test."""
    test = _read_facts(run / PLAN).get("test")
    parts = {"validation": config.data.valid, "test": test if isinstance(test, str) else None}
    return {role: path for role, path in parts.items() if path}


def count_pairs(config: Config, path: str) -> int | None:
    """How many pairs a file has; None if it cannot be read now."""
    try:
        return sum(1 for _ in read_pairs(path, columns=config.columns, extra_targets=True, on_error="skip"))
    except (DragomanError, OSError):
        return None


def _sample(pipeline: Pipeline, path: str) -> list[Example]:
    """A sample of the pairs of a file that can be measured on; none if it cannot be read now."""

    def read() -> Iterator[Example]:
        try:
            for pair in read_pairs(path, columns=pipeline.config.columns, extra_targets=True, on_error="skip"):
                if pair.source.strip() and pair.target is not None:
                    yield pair
        except (DragomanError, OSError):
            return

    return sample_examples(read(), MAX_SCORED, lambda pair: is_readable(pair, pipeline.codec))


# -- scores and examples -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measurement:
    """What a card says about quality: the result, how it was measured, the scores, and examples."""

    headline: str = ""
    sentence: str = "Not measured: there were no held-out pairs when the model was packed."
    scores: list[CardScore] = field(default_factory=list)
    examples: list[CardExample] = field(default_factory=list)


def _measure(pipeline: Pipeline, run: Path, count: int) -> Measurement:
    """Decode held-out pairs and score them; `count` validation pairs become examples."""
    paths = {} if pipeline.continues_text else held_out_pairs(pipeline.config, run)
    samples = {role: pairs for role, path in paths.items() if (pairs := _sample(pipeline, path))}
    if not samples:
        return Measurement()
    role = "test" if "test" in samples else "validation"
    result, report = evaluate(pipeline, samples[role])
    shown = result
    if role == "test" and "validation" in samples and count:
        shown = assess(pipeline, samples["validation"][:count], [Part("exact")])
    decoded = zip(shown.examples, shown.predictions, strict=True)
    examples = [_card_example(pipeline, pair, prediction.text) for pair, prediction in decoded][:count]
    sentence = _describe_measurement(pipeline, role, paths[role], result)
    return Measurement(report.headline, sentence, _card_scores(result), examples)


def _describe_measurement(pipeline: Pipeline, role: str, path: str, result: Assessment) -> str:
    options = pipeline.resolve_options()
    hypotheses = searches.build(options.search).num_hypotheses
    search = f"{options.search.name} search, {hypotheses} hypotheses" if hypotheses > 1 else "greedy search"
    total, count = count_pairs(pipeline.config, path), len(result.examples)
    pairs = f"{count:,} {role} pairs" if total == count else f"{count:,} of the {total:,} {role} pairs, drawn at random"
    caution = " They also chose the checkpoint, so new data may score a little lower." if role == "validation" else ""
    return f"Measured on {pairs} ({search}); the intervals are by the bootstrap.{caution}"


def _card_scores(result: Assessment) -> list[CardScore]:
    return [
        CardScore(
            label=score.label,
            name=score.metric.name,
            value=score.value,
            low=score.low,
            high=score.high,
            unit=score.metric.unit,
            higher_is_better=score.metric.higher_is_better,
            signature=score.metric.signature,
        )
        for score in result.scores.values()
    ]


def _card_example(pipeline: Pipeline, pair: Example, output: str) -> CardExample:
    """An example; what names a file is without its folder."""
    codec = pipeline.codec
    sources = {"source": (pair.source, codec.modality), "second_source": (pair.second_source, codec.second_source)}
    shown = {
        side: text if reader is None or isinstance(reader, str) else os.path.basename(text.strip())
        for side, (text, reader) in sources.items()
    }
    return CardExample(target=pair.target or "", output=output, **shown)
