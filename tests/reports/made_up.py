"""An assessment whose outputs are written by hand: no model has to be trained to test what a report says of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from tests.codec_learning import learn_codec

from dragoman import config as configs
from dragoman.core.registry import Part
from dragoman.core.types import Example
from dragoman.inference.pipeline import Pipeline
from dragoman.inference.prediction import Prediction
from dragoman.inspection.assessment import Assessment, score_metric

ALPHABET = "abcdefghijklmnopqrstuvwxyz"


def made_pipeline(alphabet: str = ALPHABET, train: str = "nowhere.tsv") -> Pipeline:
    """An untrained model of letters → symbols that knows this alphabet."""
    value: dict[str, Any] = {
        "data": {"train": train},
        "tokenizer": {"source": "characters", "target": "symbols"},
        "model": {"width": 8, "encoder": {"name": "rnn"}, "decoder": {"name": "rnn"}},
    }
    config = configs.validate(value, "a test")
    target = config.tokenizer.target
    assert target is not None
    codec = learn_codec(config.tokenizer.source, target, False, "nfc", [alphabet], [" ".join(alphabet.upper())], [])
    model = configs.build_model(config, len(codec.source), len(codec.target))
    return Pipeline(model, codec, config, torch.device("cpu"))


def made_assessment(
    rows: Sequence[tuple[str, str, str, float]], metrics: Sequence[str] = ("ser", "per"), **of_examples: Any
) -> Assessment:
    """An assessment from rows of source, target, output and probability."""
    examples = [Example(row[0], row[1], line=n, **of_examples) for n, row in enumerate(rows, 1)]
    predictions = [made_prediction(*row) for row in rows]
    texts, references = [row[2] for row in rows], [[row[1]] for row in rows]
    scores = {name: score_metric(Part(name), texts, references) for name in metrics}
    return Assessment(examples, predictions, scores, 2.0, 0.5, length_pieces=[list(row[0]) for row in rows])


def made_prediction(source: str, target: str, output: str, probability: float) -> Prediction:
    """An output of so many tokens, each as probable as the others."""
    tokens = output.split()
    log_prob = math.log(probability)
    log_probs = [log_prob / (len(tokens) + 1)] * (len(tokens) + 1)
    return Prediction(output, log_prob, log_prob, tokens, log_probs, "eos", list(source))
