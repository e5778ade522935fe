"""The pyramid against its own layers, called one row and one pair at a time."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dragoman.core.registry import Part
from dragoman.core.types import Segments
from dragoman.nn.encoders import encoders
from dragoman.nn.frontends import frontends
from dragoman.nn.layers import stack_neighbors
from dragoman.nn.seq2seq import Seq2Seq


@torch.no_grad()
@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_every_layer_reads_pairs_of_what_is_below(cell: str) -> None:
    D, lengths = 6, [7, 4, 1]
    encoder: Any = encoders.build(Part("pyramid", {"cell": cell, "layers": 2}), D).double().eval()
    x = torch.randn(3, 7, D, dtype=torch.float64)
    memory = encoder(x, Segments(torch.tensor(lengths)))
    assert memory.lengths.tolist() == [2, 1, 1]
    assert encoder.stride == 4
    for i, n in enumerate(lengths):
        h = encoder.bottom.layers[0].rnn(x[i : i + 1, :n])[0][0]  # torch's own layer over one row
        for layer in encoder.upper:
            rows = [*h, torch.zeros(D, dtype=torch.float64)]
            beside = torch.stack([torch.cat([rows[j], rows[j + 1]]) for j in range(0, len(h), 2)])
            h, _ = layer.layers[0].rnn(beside[None])
            h = h[0]
        torch.testing.assert_close(memory.states[i, : len(h)], h)
        # The summary is the last state of each direction of the top layer.
        torch.testing.assert_close(memory.summary[i], torch.cat([h[-1, : D // 2], h[0, D // 2 :]]))
    assert memory.final[0].shape == (3, 3, D)


def test_pairs_are_concatenated_and_an_odd_one_with_zeros() -> None:
    x = torch.arange(1.0, 13).view(2, 3, 2)
    found, lengths = stack_neighbors(x, torch.tensor([3, 2]), 2)
    assert found.tolist() == [[[1, 2, 3, 4], [5, 6, 0, 0]], [[7, 8, 9, 10], [0, 0, 0, 0]]]
    assert lengths.tolist() == [2, 1]


def test_the_states_above_a_frontend_are_called_by_every_second_of_its_labels() -> None:
    model = Seq2Seq(
        6, 8, width=8, frontend=frontends.parse({"name": "audio", "bins": 6}), encoder=Part("pyramid", {"layers": 1})
    )
    for n in (1, 4, 5, 8, 9, 21):
        memory = model.encode(torch.randn(1, n, 6), torch.tensor([n]))
        labels = model.position_labels(n)
        assert len(labels) == int(memory.lengths) == memory.states.shape[1]
        assert labels == [f"{0.08 * j:.2f} s" for j in range(len(labels))]
