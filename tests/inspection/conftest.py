"""Small models for looking inside, each saved as a model folder and opened as users open one.

Their weights are random but large, so that they say something definite, attend to some places more than to others, and
come to an end now and then. `transformer` splits words into subwords; the others read characters.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import dragoman
from dragoman import checkpoint
from dragoman import config as configs
from dragoman.core.interfaces import EOS
from dragoman.core.registry import Part
from dragoman.pipeline import Pipeline
from dragoman.text import codec as codecs

WORDS = [
    "the old bridge",
    "the new bridges",
    "an older bridge",
    "a newer road",
    "the roads",
    "old roads ended",
    "a bee",
]
LETTERS = ["abcdefgh", "a b"]
LABELS = ["c", "b", "a"]
RNN = {"name": "rnn", "cell": "gru", "dropout": 0.0}
TRANSFORMER = {"name": "transformer", "layers": 2, "heads": 2, "feedforward": 32, "dropout": 0.0}
CONVOLUTIONS = {"name": "conv", "layers": 2, "dropout": 0.0}


def save_and_load(
    folder: Path,
    encoder: Any,
    decoder: Any,
    *,
    head: str | None = None,
    objective: str = "pairs",
    tokenizer: Part = Part("characters"),
    lines: list[str] = LETTERS,
    larger: float = 2.0,
    ends: float = 1.0,
    seed: int = 0,
) -> Pipeline:
    """A model of these parts, with weights `larger` than a model begins with, through a model folder.

    `ends` is what the logit of </s> has ahead of the others.
    """
    joint = objective == "lm"
    named = {"name": tokenizer.name, **tokenizer.options}
    value = {
        "data": {"train": "nowhere.tsv"},
        "tokenizer": {"source": named, "joint": joint},
        "model": {"width": 16, "tie": "all" if joint else "none", "encoder": encoder, "decoder": decoder, "head": head},
        "training": {"objective": objective},
        "generation": {"ratio": 1.0, "extra": 6},
    }
    config = configs.validate(value, "a test")
    codec = codecs.learn(tokenizer, tokenizer, joint, "nfc", lines, LABELS if head else lines, [])
    torch.manual_seed(seed)
    model = configs.build_model(config, len(codec.source), len(codec.target))
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(larger)
        model.output.bias[EOS] += ends
    checkpoint.save(folder, config, checkpoint.unique_weights(model), codec, {})
    return dragoman.load(folder, "cpu")


@pytest.fixture
def build(tmp_path: Path) -> Callable[[Any, Any], Pipeline]:
    """A model of any encoder and decoder over characters."""
    return lambda encoder, decoder: save_and_load(tmp_path / "model", encoder, decoder)


@pytest.fixture(scope="session")
def transformer(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    """2 + 2 layers of 2 heads over subwords of English."""
    subwords = Part("bpe", {"size": 48, "byte_fallback": False})
    folder = tmp_path_factory.mktemp("models") / "transformer"
    return save_and_load(folder, TRANSFORMER, TRANSFORMER, tokenizer=subwords, lines=WORDS, larger=1.5, ends=3.0)


@pytest.fixture(scope="session")
def rnn(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    """A recurrent encoder and decoder with additive attention before the cell (Bahdanau)."""
    decoder = {**RNN, "order": "before", "score": "additive"}
    return save_and_load(tmp_path_factory.mktemp("models") / "rnn", RNN, decoder)


@pytest.fixture(scope="session")
def convolutional(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    """2 + 2 convolutions, each of the decoder's with an attention."""
    folder = tmp_path_factory.mktemp("models") / "convolutional"
    return save_and_load(folder, CONVOLUTIONS, CONVOLUTIONS, larger=1.0)


@pytest.fixture(scope="session")
def no_attention(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    """A recurrent decoder that knows the source from the encoder's summary alone."""
    return save_and_load(
        tmp_path_factory.mktemp("models") / "no_attention", RNN, {**RNN, "source": "context"}, ends=2.0
    )


@pytest.fixture(scope="session")
def decoder_only(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    """One network over one sequence, the source and then the target."""
    folder = tmp_path_factory.mktemp("models") / "decoder_only"
    return save_and_load(folder, "none", {**TRANSFORMER, "source": "prefix"}, larger=1.5)


@pytest.fixture(scope="session")
def language_model(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    """A decoder alone, which goes on with a text."""
    folder, decoder = tmp_path_factory.mktemp("models") / "language_model", {**TRANSFORMER, "source": "prefix"}
    return save_and_load(folder, "none", decoder, objective="lm")


@pytest.fixture(scope="session")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    """An encoder with a head that says one of the labels a, b and c."""
    folder = tmp_path_factory.mktemp("models") / "classifier"
    return save_and_load(folder, TRANSFORMER, None, head="classifier", objective="labels")
