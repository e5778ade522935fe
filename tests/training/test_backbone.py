"""Pretrained weights from a file: names and shapes of torchvision's ResNet, and files that do not fit."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image
from torch import Tensor

from dragoman import config as configs
from dragoman import training
from dragoman.checkpoint import model_folder
from dragoman.config import Backbone
from dragoman.core.errors import ConfigError, RunError
from dragoman.core.registry import Part
from dragoman.nn.seq2seq import Seq2Seq
from dragoman.training.initial_weights import load_backbone

FRONTEND = {"name": "image", "pixels": 16, "channels": 4, "stages": [1, 1]}


def a_model() -> Seq2Seq:
    frontend = Part("image", {key: value for key, value in FRONTEND.items() if key != "name"})
    return Seq2Seq(48, 9, width=8, frontend=frontend, encoder=Part("identity"), decoder=Part("rnn"))


def a_resnet(channels: int = 4) -> dict[str, Tensor]:
    """As torchvision would save one of these sizes: with counters, a third stage and a classifier."""
    weights: dict[str, Tensor] = {"conv1.weight": torch.randn(channels, 3, 7, 7)}

    def norm(name: str, c: int) -> None:
        for kind in ("weight", "bias", "running_mean", "running_var"):
            weights[f"{name}.{kind}"] = torch.rand(c)
        weights[f"{name}.num_batches_tracked"] = torch.tensor(7)

    norm("bn1", channels)
    before = channels
    for stage in (1, 2, 3):
        c, block = channels * 2 ** (stage - 1), f"layer{stage}.0"
        for i, c_in in ((1, before), (2, c)):
            weights[f"{block}.conv{i}.weight"] = torch.randn(c, c_in, 3, 3)
            norm(f"{block}.bn{i}", c)
        if stage > 1:
            weights[f"{block}.downsample.0.weight"] = torch.randn(c, before, 1, 1)
            norm(f"{block}.downsample.1", c)
        before = c
    return weights | {"fc.weight": torch.randn(10, before), "fc.bias": torch.randn(10)}


def saved(folder: Path, weights: dict[str, Tensor]) -> str:
    safetensors.torch.save_file(weights, folder / "resnet.safetensors")
    return str(folder / "resnet.safetensors")


def test_every_weight_below_the_prefix_is_loaded_and_no_other(tmp_path: Path) -> None:
    model, weights = a_model(), a_resnet()
    before = {name: x.clone() for name, x in model_folder.unique_weights(model).items()}
    over = load_backbone(model, Backbone(file=saved(tmp_path, weights)))
    for name, x in model_folder.unique_weights(model).items():
        pretrained = name.removeprefix("frontend.net.")
        assert x.equal(weights[pretrained] if pretrained != name else before[name]), name
    assert {name.split(".")[0] for name in over if "num_batches" not in name} == {"layer3", "fc"}


def test_a_map_renames_by_the_longest_prefix_that_fits(tmp_path: Path) -> None:
    model, weights = a_model(), a_resnet()
    renamed = {f"trunk.{name}": x for name, x in weights.items() if not name.startswith("layer2")}
    renamed |= {f"trunk.last.{name[7:]}": x for name, x in weights.items() if name.startswith("layer2")}
    places = {"trunk": "frontend.net", "trunk.last": "frontend.net.layer2"}
    load_backbone(model, Backbone(file=saved(tmp_path, renamed), map=places))
    assert model.frontend.net.layer2[0].conv2.weight.equal(weights["layer2.0.conv2.weight"])
    assert model.frontend.net.bn1.running_var.equal(weights["bn1.running_var"])


def refused(folder: Path, weights: dict[str, Tensor], says: str, **options: Any) -> None:
    model = a_model()
    before = {name: x.clone() for name, x in model_folder.unique_weights(model).items()}
    with pytest.raises(RunError, match=says):
        load_backbone(model, Backbone(file=saved(folder, weights), **options))
    assert all(x.equal(before[name]) for name, x in model_folder.unique_weights(model).items())


def test_what_does_not_fit_is_named_and_nothing_is_changed(tmp_path: Path) -> None:
    less = a_resnet()
    del less["layer2.0.conv1.weight"], less["bn1.bias"]
    refused(
        tmp_path, less, r"'frontend\.net\.bn1\.bias' is missing; 'frontend\.net\.layer2\.0\.conv1\.weight' is missing"
    )
    refused(
        tmp_path,
        a_resnet() | {"conv1.weight": torch.zeros(8, 3, 7, 7)},
        r"'frontend\.net\.conv1\.weight' is \(8, 3, 7, 7\), the model needs \(4, 3, 7, 7\)",
    )
    refused(tmp_path, a_resnet(8), r"and \d+ more.*begins with .*model\.frontend to the same sizes")
    refused(tmp_path, a_resnet(), "no weight's name begins with 'frontend.nett'", map={"": "frontend.nett"})
    refused(tmp_path, a_resnet(), r"'frontend\.net\.bn1\.bias' is missing", map={"model": "frontend.net"})


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    for missing in (tmp_path / "weights.safetensors", tmp_path):  # a folder is no file either
        with pytest.raises(RunError, match=rf"training\.backbone\.file: there is no file '{missing}'; name"):
            load_backbone(a_model(), Backbone(file=str(missing)))


@pytest.mark.parametrize("content", [b"", b"not safetensors", b"\x80\x04pickled"])
def test_a_file_in_another_form_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "weights.pth").write_bytes(content)
    with pytest.raises(RunError, match=r"training\.backbone\.file: .*weights\.pth"):
        load_backbone(a_model(), Backbone(file=str(tmp_path / "weights.pth")))


def test_a_map_to_an_empty_name_is_a_problem_of_the_config() -> None:
    value = {"data": {"train": "x.tsv"}, "training": {"backbone": {"file": "w", "map": {"a": ""}}}}
    with pytest.raises(ConfigError, match=r"training\.backbone\.map: 'a' goes nowhere"):
        configs.validate(value, "config")


def test_a_frozen_backbone_stays_as_it_was_read_and_the_model_needs_the_file_no_more(tmp_path: Path) -> None:
    weights = a_resnet()
    file = saved(tmp_path, weights)
    for i in range(4):
        noise = np.random.default_rng(i).integers(0, 256, (16, 16, 3), np.uint8)
        Image.fromarray(noise).save(tmp_path / f"{i}.png")
    (tmp_path / "train.tsv").write_text("".join(f"{i}.png\tpicture {i}\n" for i in range(4)))
    value = {
        "data": {"train": str(tmp_path / "train.tsv")},
        "tokenizer": {"source": "words"},
        "model": {"width": 8, "frontend": FRONTEND, "encoder": "identity", "decoder": "rnn"},
        "training": {
            "steps": 3,
            "schedule": "constant",
            "backbone": {"file": file},
            "freeze": ["frontend.net"],
            "ema": 0.9,
        },
        "runtime": {"device": "cpu", "threads": 1},
    }
    losses = [r.loss for r in training.run(configs.validate(value, "frozen"), tmp_path / "run") if r.kind == "step"]
    assert all(map(math.isfinite, losses))
    Path(file).unlink()
    net = model_folder.load(tmp_path / "run").model.frontend.net
    for name, x in net.state_dict().items():
        assert x.equal(weights[name]), name
