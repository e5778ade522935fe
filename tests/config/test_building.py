"""What a config stands for is built without a trace."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dragoman.config import load, rehearse
from dragoman.core.errors import ConfigError
from dragoman.core.types import Memory, Output, Segments
from dragoman.nn.decoders import decoders
from dragoman.nn.decoders.transformer import TransformerDecoder
from dragoman.nn.encoders import encoders

from .conftest import TINY, written


def test_a_rehearsal_leaves_the_random_numbers_as_they_were(tmp_path: Path) -> None:
    config = load(written(tmp_path, TINY)).config
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    assert rehearse(config) == []
    assert torch.equal(torch.rand(3), expected)


# -- a user's own parts ------------------------------------------------------------------------------------------------


class OwnEncoder(nn.Module):
    """Returns what `wrong` says of it."""

    def __init__(self, d_in: int, *, wrong: str = "") -> None:
        super().__init__()
        self.d, self.wrong, self.W = d_in, wrong, nn.Linear(d_in + 1, d_in)

    def forward(self, x: Tensor, segments: Segments) -> Any:
        h, lengths, summary = x, segments.lengths, segments.mean(x)
        if self.wrong == "matrix":
            h = self.W(x)
        memory = Memory(h, lengths, summary)
        wrong: dict[str, Any] = {
            "width": Memory(h[..., :-1], lengths, summary),
            "rows": Memory(h[:1], lengths, summary),
            "dimensions": Memory(h[0], lengths, summary),
            "lengths": Memory(h, lengths[:, None], summary),
            "summary": Memory(h, lengths, summary[:, None]),
            "tensor": h,
        }
        return wrong.get(self.wrong, memory)


class OwnDecoder(TransformerDecoder):
    def __init__(self, d_in: int, d_memory: int, *, wrong: str = "") -> None:
        super().__init__(d_in, d_memory, layers=1, heads=1)
        self.wrong = wrong

    def forward(self, y: Tensor, memory: Memory, *rest: Any) -> Output:
        output = super().forward(y, memory, *rest)
        return Output(output.o[:, :-1]) if self.wrong == "forward" else output

    def step(self, y: Tensor, state: Any) -> Any:
        output, state = super().step(y, state)
        return (Output(output.o[:, 0]) if self.wrong == "step" else output), state


@pytest.fixture
def own_parts() -> Iterator[None]:
    encoders.names, decoders.names  # noqa: B018 - ours are found first
    encoders._parts["own"], decoders._parts["own"] = OwnEncoder, OwnDecoder
    yield
    del encoders._parts["own"], decoders._parts["own"]


@pytest.mark.usefixtures("own_parts")
@pytest.mark.parametrize(
    ("part", "wrong", "words"),
    [
        (
            "encoder",
            "width",
            r"encoder \(OwnEncoder\): its states must have the shape \(2, any, 8\), found \(2, 3, 7\)",
        ),
        ("encoder", "rows", r"its states must have the shape \(2, any, 8\), found \(1, 3, 8\)"),
        ("encoder", "dimensions", r"its states must have the shape \(2, any, 8\), found \(3, 8\)"),
        ("encoder", "lengths", r"its lengths must have the shape \(2\), found \(2, 1\)"),
        ("encoder", "summary", r"its summary must have the shape \(2, 8\), found \(2, 1, 8\)"),
        ("encoder", "tensor", r"encoder \(OwnEncoder\): must return Memory, found Tensor"),
        ("encoder", "matrix", r"OwnEncoder \(.*test_building.py:\d+\): mat1 and mat2 shapes cannot be multiplied"),
        ("decoder", "forward", r"decoder \(OwnDecoder\): its o must have the shape \(2, 2, 8\), found \(2, 1, 8\)"),
        ("decoder", "step", r"decoder \(OwnDecoder\): its o of a step must have the shape \(2, 1, 8\), found \(2, 8\)"),
    ],
)
def test_a_wrong_shape_in_a_part_of_ones_own_names_the_part_and_both_shapes(
    part: str, wrong: str, words: str, tmp_path: Path
) -> None:
    sizes = {"encoder": 8, "decoder": 8}
    text = f"data: {{train: a.tsv}}\nmodel:\n  width: {sizes[part]}\n"
    for name in ("encoder", "decoder"):
        text += f"  {name}: {{name: own, wrong: '{wrong if name == part else ''}'}}\n"
    with pytest.raises(ConfigError, match=words):
        load(written(tmp_path, text))


@pytest.mark.usefixtures("own_parts")
def test_a_part_of_ones_own_that_is_right_is_accepted(tmp_path: Path) -> None:
    text = "data: {train: a.tsv}\nmodel: {width: 8, encoder: own, decoder: own}\n"
    assert rehearse(load(written(tmp_path, text)).config) == []
