"""Named systems: what their papers say is in them, they have as many weights, and they train."""

from __future__ import annotations

import math
import re
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from dragoman import config as configs
from dragoman import training
from dragoman.checkpoint import model_folder
from dragoman.config import Config
from dragoman.core import yaml
from dragoman.data.objectives import objectives

EVERY = list(configs.list_presets())

PAIRS = "a cat sat .\tune chatte est assise .\nthe dog ran .\tle chien court .\na bird sang !\tun oiseau chante !\n"
TEXTS = "a cat sat . a dog ran .\nthe bird sang and sang !\nno dog sang . why ?\n"

WIDTHS = {100: 4, 620: 6, 1000: 8, 2000: 16}  # sizes that train in no time; those that differ go on doing so
SMALL = {"layers": 2, "residual": 2, "heads": 2, "feedforward": 12}


def plain(name: str) -> dict[str, Any]:
    """A preset with every default filled in, and no model built."""
    text = (resources.files("dragoman.presets") / f"{name}.yaml").read_text(encoding="utf-8")
    value = yaml.parse(text, name)
    return configs.validate({**value, "data": {"train": "train.tsv", **value.get("data", {})}}, name).model_dump()


def at(value: Any, key: str) -> Any:
    """`a.b.c` in a nested mapping, None where there is none; a part without options is its bare name."""
    for part in key.split("."):
        if isinstance(value, str):
            value = {"name": value}
        value = value.get(part) if value is not None else None
    return value


# -- what the papers say -----------------------------------------------------------------------------------------------

ONE, TWO = "model.encoder.", "model.decoder."

FACTS: list[tuple[str, dict[str, Any]]] = [
    (
        "sutskever2014",
        {
            ONE + "layers": 4,
            ONE + "reverse": True,
            ONE + "directions": "one",
            TWO + "source": "initial",
            TWO + "bridge": "copy",
            "model.initializer.range": 0.08,
            "training.optimizer.rate": 0.7,
            "training.optimizer.momentum": 0.0,
            "training.clip": 5.0,
            "training.batch_sentences": 128,
            "tokenizer.source.size": 160_000,
            "tokenizer.target.size": 80_000,
        },
    ),
    (
        "cho2014",
        {
            "model.width": 100,
            ONE + "directions": "one",
            ONE + "reset": "before",
            TWO + "reset": "before",
            TWO + "source": "context",
            TWO + "reads": "scy",
            TWO + "readout": "maxout",
            "model.initializer.std": 0.01,
            "model.initializer.orthogonal": True,
            "training.optimizer.name": "adadelta",
            "training.batch_sentences": 64,
        },
    ),
    (
        "bahdanau2015",
        {
            "model.width": 620,
            ONE + "width": 2000,
            ONE + "directions": "both",
            ONE + "reset": "before",
            TWO + "width": 1000,
            TWO + "order": "before",
            TWO + "score.name": "additive",
            TWO + "readout": "maxout",
            "training.optimizer.rho": 0.95,
            "training.optimizer.eps": 1e-6,
            "training.clip": 1.0,
            "training.batch_sentences": 80,
            "data.max_source": 51,
        },
    ),
    (
        "luong2015",
        {
            TWO + "layers": 4,
            TWO + "order": "after",
            TWO + "input_feeding": True,
            TWO + "score.name": "general",
            TWO + "normalizer.name": "local_p",
            TWO + "normalizer.window": 10,
            TWO + "dropout": 0.2,
            ONE + "reverse": True,
            "model.initializer.range": 0.1,
            "training.optimizer.rate": 1.0,
            "training.clip": 5.0,
            "training.batch_sentences": 128,
        },
    ),
    (
        "gnmt2016",
        {
            ONE + "layers": 8,
            ONE + "directions": "first",
            ONE + "residual": 3,
            TWO + "layers": 8,
            TWO + "residual": 3,
            TWO + "order": "bottom",
            TWO + "readout": "none",
            "model.initializer.range": 0.04,
            "training.optimizer.rate": 2e-4,
            "generation.length_rule.name": "gnmt",
            "generation.length_rule.alpha": 0.2,
            "generation.beam": 8,
        },
    ),
    (
        "convs2s2017",
        {
            ONE + "layers": 20,
            ONE + "kernel": 3,
            TWO + "weight_norm": True,
            TWO + "score.name": "dot",
            "training.optimizer.momentum": 0.99,
            "training.optimizer.nesterov": True,
            "training.optimizer.rate": 0.25,
            "training.clip": 0.1,
            "generation.beam": 5,
        },
    ),
    (
        "transformer-base",
        {
            ONE + "norm_order": "post",
            ONE + "dropout": 0.1,
            "model.tie": "all",
            "training.clip": None,
            "training.label_smoothing": 0.1,
            "training.optimizer.beta2": 0.98,
            "training.optimizer.eps": 1e-9,
            "training.average": 5,
            "generation.beam": 4,
            "generation.length_rule.alpha": 0.6,
            "generation.max_length_extra": 50,
        },
    ),
    (
        "transformer-big",
        {TWO + "heads": 16, TWO + "dropout": 0.3, "training.steps": 300_000, "training.average": 20},
    ),
    (
        "bert",
        {
            "model.decoder": None,
            "model.head.hidden": True,
            "model.frontend.scale": False,
            ONE + "activation": "gelu",
            ONE + "norm_order": "post",
            ONE + "embedding_norm": True,
            ONE + "position.length": 512,
            "training.optimizer.beta2": 0.999,
            "training.schedule.warmup": 10_000,
            "training.objective.share": 0.15,
        },
    ),
    (
        "gpt2",
        {
            ONE + "name": "none",
            TWO + "source": "prefix",
            TWO + "activation": "gelu_tanh",
            TWO + "norm_order": "pre",
            TWO + "embedding_norm": False,
            TWO + "position.length": 1024,
            "model.scale": False,
            "model.output_bias": False,
        },
    ),
    (
        "bart",
        {
            ONE + "norm_order": "post",
            TWO + "embedding_norm": True,
            TWO + "activation": "gelu",
            "training.objective.infill": 0.3,
            "training.objective.span": 3.0,
            "training.objective.permute": True,
        },
    ),
    (
        "t5",
        {
            ONE + "bias": False,
            ONE + "activation": "relu",
            TWO + "norm.name": "rms",
            TWO + "norm.eps": 1e-6,
            TWO + "norm_order": "pre",
            TWO + "score.name": "dot",
            ONE + "fold_scaling_into_initializer": True,
            TWO + "fold_scaling_into_initializer": True,
            TWO + "position.buckets": 32,
            TWO + "position.distance": 128,
            "model.tie": "all",
            "model.scale": True,
            "training.optimizer.name": "adafactor",
            "training.steps": 2**19,
            "training.batch_tokens": 2**16,
            "generation.search.name": "greedy",
        },
    ),
    (
        "unilm",
        {ONE + "name": "none", TWO + "source": "full_prefix", TWO + "layers": 24, "training.batch_sentences": 330},
    ),
    (
        "show-attend-tell-soft",
        {
            TWO + "cell": "lstm",
            TWO + "order": "before",
            TWO + "gate": True,
            TWO + "doubly_stochastic": 1.0,
            TWO + "bridge": "dense",
            TWO + "readout": "linear",
            TWO + "reads": "scy",
            "tokenizer.target.size": 10_000,
            "training.batch_sentences": 64,
            "model.frontend.flip": True,  # of photographs
        },
    ),
    ("image-transformer", {"model.frontend.flip": True}),
    (
        "show-attend-tell-hard",
        {
            "model.frontend.flip": True,
            TWO + "normalizer.name": "hard",
            TWO + "normalizer.entropy": 0.002,
            TWO + "gate": True,
            TWO + "order": "before",
        },
    ),
    ("char-rnn-lm", {"tokenizer.source.name": "characters", TWO + "cell": "lstm", "training.optimizer.rho": 0.95}),
]


@pytest.mark.parametrize(("name", "facts"), FACTS, ids=[name for name, _ in FACTS])
def test_a_preset_says_what_its_paper_says(name: str, facts: dict[str, Any]) -> None:
    value = plain(name)
    assert {key: at(value, key) for key in facts} == facts


@pytest.mark.parametrize(("name", "width"), [("transformer-base", 512), ("transformer-big", 1024)])
def test_the_rate_of_a_transformer_peaks_where_the_papers_formula_does(name: str, width: int) -> None:
    options = plain(name)["training"]
    warmup = options["schedule"]["warmup"]
    assert warmup == 4000
    assert options["optimizer"]["rate"] == pytest.approx(width**-0.5 * warmup**-0.5, rel=2e-3)


def test_what_came_with_the_transformer_is_in_no_system_before_it() -> None:
    """Defaults that the papers did not know: smoothed labels, embeddings times √D, a warm-up."""
    for name in ("sutskever2014", "cho2014", "bahdanau2015", "luong2015", "gnmt2016", "convs2s2017", "char-rnn-lm"):
        value = plain(name)
        assert at(value, "training.label_smoothing") == 0.0, name
        assert [at(value, "model.scale"), at(value, "model.frontend.scale")] == [False, False], name
        assert not at(value, "training.schedule.warmup"), name


# -- how many weights they have ----------------------------------------------------------------------------------------

MILLIONS = {  # name: (vocabularies, the published number, how near)
    "sutskever2014": ((160_000, 80_000), 384, 0.01),
    "transformer-base": ((37_000, 37_000), 65, 0.035),
    "transformer-big": ((37_000, 37_000), 213, 0.01),
    "bert": ((30_522, 30_522), 110, 0.01),
    "gpt2": ((50_257, 50_257), 124, 0.01),
    "bart": ((50_265, 50_265), 139, 0.01),
    "t5": ((32_128, 32_128), 220, 0.02),
    "unilm": ((28_996, 28_996), 340, 0.03),
}


@pytest.mark.parametrize("name", MILLIONS)
def test_a_preset_has_as_many_weights_as_published(name: str) -> None:
    sizes, millions, near = MILLIONS[name]
    with torch.device("meta"):  # where weights have shapes and no memory
        model = configs.build_model(Config.model_validate(plain(name)), *sizes)
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(millions, rel=near)


# -- they train --------------------------------------------------------------------------------------------------------


def shrunk(value: dict[str, Any]) -> list[str]:
    """What makes a preset small, as --set has it; shapes, orders, objectives and optimizers stay."""
    sets = [f"model.width={WIDTHS.get(value['model']['width'], 8)}"]
    if value["model"]["frontend"]["name"] == "image":
        sets += ["model.frontend.pixels=32", "model.frontend.channels=4"]
    for side in ("encoder", "decoder"):
        part = value["model"][side]
        options: dict[str, Any] = part if isinstance(part, dict) else {}
        sets += [f"model.{side}.{key}={size}" for key, size in SMALL.items() if options.get(key)]
        for key in ("width", "score.width"):
            if width := at(options, key):
                sets.append(f"model.{side}.{key}={WIDTHS.get(width, 8)}")
    sets += [f"tokenizer.{side}.size=400" for side in ("source", "target") if at(value, f"tokenizer.{side}.size")]
    if "warmup" in value["training"]["schedule"]:
        sets.append("training.schedule.warmup=1")
    return sets


def draw(folder: Path) -> None:
    """A picture under the name of each source, for the presets whose sources are pictures."""
    for i, line in enumerate(PAIRS.splitlines()):
        pixels = np.random.default_rng(i).integers(0, 256, (24, 24, 3), np.uint8)
        Image.fromarray(pixels).save(folder / line.split("\t")[0], "png")


def speak(folder: Path) -> None:
    """A second of noise under the name of each source, for the presets whose sources are sounds."""
    soundfile = pytest.importorskip("soundfile")
    pytest.importorskip("kaldi_native_fbank")
    for i, line in enumerate(PAIRS.splitlines()):
        noise = np.random.default_rng(i).normal(0, 0.1, 16_000).astype(np.float32)
        soundfile.write(folder / line.split("\t")[0], noise, 16_000, format="WAV")


@pytest.mark.parametrize("name", EVERY)
def test_a_preset_trains_with_nothing_but_a_file_given(name: str, tmp_path: Path) -> None:
    value = plain(name)
    objective = at(value, "training.objective.name")
    if value["model"]["frontend"]["name"] == "audio":
        speak(tmp_path)
    else:
        draw(tmp_path)
    file = tmp_path / "train.txt"
    pairs = PAIRS if objective != "labels" else re.sub(r"\t(\w+).*", r"\t\1", PAIRS)
    file.write_text((pairs if objectives[objective].is_paired else TEXTS) * 4)  # type: ignore[attr-defined]
    short = ["training.steps=2", "training.log_every=1", "runtime.device=cpu", "runtime.threads=1"]
    config = configs.load(None, name, [f"data.train={file}", *shrunk(value), *short]).config
    losses = [report.loss for report in training.run(config, tmp_path / "run") if report.kind == "step"]
    assert [math.isfinite(loss) for loss in losses] == [True, True]
    model = model_folder.load(tmp_path / "run")
    if not model.model.is_stochastic:  # else there is a term in it whose gradient alone means something
        assert losses[0] == pytest.approx(math.log(len(model.codec.target)), rel=0.5)  # at first every token is as good


def test_every_preset_describes_itself_in_one_line() -> None:
    for name, line in configs.list_presets().items():
        assert 20 < len(line) <= 140, name
        assert line.endswith("."), name
