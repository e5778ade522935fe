"""The results of one shard as bytes: lines of `predict`, token scores of `score`, outputs of `evaluate`.

Each is a plain value that can be sent to another machine, and calls the same functions as the command without shards.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.cli.output import render
from dragoman.cli.prediction_table import PredictionTable, ResultColumns
from dragoman.core.errors import RunError

if TYPE_CHECKING:
    from dragoman.core.generation import GenerationOptions
    from dragoman.inference.pipeline import Pipeline, SourceOptions
    from dragoman.inference.prediction import Prediction
    from dragoman.jobs.shards import Shard

ShardFunction = Callable[["Shard"], tuple[bytes, dict[str, int]]]
STORED = ("text", "score", "log_prob", "tokens", "log_probs", "finish_reason", "source_tokens", "source_truncated")


@dataclass(frozen=True)
class ModelSpec:
    """A model as the command line names it, to be loaded by a process of its own."""

    model: str
    fingerprint: str
    device: str
    precision: str
    reference: bool
    lm: str | None = None
    lm_weight: float = 0.3
    media_folders: Sequence[str] = ()
    plugins: Sequence[str] = ()

    @classmethod
    def of(
        cls,
        pipeline: Pipeline,
        model: str,
        device: str,
        lm: str | None,
        lm_weight: float,
        media_folders: Sequence[str],
        plugins: Sequence[str],
        source: str,
    ) -> ModelSpec:
        """The model that a pipeline was loaded from, with the checkpoint of today where `model` is a run.

        `source` is how the command line names it: other machines fetch a URL themselves.
        """
        from dragoman.checkpoint import model_folder, model_paths

        def resolve(model: str) -> str:
            paths = model_paths.parse_model_paths(model)
            return "+".join(os.path.abspath(model_folder.resolve(Path(path))) for path in paths)

        resolved = resolve(model)
        return cls(
            source if "://" in source else resolved,
            model_folder.fingerprint(resolved),
            pipeline.device.type if device == "auto" else device,
            pipeline.precision,
            not pipeline.fast,
            None if lm is None else resolve(lm),
            lm_weight,
            tuple(media_folders),
            tuple(plugins),
        )

    def load(self) -> Pipeline:
        """Load the model; RunError if it is not the one that the job began with."""
        from dragoman.checkpoint import model_folder
        from dragoman.cli.options import fetch_model, load_plugins
        from dragoman.inference import pipeline

        load_plugins(self.plugins)
        model = fetch_model(self.model)
        if model_folder.fingerprint(model) != self.fingerprint:
            raise RunError(f"{self.model}: is another model on this machine than where the command was started")
        loaded = pipeline.load(
            model,
            self.device,
            precision=self.precision,
            reference=self.reference,
            lm=self.lm,
            lm_weight=self.lm_weight,
        )
        return loaded.with_media_roots(self.media_folders)


@dataclass(frozen=True)
class PredictShard:
    """The lines that `predict` writes for the rows of a shard."""

    generation: GenerationOptions
    format: str
    probability: bool = False
    check: bool = False
    attention: bool = False
    trace: bool = False
    table: PredictionTable | None = field(default=None, repr=False)

    def open(self, pipeline: Pipeline) -> ShardFunction:
        """Return the function for a model."""
        from dragoman.inference.windows import Window

        wanted: Any = {"attention": self.attention, "trace": self.trace, "token_log_probs": self.format == "jsonl"}
        request = pipeline.request(self.generation, **wanted)

        def compute(shard: Shard) -> tuple[bytes, dict[str, int]]:
            nbest = request.options.nbest
            results = ResultColumns(pipeline.codec, self.probability, self.check, nbest, counts_unseen=False)
            sources = results.watch(example for _, example in shard.inputs)
            window_inputs: list[SourceOptions] = [(source, request.options) for source in sources]
            window = Window(window_inputs, shard.first_index)
            truncated = 0

            def predictions() -> Iterator[Prediction]:
                nonlocal truncated
                for prediction in pipeline.predict_window(window, request):
                    truncated += prediction.source_truncated
                    yield prediction

            if self.table is None:
                rendered = (
                    render(number, prediction, self.format, results.further(prediction))
                    for number, prediction in enumerate(predictions(), shard.first_index + 1)
                )
                lines: Iterable[str] = (line for each in rendered for line in each)
            else:
                table = replace(self.table, results=results)
                rows = (row for row, _ in shard.inputs)
                lines = table.lines(zip(rows, predictions(), strict=True), continues=shard.number > 0)
            data = _to_lines(lines)
            return data, {**results.counts(), "truncated": truncated}

        return compute


@dataclass(frozen=True)
class ScoreShard:
    """The log-probability of every token of each pair of a shard."""

    skip: bool

    def open(self, pipeline: Pipeline) -> ShardFunction:
        """Return the function for a model."""
        from dragoman.inference.windows import Window

        def compute(shard: Shard) -> tuple[bytes, dict[str, int]]:
            scores = pipeline.score_window(Window(shard.inputs, shard.first_index), self.skip)
            return _to_lines(json.dumps(row) for row in scores), {}

        return compute


@dataclass(frozen=True)
class EvaluateShard:
    """The best output of each source of a shard, with all that a report needs."""

    generation: GenerationOptions | None

    def open(self, pipeline: Pipeline) -> ShardFunction:
        """Return the function for a model."""
        from dragoman.inference.windows import Window

        request = pipeline.request(self.generation)

        def compute(shard: Shard) -> tuple[bytes, dict[str, int]]:
            sources: list[SourceOptions] = [(example, request.options) for example in shard.inputs]
            window = Window(sources, shard.first_index)
            predictions = pipeline.predict_window(window, request)
            return _to_lines(json.dumps(_to_json(prediction)) for prediction in predictions), {}

        return compute


def read_scores(data: Iterable[bytes]) -> Iterator[list[float]]:
    """The token scores in the results of shards."""
    for shard in data:
        yield from map(json.loads, shard.splitlines())


def read_predictions(data: Iterable[bytes]) -> Iterator[Prediction]:
    """The predictions in the results of shards."""
    for shard in data:
        for line in shard.splitlines():
            yield _from_json(json.loads(line))


def _to_lines(lines: Iterable[str]) -> bytes:
    return b"".join(f"{line}\n".encode() for line in lines)


def _to_json(prediction: Prediction) -> dict[str, Any]:
    alternatives = [_to_json(one) for one in prediction.alternatives]
    values = {name: getattr(prediction, name) for name in (*STORED, "ids")}
    return values | ({"alternatives": alternatives} if alternatives else {})


def _from_json(value: dict[str, Any]) -> Prediction:
    from dragoman.inference.prediction import Prediction

    names = {each.name for each in fields(Prediction)}
    value["alternatives"] = [_from_json(one) for one in value.get("alternatives", [])]
    return Prediction(**{name: item for name, item in value.items() if name in names})
