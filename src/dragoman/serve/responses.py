"""Predictions and model descriptions as the JSON of responses."""

from __future__ import annotations

from collections.abc import Sequence

from dragoman.core.types import Example
from dragoman.inference.pipeline import Pipeline
from dragoman.inference.prediction import Prediction
from dragoman.inspection.attention_maps import count_heads
from dragoman.inspection.views import find_view, views
from dragoman.inspection.views.examples import kept_examples
from dragoman.nn.seq2seq import Seq2Seq
from dragoman.reports.metric_choice import choose_metrics
from dragoman.search import searches
from dragoman.serve import uploads
from dragoman.serve.schema import JSONObject, ModelInfo, Result


def prediction_to_json(prediction: Prediction) -> JSONObject:
    """Convert a prediction, with its alternatives, to a result of /v1/predict."""
    return {name: getattr(prediction, name) for name in Result.model_fields} | {
        "alternatives": [prediction_to_json(other) for other in prediction.alternatives],
        "attention": None if prediction.attention is None else prediction.attention.tolist(),
    }


def describe_model(name: str, pipeline: Pipeline) -> ModelInfo:
    """Build the description of a model for GET /v1/models."""
    config, model, codec = pipeline.config, pipeline.model, pipeline.codec
    generation, search = config.generation, searches.build(config.generation.search)
    shape, kinds = config.model.model_dump(), uploads.source_kinds(codec)
    examples = kept_examples(pipeline)
    return {
        "name": name,
        "source": kinds["source"] or "text",
        "second_source": kinds["second_source"],
        "accepts": list(
            dict.fromkeys(type for kind in kinds.values() if kind for type in uploads.accepted_types(kind))
        ),
        "languages": codec.target_languages,
        "source_languages": codec.source_languages,
        "kind": "language model" if pipeline.continues_text else "labels" if model.head is not None else "pairs",
        "shape": {
            "encoder": shape["encoder"]["name"],
            "decoder": shape["decoder"]["name"] if shape["decoder"] else None,
            "width": shape["width"],
            "parameters": sum(p.numel() for p in model.parameters()),
            "source_vocabulary": len(codec.source),
            "source_tokenizer": codec.source.kind,
            "target_vocabulary": len(codec.target),
            "attention_heads": count_heads(model) if isinstance(model, Seq2Seq) else 0,
        },
        "search": {
            "name": generation.search.name,
            "beam": search.num_hypotheses,
            "is_sampling": search.is_sampling,
            "max_length_ratio": 0.0 if generation.max_new_tokens else generation.max_length_ratio,
            "max_length_extra": generation.max_new_tokens or generation.max_length_extra,
            "max_length": pipeline.input_processor.max_target_length(0),
        },
        "max_source_positions": pipeline.input_processor.max_source_length,
        "precision": pipeline.precision,
        "device": str(pipeline.device),
        "example": example_input(pipeline, examples),
        "metrics": [part.to_mapping() for part in choose_metrics(config, examples)] if examples else [],
        "views": shown_views(name, pipeline),
    }


def shown_views(name: str, pipeline: Pipeline) -> list[str]:
    """Return the names of the views that can be computed of a model."""
    every = map(find_view, views.names)
    return [view.name for view in every if view.blocker({name: pipeline} if view.compares_models else pipeline) is None]


def example_input(pipeline: Pipeline, examples: Sequence[Example]) -> JSONObject:
    """Build an input that can be sent: of a kept validation pair, else of the vocabulary; files are generated."""
    codec, pair = pipeline.codec, examples[0] if examples else vocabulary_pair(pipeline)
    example: JSONObject = {"source": pair.source, "source_lang": pair.source_lang, "target_lang": pair.target_lang}
    for side, modality in (("source", codec.modality or "text"), ("second_source", codec.second_source)):
        if isinstance(modality, str):
            example[side] = getattr(pair, side)
        elif modality is not None:
            example[side] = uploads.sample_file(modality.kind, modality)
    return example


def vocabulary_pair(pipeline: Pipeline) -> Example:
    """Return an example whose sources are the first five tokens of the vocabulary."""
    codec = pipeline.codec
    tokenizer = codec.target if pipeline.continues_text else codec.source
    first = tokenizer.vocabulary.symbol_count
    text = tokenizer.decode(list(range(first, min(first + 5, len(tokenizer)))))
    return Example(text, target_lang=codec.target_languages[0] if codec.target_languages else None, second_source=text)
