"""The tree is what the beam did; a reference is scored as the search scores, and the verdict follows from scores."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dragoman.core.errors import UserError
from dragoman.core.registry import Part
from dragoman.core.types import Example
from dragoman.inference import ensemble
from dragoman.inference.pipeline import Pipeline
from dragoman.inspection.views.beam_tree import tree

MODELS = ["rnn", "convolutional", "no_attention", "decoder_only"]
SOURCES = ["abc", "hgfed ba", "e", "bb a", "gg"]


def searching(pipeline: Pipeline, **search: Any) -> Pipeline:
    """The pipeline with another search; it never says <unk>, so that texts and tokens are the same."""
    generation = pipeline.config.generation.model_copy(update={"search": Part("beam", search), "unknown": False})
    return replace(pipeline, config=pipeline.config.model_copy(update={"generation": generation}))


def on_path(view: dict[str, Any], mark: str) -> list[dict[str, Any]]:
    return sorted((node for node in view["nodes"] if node[mark]), key=lambda node: node["step"])


@pytest.mark.parametrize("kind", MODELS)
def test_the_best_path_is_the_first_result_scored_token_by_token(kind: str, request: Any) -> None:
    pipeline = searching(request.getfixturevalue(kind))
    for source in SOURCES:
        view = tree(pipeline, source, beam=4)
        first, path = view["results"][0], on_path(view, "best")
        truth = pipeline.token_scores([(source, first["text"])])[0]
        if first["finish_reason"] == "length":
            truth = truth[:-1]
        assert [node["token"] for node in path][: len(first["tokens"])] == first["tokens"]
        np.testing.assert_allclose([node["log_prob"] for node in path], truth, atol=1e-5)
        np.testing.assert_allclose([node["total"] for node in path], np.cumsum(truth), atol=1e-4)
        means = np.cumsum(truth) / np.arange(1, len(truth) + 1)
        np.testing.assert_allclose([node["score"] for node in path], means, atol=1e-4)
        assert path[-1]["id"] == first["node"]
        assert first["score"] == pytest.approx(path[-1]["score"])


@pytest.mark.parametrize("kind", [*MODELS, "transformer", "language_model"])
@pytest.mark.parametrize("beam", [1, 4])
def test_results_are_those_of_predict_and_each_ends_at_its_node(kind: str, beam: int, request: Any) -> None:
    pipeline = request.getfixturevalue(kind)
    source = "old road" if kind == "transformer" else "hgfed ba"
    view = tree(pipeline, Example(source), beam=beam)
    truth = pipeline.predict([source], search=Part("beam", {"size": beam}), nbest=beam)[0]
    every = [truth, *truth.alternatives]
    assert [result["text"] for result in view["results"]] == [one.text for one in every]
    np.testing.assert_allclose([result["score"] for result in view["results"]], [one.score for one in every], atol=1e-5)
    nodes = {node["id"]: node for node in view["nodes"]}
    for result, one in zip(view["results"], every, strict=True):
        node, tokens = nodes[result["node"]], []
        while True:
            tokens.append(node["token"])
            if node["parent"] == 0:
                break
            node = nodes[node["parent"]]
        assert tokens[::-1] == [*one.tokens, *(["</s>"] if one.finish_reason == "eos" else [])]


def test_minimum_bayes_risk_does_not_reorder_the_tree(rnn: Pipeline) -> None:
    assert tree(rnn.with_generation(mbr="chrf"), "hgfed ba", beam=4) == tree(rnn, "hgfed ba", beam=4)


def test_every_node_continues_its_parent_and_no_more_live_than_the_beam_holds(rnn: Pipeline) -> None:
    view = tree(rnn, "hgfed ba", beam=3)
    nodes = {node["id"]: node for node in view["nodes"]}
    assert len(nodes) == len(view["nodes"])
    for node in view["nodes"]:
        before = nodes.get(node["parent"])
        assert (before is None) == (node["parent"] == 0) == (node["step"] == 0)
        if before is not None:
            assert before["fate"] == "kept"
            assert node["step"] == before["step"] + 1
        assert node["total"] == pytest.approx(node["log_prob"] + (before["total"] if before else 0.0), abs=1e-9)
        assert node["fate"] in ("kept", "finished", "dropped")
        assert bool(node["reason"]) or node["fate"] != "dropped"
    for t in range(max(node["step"] for node in view["nodes"]) + 1):
        assert sum(node["step"] == t and node["fate"] == "kept" for node in view["nodes"]) <= 3


# -- the reference -----------------------------------------------------------------------------------------------------


def test_a_reference_that_scores_higher_than_a_greedy_output_is_a_search_error(rnn: Pipeline) -> None:
    pipeline = searching(rnn)
    errors = 0
    for source in SOURCES:
        greedy = pipeline.predict([source], beam=1)[0]
        better = pipeline.predict([source], search=Part("beam", {"size": 12}))[0]
        view = tree(pipeline, source, better.text, beam=1)
        truth = [np.mean(pipeline.token_scores([(source, text)])[0]) for text in (better.text, greedy.text)]
        if greedy.finish_reason != "eos" or better.finish_reason != "eos" or truth[0] < truth[1] + 1e-3:
            continue
        errors += 1
        assert view["verdict"]["kind"] == "search error"
        assert view["reference"]["score"] == pytest.approx(truth[0], abs=1e-5)
        assert view["results"][0]["score"] == pytest.approx(truth[1], abs=1e-5)
        one, other = [*better.tokens, "</s>"], [*greedy.tokens, "</s>"]
        same = next(t for t in range(len(one)) if one[t] != other[t])
        kept = view["reference"]["kept_until"]
        assert kept == same or (
            kept == same + 1 and other[same] == "</s>"
        )  # what finishes leaves its place to the next
        assert f"left the beam at step {kept + 1} of {len(one)}" in view["verdict"]["sentence"]
        assert f"{truth[0]:.3f}" in view["verdict"]["sentence"]
        marked = [node["token"] for node in on_path(view, "reference")]
        assert marked == one[: len(marked)]
        assert kept <= len(marked) <= kept + 1
    assert errors, "no source has a result that greedy search misses"


@pytest.mark.parametrize("kind", MODELS)
def test_no_reference_beats_what_exhaustive_search_finds(kind: str, request: Any) -> None:
    pipeline = searching(request.getfixturevalue(kind), length=Part("none"))
    generation = pipeline.config.generation.model_copy(update={"ratio": 0.0, "extra": 2})
    pipeline = replace(pipeline, config=pipeline.config.model_copy(update={"generation": generation}))
    every = pipeline.predict(["abc"], search=Part("exhaustive", {"size": 110, "length": Part("none")}), nbest=110)[0]
    texts = [one.text for one in (every, *every.alternatives) if one.finish_reason == "eos"]
    assert len(texts) > 20
    for text in texts[:8]:
        view = tree(pipeline, "abc", text, beam=2)
        better = pipeline.score([("abc", text)])[0] > view["results"][0]["log_prob"] + 1e-4
        same = text == view["results"][0]["text"]
        assert view["verdict"]["kind"] == ("same" if same else "search error" if better else "model error")


def test_a_reference_that_the_model_likes_less_is_a_model_error(rnn: Pipeline) -> None:
    view = tree(searching(rnn), "abc", "dd dd", beam=5)
    truth = searching(rnn).token_scores([("abc", "dd dd")])[0]
    assert view["verdict"]["kind"] == "model error"
    np.testing.assert_allclose(view["reference"]["log_probs"], truth, atol=1e-5)
    assert view["reference"]["log_prob"] == pytest.approx(sum(truth), abs=1e-4)
    assert np.mean(truth) < view["results"][0]["score"]
    assert view["reference"]["tokens"] == ["d", "d", "␣", "d", "d"]


def test_a_reference_longer_than_a_result_may_be_is_said_to_be(rnn: Pipeline) -> None:
    pipeline = searching(rnn)
    wide = pipeline.predict(["e"], search=Part("beam", {"size": 12}))[0].text
    generation = pipeline.config.generation.model_copy(update={"ratio": 0.0, "extra": len(wide) - 1})
    short = replace(pipeline, config=pipeline.config.model_copy(update={"generation": generation}))
    view = tree(short, "e", wide, beam=3)
    if view["verdict"]["kind"] == "search error":
        assert f"{len(wide)} tokens, and results of this source may have {len(wide) - 1}" in view["verdict"]["sentence"]
    assert view["reference"]["kept_until"] <= len(wide) - 1


@pytest.mark.parametrize(
    "search",
    [{"length": Part("none")}, {"length": Part("gnmt", {"alpha": 0.8})}, {"length": Part("power")}, {"coverage": 0.3}],
)
def test_a_reference_is_scored_as_the_search_scores(rnn: Pipeline, search: dict[str, Any]) -> None:
    pipeline = searching(rnn, **search)
    for source in SOURCES[:2]:
        for result in tree(pipeline, source, beam=3)["results"]:
            if result["finish_reason"] == "eos":
                view = tree(pipeline, source, result["text"], beam=3)
                assert view["reference"]["score"] == pytest.approx(result["score"], abs=1e-4)
                assert view["reference"]["kept_until"] == len(result["tokens"]) + 1
                assert view["rule"] == search.get("length", Part("mean")).name
                assert on_path(view, "reference")[-1]["id"] == result["node"]
                assert (view["verdict"]["kind"] == "same") == (result["text"] == view["results"][0]["text"])


# -- what cannot be shown ----------------------------------------------------------------------------------------------


def test_what_has_no_tree_says_why(rnn: Pipeline, language_model: Pipeline, classifier: Pipeline) -> None:
    with pytest.raises(UserError, match="labels"):
        tree(classifier, "abc")
    with pytest.raises(UserError, match="blank"):
        tree(rnn, " ")
    with pytest.raises(UserError, match="leave the reference out"):
        tree(language_model, "abc", "abcd")
    with pytest.raises(UserError, match="at least 1"):
        tree(rnn, "abc", beam=0)
    fused = replace(rnn, model=ensemble.Fused(rnn.model, rnn.model, 0.5), fast=False)
    assert tree(fused, "abc")["results"]
    with pytest.raises(UserError, match="load the model alone"):
        tree(fused, "abc", "d")


def test_a_view_is_plain_data(rnn: Pipeline) -> None:
    view = tree(rnn, "abc", "ab")
    assert json.loads(json.dumps(view, allow_nan=False)) == view
