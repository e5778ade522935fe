"""Gradients are slopes of the log-probabilities, and their mean by distance is counted by hand."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from dragoman.core.errors import UserError
from dragoman.inference.pipeline import Pipeline
from dragoman.inspection.views.saliency import compute_saliency, mean_by_distance

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
    view = compute_saliency(pipeline, *pair)
    S, T, h = len(view["source"]), len(view["target"]), 1e-5
    slopes = np.zeros((T, S, pipeline.model.frontend.d))
    for j in range(S):
        for d in range(slopes.shape[2]):
            slopes[:, j, d] = (nudged(pipeline, pair, j, d, h) - nudged(pipeline, pair, j, d, -h)) / (2 * h)
    truth = np.sqrt((slopes**2).sum(-1))
    assert truth.max() > 1e-3
    np.testing.assert_allclose(view["norms"], truth, rtol=1e-5, atol=1e-8)


def test_without_a_target_the_gradients_are_those_of_the_output(rnn: Pipeline) -> None:
    view = compute_saliency(rnn, "abc")
    said = rnn.predict(["abc"])[0]
    assert view["target"] == [*said.tokens, "</s>"]
    assert np.shape(view["norms"]) == (len(view["target"]), 4)
    assert not any(module._forward_hooks for module in rnn.model.modules())
    assert all(p.grad is None for p in rnn.model.parameters())


def test_norms_by_distance_by_hand() -> None:
    norms = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]  # y_1 and y_2 by x_1, x_2, x_3: x_3 and y_1 are neighbors
    assert mean_by_distance(norms) == [[1, 3.0], [2, (2.0 + 6.0) / 2], [3, (1.0 + 5.0) / 2], [4, 4.0]]


@pytest.mark.parametrize("reverse", [False, True])
def test_the_distance_counts_the_steps_from_reading_a_token_to_writing_another(build: Any, reverse: bool) -> None:
    encoder = {"name": "rnn", "cell": "gru", "directions": "one", "reverse": reverse}
    view = compute_saliency(build(encoder, {"name": "rnn", "cell": "gru", "source": "initial"}), "abcd", "dc")
    source, target = range(len(view["source"])), range(len(view["target"]))
    order = [f"x{j}" for j in source][:: -1 if reverse else 1] + [f"y{t}" for t in target]  # read, then written
    norms: dict[int, list[float]] = {}
    for t in target:
        for j in source:
            norms.setdefault(order.index(f"y{t}") - order.index(f"x{j}"), []).append(view["norms"][t][j])
    assert [distance for distance, _ in view["by_distance"]] == sorted(norms)
    for distance, mean in view["by_distance"]:
        assert mean == pytest.approx(sum(norms[distance]) / len(norms[distance]))


def test_what_has_no_source_beside_a_target_is_refused(
    rnn: Pipeline, language_model: Pipeline, classifier: Pipeline
) -> None:
    with pytest.raises(UserError, match="language model"):
        compute_saliency(language_model, "abc")
    with pytest.raises(UserError, match="labels"):
        compute_saliency(classifier, "abc")
    with pytest.raises(UserError, match="blank"):
        compute_saliency(rnn, " ")


@pytest.mark.parametrize("kind", MODELS)
def test_the_view_is_plain_data(kind: str, request: Any) -> None:
    view = compute_saliency(request.getfixturevalue(kind), PAIRS.get(kind, ("ab", "dc"))[0])
    assert json.loads(json.dumps(view, allow_nan=False)) == view
