"""Small models with large random weights, so that few of their tokens are equally probable."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch
from tests.codec_learning import learn_codec

from dragoman import config as configs
from dragoman.checkpoint import model_folder
from dragoman.checkpoint.model_folder import LoadedModel
from dragoman.core.registry import Part
from dragoman.core.types import EOS, Example
from dragoman.engines.reference import decode_with_reference
from dragoman.nn.seq2seq import Seq2Seq
from dragoman.search import SearchConstraints, searches

WORDS = [
    "ab",
    "ba",
    "abc",
    "cab",
    "bac",
    "dada",
    "bcd",
    "add",
    "bad",
    "cad",
    "dab",
    "hefe",
    "gif",
    "fag",
    "hehe",
    "éh",
    ".",
    "n't",
]
JOINT = {"source": {"name": "bpe", "size": 40, "byte_fallback": False}, "joint": True}
SEPARATE = {
    "source": {"name": "bpe", "size": 36, "byte_fallback": False},
    "target": {"name": "unigram", "size": 30, "byte_fallback": False},
    "joint": False,
}
LONGEST = 30  # tokens of an output


def texts(count: int = 60) -> list[str]:
    rng = random.Random(0)
    return [" ".join(rng.choice(WORDS) for _ in range(rng.randrange(1, 6))) for _ in range(count)]


def transformer(**options: Any) -> dict[str, Any]:
    return {"name": "transformer", "layers": 2, "heads": 2, "feedforward": 24, **options}


def transformers(**options: Any) -> dict[str, Any]:
    """The model section of an encoder and a decoder with the same options."""
    return {"encoder": transformer(**options), "decoder": transformer(**options)}


def save_model(
    folder: Path,
    model: dict[str, Any],
    tokenizer: dict[str, Any] = JOINT,
    languages: tuple[str, ...] = (),
    end: float = 2.0,
    gain: float = 2.5,
    **sections: Any,
) -> Path:
    """A model folder with random matrices, `gain` times as large as a new model's; `end` is the bias of </s>."""
    value = {
        "data": {"train": "nowhere.tsv"},
        "tokenizer": tokenizer,
        "model": {"width": 16, **model},
        **sections,
    }
    config = configs.validate(value, "random")
    tokenizing = config.tokenizer
    codec = learn_codec(
        tokenizing.source,
        tokenizing.target or tokenizing.source,
        tokenizing.joint,
        "nfc",
        texts(),
        [text.upper() for text in texts()] if not tokenizing.joint else texts(),
        list(languages),
    )
    built = configs.build_model(config, codec.source_size, len(codec.target), codec.second_source_size)
    sharpen(built, gain, end)
    model_folder.save(folder, config, model_folder.unique_weights(built), codec, {})
    return folder


@torch.no_grad()
def sharpen(model: Seq2Seq, gain: float, end: float) -> None:
    """Multiply the matrices, move all vectors, and let outputs end."""
    for weight in model.parameters():
        if weight.dim() > 1:
            weight.mul_(gain)
        else:
            weight.add_(torch.randn_like(weight) * 0.2)
    if model.decoder is not None and model.output.bias is not None:
        model.output.bias[EOS] += end


def sources(loaded: LoadedModel, count: int = 40) -> list[list[int]]:
    """The ids of some texts, of many lengths."""
    return [[int(i) for i in loaded.codec.encode_source(Example(text))] for text in texts(count)]


@torch.inference_mode()
def our_outputs(loaded: LoadedModel, sources: list[list[int]], longest: int = LONGEST) -> list[list[int]]:
    """The tokens of our own greedy search."""
    limits = SearchConstraints(torch.full((len(sources),), longest))
    found = decode_with_reference(loaded.model, sources, searches.build(Part("greedy")), limits)
    return [hypotheses[0].tokens for hypotheses in found]


@torch.inference_mode()
def our_logits(loaded: LoadedModel, source: torch.Tensor, lengths: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The logits after each target token, by teacher forcing."""
    memory = loaded.model.encode(source, lengths)
    return loaded.model.logits(loaded.model.decode(target, memory).o)
