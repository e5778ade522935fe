"""Gradients are slopes, positions are counted by hand, and steps are what had to run one after the other."""

from __future__ import annotations

import copy
import json
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from dragoman.core.errors import DataError, UserError
from dragoman.core.types import Example
from dragoman.data.batching import collate
from dragoman.inference.pipeline import Pipeline
from dragoman.inspection.views.saliency import by_distance, by_position, gradients, sequential

MODELS = ["transformer", "rnn", "convolutional", "no_attention", "decoder_only"]
PAIRS = {"transformer": ("the bee", "a road")}


def in_double(pipeline: Pipeline) -> Pipeline:
    return replace(pipeline, model=copy.deepcopy(pipeline.model).double(), fast=False)


def nudged(pipeline: Pipeline, pair: tuple[str, str], j: int, d: int, by: float) -> np.ndarray:
    """log p of each target token with one number of the embedded source moved."""

    def move(_: Any, __: Any, x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        x[0, j, d] += by
        return x

    handle = pipeline.model.frontend.register_forward_hook(move)
    found = pipeline.token_scores([pair])[0]
    handle.remove()
    return np.array(found)


@pytest.mark.parametrize("kind", MODELS)
def test_gradients_are_the_slopes_of_the_log_probabilities(kind: str, request: Any) -> None:
    pipeline, pair = in_double(request.getfixturevalue(kind)), PAIRS.get(kind, ("ab", "dc"))
    view = gradients(pipeline, *pair)
    S, T, h = len(view["source"]), len(view["target"]), 1e-5
    slopes = np.zeros((T, S, pipeline.model.frontend.d))
    for j in range(S):
        for d in range(slopes.shape[2]):
            slopes[:, j, d] = (nudged(pipeline, pair, j, d, h) - nudged(pipeline, pair, j, d, -h)) / (2 * h)
    truth = np.sqrt((slopes**2).sum(-1))
    assert truth.max() > 1e-3
    np.testing.assert_allclose(view["norms"], truth, rtol=1e-5, atol=1e-8)


def test_without_a_target_the_gradients_are_those_of_the_output(rnn: Pipeline) -> None:
    view = gradients(rnn, "abc")
    said = rnn.predict(["abc"])[0]
    assert view["target"] == [*said.tokens, "</s>"]
    assert np.shape(view["norms"]) == (len(view["target"]), 4)
    assert not any(module._forward_hooks for module in rnn.model.modules())
    assert all(p.grad is None for p in rnn.model.parameters())


def test_norms_by_distance_by_hand() -> None:
    norms = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]  # y_1 and y_2 by x_1, x_2, x_3: x_3 and y_1 are neighbors
    assert by_distance(norms) == [[1, 3.0], [2, (2.0 + 6.0) / 2], [3, (1.0 + 5.0) / 2], [4, 4.0]]


@pytest.mark.parametrize("reverse", [False, True])
def test_the_distance_counts_the_steps_from_reading_a_token_to_writing_another(build: Any, reverse: bool) -> None:
    encoder = {"name": "rnn", "cell": "gru", "directions": "one", "reverse": reverse}
    view = gradients(build(encoder, {"name": "rnn", "cell": "gru", "source": "initial"}), "abcd", "dc")
    source, target = range(len(view["source"])), range(len(view["target"]))
    order = [f"x{j}" for j in source][:: -1 if reverse else 1] + [f"y{t}" for t in target]  # read, then written
    norms: dict[int, list[float]] = {}
    for t in target:
        for j in source:
            norms.setdefault(order.index(f"y{t}") - order.index(f"x{j}"), []).append(view["norms"][t][j])
    assert [distance for distance, _ in view["by_distance"]] == sorted(norms)
    for distance, mean in view["by_distance"]:
        assert mean == pytest.approx(sum(norms[distance]) / len(norms[distance]))


# -- quality by source position ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", MODELS)
def test_a_position_counts_the_tokens_that_would_have_been_said_right(kind: str, request: Any) -> None:
    pipeline = request.getfixturevalue(kind)
    words = ["the old bridge", "a newer road", "roads", "an older bee"]
    letters = ["abc", "hgfedcbahg", "e", "bb a b", "aa", "fefefe"]
    texts = words if kind == "transformer" else letters
    said = [prediction.text for prediction in pipeline.predict(texts, beam=1)]  # which greedy search finds right
    examples = [Example(a, b) for a in texts for b in (*texts, *said) if b.strip()]
    count, right = Counter[int](), Counter[int]()
    for example in examples:
        source, target = pipeline.reading.encode(example), pipeline.codec.encode_target(example.target or "")
        logits = pipeline.model(collate([(source, target)], [0])).logits[0]
        for t in range(len(target) - 1):
            j = math.ceil((t + 1) * (len(source) - 1) / (len(target) - 1))
            count[j] += 1
            right[j] += int(logits[t].argmax()) == target[t]
    truth = [{"position": j, "count": count[j], "correct": right[j] / count[j]} for j in sorted(count)]
    found = by_position(pipeline, [*examples, Example("abc"), Example(" ", "a")])["points"]
    assert found == truth
    assert 0 < sum(right.values()) < sum(count.values())


# -- sequential steps --------------------------------------------------------------------------------------------------

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
    view = sequential(request.getfixturevalue(kind))
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
    rows = sequential(pipeline)["rows"]
    assert [row["steps"] for row in rows] == [[24, 48], [16, 32], [16, 32]]
    assert rows[0]["sentence"] == "encoder: 3 steps for each token of the source"


def test_dropping_the_recursion_leaves_one_step(build: Any) -> None:
    rows = sequential(build("identity", "attention"))["rows"]
    assert [row["steps"] for row in rows] == [[0, 0], [1, 1], [8, 16]]


# -- what cannot be shown ----------------------------------------------------------------------------------------------


def test_what_has_no_source_beside_a_target_says_so(
    rnn: Pipeline, language_model: Pipeline, classifier: Pipeline
) -> None:
    for view in (gradients, lambda pipeline, text: by_position(pipeline, [Example(text, text)])):
        with pytest.raises(UserError, match="language model"):
            view(language_model, "abc")
        with pytest.raises(UserError, match="labels"):
            view(classifier, "abc")
    with pytest.raises(UserError, match="blank"):
        gradients(rnn, " ")
    with pytest.raises(DataError, match="no pair"):
        by_position(rnn, [Example("abc")])


@pytest.mark.parametrize("kind", MODELS)
def test_views_are_plain_data(kind: str, request: Any) -> None:
    pipeline, (source, target) = request.getfixturevalue(kind), PAIRS.get(kind, ("ab", "dc"))
    for view in (
        gradients(pipeline, source),
        by_position(pipeline, [Example(source, target)]),
        sequential(pipeline),
    ):
        assert json.loads(json.dumps(view, allow_nan=False)) == view
