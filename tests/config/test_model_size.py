"""A model's size is known before it takes memory."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman.config import build_meta_model, build_model, load, rehearse, validate
from dragoman.core.errors import ConfigError
from dragoman.nn.decoders import decoders
from dragoman.nn.encoders import encoders
from dragoman.nn.encoders.rnn import RNNEncoder
from dragoman.nn.positions import positions

from .conftest import TINY, written


@pytest.mark.parametrize(
    "model",
    [
        *({"encoder": name} for name in encoders.names if name != "none"),
        *({"decoder": name} for name in decoders.names),
        *({"encoder": {"name": "transformer", "position": name}} for name in positions.names),
        *({"frontend": name} for name in ("image", "audio", "features")),
    ],
    ids=str,
)
def test_a_model_without_memory_has_the_weights_of_the_real_one(model: dict[str, object]) -> None:
    config = validate({"data": {"train": "x.tsv"}, "model": {"width": 16, **model}}, "here")
    sizes = (8, 9, 0)
    real, meta = build_model(config, *sizes), build_meta_model(config, sizes)
    assert {name: x.shape for name, x in meta.state_dict().items()} == {
        name: x.shape for name, x in real.state_dict().items()
    }
    assert all(p.is_meta for p in meta.parameters())


@pytest.mark.parametrize(
    "change", ["width=400000", "width=1000000000000000000", "encoder.layers=1000000", "encoder.width=10000000000"]
)
def test_a_model_beyond_this_machine_is_one_problem_before_it_is_built(tmp_path: Path, change: str) -> None:
    began = time.process_time()
    with pytest.raises(ConfigError) as caught:
        load(written(tmp_path, TINY), None, [f"model.{change}"])
    assert len(caught.value.problems) == 1
    assert caught.value.problems[0].startswith("model: ")
    assert time.process_time() - began < 5


def test_a_part_of_ones_own_may_compute_as_it_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    class OwnEncoder(RNNEncoder):
        def __init__(self, d: int, *, n: int = 1) -> None:
            super().__init__(d)
            self.scale = torch.ones(n).sum().item()  # which a tensor without memory has not

    assert encoders.names
    monkeypatch.setitem(encoders._parts, "own", OwnEncoder)
    model: dict[str, Any] = {"width": 16, "tie": "none", "encoder": "own", "decoder": "rnn"}
    assert rehearse(validate({"data": {"train": "x.tsv"}, "model": model}, "here")) == []
