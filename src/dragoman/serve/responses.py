"""Predictions and models as the API writes them, in words and numbers that JSON has."""

from __future__ import annotations

from typing import Any

from dragoman.core.errors import DragomanError
from dragoman.core.types import SPECIALS, Example
from dragoman.data.readers import read_pairs
from dragoman.inference.pipeline import Pipeline, Prediction
from dragoman.search import searches
from dragoman.serve import uploads

Message = dict[str, Any]


def written(prediction: Prediction) -> Message:
    """A prediction as /v1/predict answers."""
    return {
        "text": prediction.text,
        "score": prediction.score,
        "log_prob": prediction.log_prob,
        "tokens": prediction.tokens,
        "log_probs": prediction.log_probs,
        "finish_reason": prediction.finish_reason,
        "source_tokens": prediction.source_tokens,
        "source_truncated": prediction.source_truncated,
        "alternatives": [written(other) for other in prediction.alternatives],
        "attention": None if prediction.attention is None else prediction.attention.tolist(),
    }


def described(name: str, pipeline: Pipeline) -> Message:
    """What GET /v1/models says of a model."""
    config, model, codec = pipeline.config, pipeline.model, pipeline.codec
    search = searches.build(config.generation.search)
    shape, reads = config.model.model_dump(), uploads.kinds(codec)
    return {
        "name": name,
        **reads,  # source, second
        "accepts": list(dict.fromkeys(type for kind in reads.values() if kind for type in uploads.accepted(kind))),
        "languages": codec.languages,
        "source_languages": codec.source_languages,
        "kind": "language model" if pipeline.continues_text else "labels" if model.head is not None else "pairs",
        "shape": {
            "encoder": shape["encoder"]["name"],
            "decoder": shape["decoder"]["name"] if shape["decoder"] else None,
            "width": shape["width"],
            "parameters": sum(p.numel() for p in model.parameters()),
            "source_vocabulary": len(codec.source),
            "target_vocabulary": len(codec.target),
        },
        "search": {"name": config.generation.search.name, "beam": search.size, "draws": search.draws},
        "longest_source": pipeline.reading.longest,
        "precision": pipeline.precision,
        "device": str(pipeline.device),
        "example": sample(pipeline),
    }


def sample(pipeline: Pipeline) -> Message:
    """An input to begin with: the first text of the validation file if that is here, else a few of the vocabulary."""
    codec, pair = pipeline.codec, first_pair(pipeline) or made_up(pipeline)
    found: Message = {"source": pair.source, "source_lang": pair.source_lang, "target_lang": pair.target_lang}
    readers = {"source": codec.modality, "second_source": codec.second_source}
    for side, kind in uploads.kinds(codec).items():
        if kind == "text":
            found[side] = getattr(pair, side)
        elif kind is not None:  # the files of the validation data are nobody's business
            found[side] = uploads.sample(kind, readers[side])
    return found


def first_pair(pipeline: Pipeline) -> Example | None:
    """The first of the validation file, if that is here."""
    config = pipeline.config
    try:
        pairs = read_pairs(config.data.valid or "", columns=config.columns, on_error="skip")
        return next((pair for pair in pairs if pair.source.strip()), None)
    except (DragomanError, OSError):
        return None


def made_up(pipeline: Pipeline) -> Example:
    """The first tokens of the vocabulary, whatever they say."""
    codec = pipeline.codec
    tokenizer = codec.target if pipeline.continues_text else codec.source
    first = len(SPECIALS) + len(tokenizer.extra)
    text = tokenizer.decode(list(range(first, min(first + 5, len(tokenizer)))))
    return Example(text, target_lang=codec.languages[0] if codec.languages else None, second_source=text)
