"""The benchmark task: models of a few sizes, and pairs of random symbols with the lengths of sentences.

    source length ~ lognormal with mean L and σ = 0.5        target length = source length · lognormal, σ = 0.2

    tiny   the preset transformer-tiny: 4 + 4 layers of 128, one vocabulary of 8,000
    demo   the preset pronunciation, which `dragoman demo` trains: LSTMs of 256 with additive attention, 30 letters
    base   the preset transformer-base: 6 + 6 layers of 512, one vocabulary of 32,000

Of tiny and base there are four families with the same width: the Transformer, LSTMs with additive attention before the
cell or Luong's after it, and convolutions. Every one trains with label smoothing 0.1, dropout 0.1 (the demo's model has
none), clipping and AdamW.
"""

from __future__ import annotations

import hashlib
import math
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman import config as configs
from dragoman.config import Config
from dragoman.core.types import SPECIALS

FAMILIES = ("transformer", "rnn-additive", "rnn-luong", "conv")


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a model and of the pairs it learns from."""

    preset: str
    width: int
    layers: int
    heads: int
    feedforward: int
    vocabulary: int
    length: int  # the mean of the source's
    spread: float  # σ of the logarithm of lengths; 0: all alike
    tokens: int  # of a batch, the longer side with padding
    sentences: int | None
    pairs: int  # enough that sorting by length leaves little padding
    steps: int  # of one turn on a CPU: a second or a few


SHAPES = {
    "toy": ModelShape("transformer-tiny", 16, 1, 2, 32, 50, 6, 0.5, 200, None, 300, 2),
    "tiny": ModelShape("transformer-tiny", 128, 4, 4, 256, 8_000, 25, 0.5, 4_096, None, 50_000, 3),
    "demo": ModelShape("pronunciation", 256, 1, 4, 512, 30, 8, 0.35, 4_096, 64, 50_000, 80),
    "base": ModelShape("transformer-base", 512, 6, 8, 2_048, 32_000, 25, 0.5, 25_000, None, 200_000, 1),
}


def model_section(shape: ModelShape, family: str) -> dict[str, Any]:
    """The `model:` section of a family at the width of a shape."""
    sizes = {"dropout": 0.1}
    if family == "transformer":
        order = "post" if shape.preset == "transformer-base" else "pre"
        part = {
            "name": "transformer",
            "layers": shape.layers,
            "heads": shape.heads,
            "feedforward": shape.feedforward,
            "norm_order": order,
            **sizes,
        }
        return {"width": shape.width, "tie": "all", "encoder": part, "decoder": part}
    if family == "conv":
        part = {"name": "conv", "layers": shape.layers, "width": shape.width, "kernel": 3, **sizes}
        return {"width": shape.width, "tie": "none", "encoder": part, "decoder": part}
    layers = max(1, shape.layers // 3)  # so that they have about as many parameters
    part = {"name": "rnn", "cell": "lstm", "layers": layers, "width": shape.width, **sizes}
    attention = (
        {"order": "before", "score": "additive"} if family == "rnn-additive" else {"order": "after", "score": "general"}
    )
    return {"width": shape.width, "tie": "none", "encoder": part | {"directions": "both"}, "decoder": part | attention}


def training_config(
    shape: ModelShape,
    family: str | None,
    folder: Path,
    *,
    device: str,
    threads: int,
    precision: str,
    seed: int,
    steps: int,
    workers: int,
) -> Config:
    """The config of a training on the pairs in a folder, validated and saved only at its end."""
    value: dict[str, Any] = {
        "name": "bench",
        "seed": seed,
        "data": {
            "train": str(folder / "train.tsv"),
            "valid": str(folder / "valid.tsv"),
            "cache": str(folder / "cache"),
            "workers": workers,
            "max_source": 1024,
            "max_target": 1024,
        },
        "training": {
            "steps": steps,
            "batch_tokens": shape.tokens,
            "batch_sentences": shape.sentences,
            "optimizer": {"name": "adamw", "rate": 1e-4},
            "schedule": {"name": "inverse_sqrt", "warmup": min(100, steps)},
            "clip": 1.0,
            "label_smoothing": 0.1,
            "precision": precision,
            "validate_every": steps + 1,
            "save_every": steps + 1,
        },
        "generation": {"search": "greedy"},
        "runtime": {"device": device, "threads": threads},
    }
    if family is None and shape.preset == "pronunciation":
        demo = configs.load(None, "pronunciation", ["data.train=none.tsv"]).config
        value["model"], value["tokenizer"] = demo.model_dump()["model"], {"source": "symbols", "target": "symbols"}
    else:
        value["model"] = model_section(shape, family or "transformer")
        value["tokenizer"] = {"source": "symbols", "joint": True}
    return configs.validate(value, "the benchmark")


# -- pairs -------------------------------------------------------------------------------------------------------------


def sample_lengths(
    shape: ModelShape, count: int, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Random source and target lengths of pairs, without </s>."""
    mean = math.log(shape.length) - shape.spread**2 / 2
    source = rng.lognormal(mean, shape.spread, count) if shape.spread else np.full(count, float(shape.length))
    target = source * rng.lognormal(0.0, 0.4 * shape.spread, count) if shape.spread else source
    limit = 1000 if not shape.spread else 10 * shape.length
    return tuple(side.round().clip(1, limit).astype(np.int64) for side in (source, target))  # type: ignore[return-value]


def sample_symbols(shape: ModelShape, total: int, rng: np.random.Generator) -> list[str]:
    """Random symbols; every symbol of the vocabulary occurs, if `total` allows."""
    kinds = max(1, shape.vocabulary - len(SPECIALS))
    ids = rng.integers(0, kinds, total)
    ids[: min(kinds, total)] = np.arange(min(kinds, total))
    return np.array([f"{i}" for i in range(kinds)], dtype=object)[ids].tolist()  # type: ignore[no-any-return]


def write_pairs(folder: Path, shape: ModelShape, seed: int) -> None:
    """Write train.tsv and valid.tsv, if they do not exist."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, (name, count) in enumerate({"train": shape.pairs, "valid": min(500, shape.pairs)}.items()):
        path = folder / f"{name}.tsv"
        if path.exists():
            continue
        rng = np.random.default_rng((seed, number))
        sides = [_texts(shape, size, rng) for size in sample_lengths(shape, count, rng)]
        path.write_text("".join(f"{x}\t{y}\n" for x, y in zip(*sides, strict=True)), encoding="utf-8")


def _texts(shape: ModelShape, sizes: NDArray[np.int64], rng: np.random.Generator) -> list[str]:
    words = sample_symbols(shape, int(sizes.sum()), rng)
    ends = np.cumsum(sizes).tolist()
    return [" ".join(words[end - size : end]) for size, end in zip(sizes.tolist(), ends, strict=True)]


@contextmanager
def data_folder(folder: Path | None, shape: ModelShape, seed: int) -> Iterator[Path]:
    """A subfolder for the data of a shape, or a temporary folder."""
    if folder is not None:
        named = hashlib.sha256(repr((shape, seed)).encode()).hexdigest()[:12]
        yield folder.absolute() / named
        return
    with tempfile.TemporaryDirectory() as temporary:
        yield Path(temporary)
