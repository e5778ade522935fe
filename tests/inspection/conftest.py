"""Small models for looking inside, each saved as a model folder and opened as users open one.

Their weights are random but large, so that they say something definite, attend to some places more than to others, and
come to an end now and then. `transformer` splits words into subwords; the others read characters. `MEDIA` are models
that see or hear: each with a source of its own, a file in the folder it is built in.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from tests.codec_learning import learn_codec

import dragoman
from dragoman import config as configs
from dragoman.checkpoint import model_folder
from dragoman.core.registry import Part
from dragoman.core.types import EOS
from dragoman.data.samples import scenes
from dragoman.inference.pipeline import Pipeline

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
        "generation": {"max_length_ratio": 1.0, "max_length_extra": 6},
    }
    config = configs.validate(value, "a test")
    codec = learn_codec(tokenizer, tokenizer, joint, "nfc", lines, LABELS if head else lines, [])
    torch.manual_seed(seed)
    model = configs.build_model(config, len(codec.source), len(codec.target))
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(larger)
        model.output.bias[EOS] += ends
    model_folder.save(folder, config, model_folder.unique_weights(model), codec, {})
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


# -- models that see or hear -------------------------------------------------------------------------------------------

CAPTIONS = ["a red square at the top", "a blue bar below", "the green pole moves left", "what color is it ?"]
IMAGE = {"name": "image", "pixels": 32, "channels": 4, "stages": [1, 1]}  # 4 × 4 cells
QUIET = {"name": "identity", "dropout": 0.0}
LOOKING = {**RNN, "order": "before", "score": "additive"}


class Seen(NamedTuple):
    """A model that sees or hears, and a source for it."""

    pipeline: Pipeline
    source: str


def picture(seed: int = 0, pixels: int = 40) -> Any:
    """(H, W, 3) bytes of two things on dark ground."""
    rng = np.random.default_rng(seed)
    things = [
        scenes.place_in_corner("square", "red", seed % 4, rng),
        scenes.place_in_corner("bar", "blue", (seed + 1) % 4, rng),
    ]
    return scenes.render(things, pixels, rng)


def tone(folder: Path) -> str:
    """0.31 seconds of a tone that rises, at another rate than models read."""
    soundfile = pytest.importorskip("soundfile")
    t = np.arange(int(0.31 * 11_025)) / 11_025
    soundfile.write(folder / "tone.wav", 0.3 * np.sin(2 * np.pi * (300 + 4000 * t) * t), 11_025)
    return str(folder / "tone.wav")


def photo(folder: Path) -> str:
    (folder / "photo.png").write_bytes(scenes.encode_png(picture()))
    return str(folder / "photo.png")


def question(folder: Path) -> str:
    return f"what color is it ?\t{photo(folder)}"


def frames(folder: Path) -> str:
    np.save(folder / "frames.npy", np.random.default_rng(0).normal(size=(23, 5)).astype(np.float32))
    return str(folder / "frames.npy")


def clip(folder: Path) -> str:
    (folder / "moving").mkdir()
    for i in range(3):
        (folder / "moving" / f"{i}.png").write_bytes(scenes.encode_png(picture(i)))
    return str(folder / "moving")


# name → (a source, what its model is made of)
MEDIA: dict[str, tuple[Callable[[Path], str], dict[str, Any]]] = {
    "soft": (photo, {"frontend": IMAGE, "encoder": QUIET, "decoder": LOOKING}),
    "hard": (photo, {"frontend": IMAGE, "encoder": QUIET, "decoder": LOOKING | {"normalizer": "hard"}}),
    "patches": (
        photo,
        {
            "frontend": {"name": "image", "pixels": 24, "grid": "patches", "patch": 8},
            "encoder": TRANSFORMER,
            "decoder": TRANSFORMER,
        },
    ),
    "speech": (
        tone,
        {
            "frontend": {"name": "audio", "rate": 8000, "bins": 16, "channels": 4, "features": "torch"},
            "encoder": RNN,
            "decoder": LOOKING,
            "ctc": True,
        },
    ),
    "frames": (
        frames,
        {
            "frontend": {"name": "features", "numbers": 5, "subsampling": "stack", "stack": 3, "shift": 0.02},
            "encoder": {"name": "pyramid", "layers": 1, "cell": "gru", "dropout": 0.0},
            "decoder": LOOKING,
        },
    ),
    "clip": (
        clip,
        {"frontend": IMAGE | {"name": "video", "frames": 6}, "encoder": RNN, "decoder": LOOKING},
    ),
    "cells": (
        clip,
        {"frontend": IMAGE | {"name": "video", "frames": 6, "pool": "none"}, "encoder": QUIET, "decoder": LOOKING},
    ),
    "asked": (
        question,
        {"encoder": TRANSFORMER, "second_source": {"frontend": IMAGE, "encoder": TRANSFORMER}, "decoder": LOOKING},
    ),
}


def seeing(folder: Path, kind: str, seed: int = 0) -> Seen:
    """A model of `MEDIA` through a model folder, and its source."""
    source, parts = MEDIA[kind]
    heard = 0.4 if parts.get("ctc") else 0.0
    value: dict[str, Any] = {
        "data": {"train": "nowhere.tsv"},
        "tokenizer": {"source": "words"},
        "model": {"width": 16, "tie": "none", **parts},
        "training": {"ctc_weight": heard},
        "generation": {"max_length_ratio": 0.0, "min_new_tokens": 4, "max_length_extra": 7, "ctc_weight": heard},
    }
    if parts.get("second_source"):
        value["data"]["columns"] = ["source", "second_source", "target"]
    config = configs.validate(value, "a test")
    media, words = configs.source_readers(config), Part("words")
    codec = learn_codec(words, words, False, "nfc", CAPTIONS, CAPTIONS, [], *media)
    torch.manual_seed(seed)
    model = configs.build_model(config, codec.source_size, len(codec.target), codec.second_source_size)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.mul_(1.0 if "frontend" in name else 2.0)
        model.output.bias[EOS] += 0.5
    folder.mkdir(parents=True, exist_ok=True)
    model_folder.save(folder / kind, config, model_folder.unique_weights(model), codec, {})
    return Seen(dragoman.load(folder / kind, "cpu"), source(folder))


@pytest.fixture(scope="session")
def media(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Seen]:
    """Any of `MEDIA`, each built once."""
    built: dict[str, Seen] = {}

    def found(kind: str) -> Seen:
        if kind not in built:
            built[kind] = seeing(tmp_path_factory.mktemp(kind), kind)
        return built[kind]

    return found
