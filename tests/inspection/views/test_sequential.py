"""Sequential steps are the layer calls that had to run one after the other."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from dragoman.inspection.views.sequential import count_sequential_steps

LAYERS, EACH, TWICE = (lambda n: 2), (lambda n: n), (lambda n: 2 * n)
STEPS: dict[str, list[Callable[[int], int]]] = {  # encoder, decoder in training, decoder in search
    "transformer": [LAYERS, LAYERS, TWICE],
    "convolutional": [LAYERS, LAYERS, TWICE],
    "rnn": [EACH, EACH, EACH],
    "no_attention": [EACH, EACH, EACH],
    "decoder_only": [lambda n: 0, LAYERS, TWICE],
    "language_model": [lambda n: 0, LAYERS, TWICE],
    "classifier": [LAYERS],
}


@pytest.mark.parametrize("kind", STEPS)
def test_recurrence_takes_a_step_for_each_token_and_layers_over_all_positions_one_each(kind: str, request: Any) -> None:
    view = count_sequential_steps(request.getfixturevalue(kind))
    assert [row["part"] for row in view["rows"]] == ["encoder", "decoder in training", "decoder in search"][
        : len(STEPS[kind])
    ]
    for row, truth in zip(view["rows"], STEPS[kind], strict=True):
        assert row["steps"] == [truth(n) for n in view["lengths"]]
        assert ("however long" in row["sentence"]) == (row["steps"][0] == row["steps"][1])
        assert ("for each token" in row["sentence"]) == (row["steps"][0] != row["steps"][1])


def test_attention_that_the_cell_does_not_wait_for_leaves_the_recurrence(build: Any) -> None:
    """Luong's decoder reads the whole target at once in training, and its cell still goes step by step."""
    encoder = {"name": "rnn", "cell": "lstm", "layers": 3}
    pipeline = build(encoder, {"name": "rnn", "cell": "lstm", "layers": 2, "order": "after"})
    rows = count_sequential_steps(pipeline)["rows"]
    assert [row["steps"] for row in rows] == [[24, 48], [16, 32], [16, 32]]
    assert rows[0]["sentence"] == "encoder: 3 steps for each token of the source"


def test_dropping_the_recursion_leaves_one_step(build: Any) -> None:
    rows = count_sequential_steps(build("identity", "attention"))["rows"]
    assert [row["steps"] for row in rows] == [[0, 0], [1, 1], [8, 16]]


@pytest.mark.parametrize("kind", STEPS)
def test_the_view_is_plain_data(kind: str, request: Any) -> None:
    view = count_sequential_steps(request.getfixturevalue(kind))
    assert json.loads(json.dumps(view, allow_nan=False)) == view
