"""Small models of any parts, with random weights, and what Python's reference path answers with them."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import torch
from tests.codec_learning import learn_codec

from dragoman import config as configs
from dragoman.core.generation import GenerationOptions
from dragoman.core.registry import Part
from dragoman.core.types import EOS, Example
from dragoman.data.objectives import objectives
from dragoman.inference.pipeline import Pipeline
from dragoman.inference.prediction import Prediction
from dragoman.text.codec import Codec

ALPHABET = "abcdefgh"
LABELS = ["x", "y", "z", "w"]
ONE_SEQUENCE = ("lm", "prefix", "unilm")  # objectives that need one table of embeddings
TOLERANCE = 1e-4  # of log p of a token, and of an attention weight
RELATIVE_TOLERANCE = 1e-5  # float32 sums of large log p differ by more


def small_pipeline(
    encoder: Any,
    decoder: Any,
    *,
    head: Any = None,
    objective: str = "pairs",
    tie: str = "none",
    pointer: Any = None,
    generation: dict[str, Any] | None = None,
    joint: bool = False,
    seed: int = 0,
    larger: float = 1.5,
    ends: float = 0.5,
    codec: Codec | None = None,
    **model: Any,
) -> Pipeline:
    """A model with a codec, by default of characters; weights are `larger` than new ones: outputs are definite."""
    is_one_sequence = objective in ONE_SEQUENCE
    joint = joint or is_one_sequence or pointer is not None
    tie = "embeddings" if is_one_sequence else tie
    value = {
        "data": {"train": "nowhere.tsv", "max_source": 12, "max_target": 12},
        "tokenizer": {"source": codec.source.kind if codec else "characters", "joint": joint},
        "model": {
            "width": 16,
            "tie": tie,
            "encoder": encoder,
            "decoder": decoder,
            "head": head,
            "pointer": pointer,
            **model,
        },
        "training": {"objective": objective},
        "generation": {"max_length_ratio": 1.0, "max_length_extra": 4, **(generation or {})},
    }
    config = configs.validate(value, "a test")
    part = Part("characters")
    if codec is None:
        targets = LABELS if head else [ALPHABET, "a b"]
        extra = [*objectives[objective].extra_symbols]
        codec = learn_codec(part, part, joint, "nfc", [ALPHABET, "a b"], targets, extra)
    torch.manual_seed(seed)
    built = configs.build_model(config, len(codec.source), len(codec.target))
    with torch.no_grad():
        for p in built.parameters():
            p.mul_(larger).add_(0.05 * torch.randn_like(p))  # what begins as 0 or 1 must not hide a mistake
        for name, buffer in built.named_buffers():
            if "running" in name:
                buffer.add_(torch.rand_like(buffer))
        if head is None:
            built.output.bias[EOS] += ends
    return Pipeline(built.eval(), codec, config, torch.device("cpu"))


def random_texts(count: int, seed: int = 0, longest: int = 9) -> list[str]:
    random = Random(seed)
    return ["".join(random.choices(ALPHABET, k=random.randint(1, longest))) for _ in range(count)]


def reference_predictions(
    pipeline: Pipeline, texts: Sequence[str | Example], options: dict[str, Any]
) -> list[dict[str, Any]]:
    """What the reference path predicts, as JSON data with the fields that the engine's predictions have."""
    values = {name: value for name, value in options.items() if name not in ("attention", "trace")}
    reports = {name: bool(options.get(name)) for name in ("attention", "trace")}
    predictions = pipeline.predict(texts, GenerationOptions.model_validate(values), **reports)
    return [as_data(prediction) for prediction in predictions]


def as_data(prediction: Prediction) -> dict[str, Any]:
    data = {
        name: getattr(prediction, name)
        for name in (
            "text",
            "score",
            "log_prob",
            "tokens",
            "log_probs",
            "finish_reason",
            "source_tokens",
            "source_truncated",
            "ids",
            "trace",
        )
    }
    data["attention"] = None if prediction.attention is None else prediction.attention.tolist()
    data["alternatives"] = [as_data(one) for one in prediction.alternatives]
    return data


def find_difference(expected: Any, found: Any, where: str = "", tolerance: float = TOLERANCE) -> str | None:
    """The first difference of two answers beyond rounding, and where it is; None: they are equal."""
    if isinstance(expected, dict) and isinstance(found, dict):
        if expected.keys() != found.keys():
            return f"{where}: {sorted(expected)} is not {sorted(found)}"
        differences = (find_difference(expected[key], found[key], f"{where}.{key}", tolerance) for key in expected)
    elif isinstance(expected, list) and isinstance(found, list):
        if len(expected) != len(found):
            return f"{where}: {expected} is not {found}"
        pairs = enumerate(zip(expected, found, strict=True))
        differences = (find_difference(one, other, f"{where}[{i}]", tolerance) for i, (one, other) in pairs)
    elif isinstance(expected, float) and isinstance(found, int | float):
        is_close = expected == found or abs(expected - found) <= tolerance + RELATIVE_TOLERANCE * abs(expected)
        return None if is_close else f"{where}: {expected} is not {found}"
    else:
        return None if expected == found else f"{where}: {expected!r} is not {found!r}"
    return next((difference for difference in differences if difference), None)


def find_nbest_difference(expected: dict[str, Any], found: dict[str, Any]) -> str | None:
    """`find_difference` of n-best lists, whose order and whose last may differ where scores are nearly equal."""
    lists = [{"alternatives": [], **answer}["alternatives"] for answer in (expected, found)]
    ranked = [[answer, *rest] for answer, rest in zip((expected, found), lists, strict=True)]
    scores = [[one["score"] for one in answers] for answers in ranked]
    if difference := find_difference(*scores, "scores"):
        return difference
    for i, one in enumerate(ranked[0]):
        same = next((other for other in ranked[1] if other["ids"] == one["ids"]), None)
        ties = [score for j, score in enumerate(scores[0]) if j != i and abs(score - scores[0][i]) < 2 * TOLERANCE]
        if same is None and not ties and i + 1 < len(ranked[0]):
            return f"[{i}]: {one['tokens']} is not {ranked[1][i]['tokens']}"
        if same is not None and (difference := find_difference(_own_fields(one), _own_fields(same), f"[{i}]")):
            return difference
    return None


def _own_fields(answer: dict[str, Any]) -> dict[str, Any]:
    left_out = ["alternatives", "trace"]
    if answer["attention"] is None:
        left_out.append("attention")  # another output was the best
    return {name: value for name, value in answer.items() if name not in left_out}
