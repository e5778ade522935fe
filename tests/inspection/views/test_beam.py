"""The tree is what the beam did; a reference is scored as the search scores, and the verdict follows from scores."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dragoman.core.errors import UserError
from dragoman.core.generation import GenerationOptions
from dragoman.core.registry import Part
from dragoman.core.types import Example
from dragoman.inference import ensemble
from dragoman.inference.pipeline import Pipeline
from dragoman.inspection.views.beam import trace_beam

MODELS = ["rnn", "convolutional", "no_attention", "decoder_only"]
SOURCES = ["abc", "hgfed ba", "e", "bb a", "gg"]


def searching(pipeline: Pipeline, **options: Any) -> Pipeline:
    """The pipeline with other options of its beam search; it never writes <unk>, so that texts match their tokens."""
    own = GenerationOptions(search=Part("beam"), allow_unk=False, **options)
    config = pipeline.config.model_copy(update={"generation": pipeline.config.generation.merge(own)})
    return replace(pipeline, config=config)


BEAM = GenerationOptions(search=Part("beam"))


def on_path(view: dict[str, Any], mark: str) -> list[dict[str, Any]]:
    return sorted((node for node in view["nodes"] if node[mark]), key=lambda node: node["step"])


@pytest.mark.parametrize("kind", MODELS)
def test_the_best_path_is_the_first_result_scored_token_by_token(kind: str, request: Any) -> None:
    pipeline = searching(request.getfixturevalue(kind))
    for source in SOURCES:
        view = trace_beam(pipeline, source, beam=4)
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
    view = trace_beam(pipeline, Example(source), beam=beam)
    truth = pipeline.predict([source], BEAM, beam=beam, nbest=beam)[0]
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
    assert trace_beam(searching(rnn, mbr="chrf"), "hgfed ba", beam=4) == trace_beam(searching(rnn), "hgfed ba", beam=4)


def test_every_node_continues_its_parent_and_no_more_live_than_the_beam_holds(rnn: Pipeline) -> None:
    view = trace_beam(rnn, "hgfed ba", beam=3)
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
    pipeline = searching(rnn, early_stopping=False)  # by which a beam of 1 is greedy search
    errors = 0
    for source in SOURCES:
        greedy = pipeline.predict([source], beam=1)[0]
        better = pipeline.predict([source], BEAM, beam=12)[0]
        view = trace_beam(pipeline, source, better.text, beam=1)
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
    short = {"length_rule": Part("none"), "max_length_ratio": 0.0, "max_length_extra": 2}
    pipeline = searching(request.getfixturevalue(kind), **short)
    exhaustive = GenerationOptions(search=Part("exhaustive"), length_rule=Part("none"))
    every = pipeline.predict(["abc"], exhaustive, beam=110, nbest=110)[0]
    texts = [one.text for one in (every, *every.alternatives) if one.finish_reason == "eos"]
    assert len(texts) > 20
    for text in texts[:8]:
        view = trace_beam(pipeline, "abc", text, beam=2)
        better = pipeline.score([("abc", text)])[0] > view["results"][0]["log_prob"] + 1e-4
        same = text == view["results"][0]["text"]
        assert view["verdict"]["kind"] == ("same" if same else "search error" if better else "model error")


def test_a_reference_that_the_model_likes_less_is_a_model_error(rnn: Pipeline) -> None:
    view = trace_beam(searching(rnn), "abc", "dd dd", beam=5)
    truth = searching(rnn).token_scores([("abc", "dd dd")])[0]
    assert view["verdict"]["kind"] == "model error"
    np.testing.assert_allclose(view["reference"]["log_probs"], truth, atol=1e-5)
    assert view["reference"]["log_prob"] == pytest.approx(sum(truth), abs=1e-4)
    assert np.mean(truth) < view["results"][0]["score"]
    assert view["reference"]["tokens"] == ["d", "d", "␣", "d", "d"]


def test_the_verdict_names_a_reference_longer_than_any_result(rnn: Pipeline) -> None:
    pipeline = searching(rnn)
    wide = pipeline.predict(["e"], BEAM, beam=12)[0].text
    short = searching(rnn, max_length_ratio=0.0, max_length_extra=len(wide) - 1)
    view = trace_beam(short, "e", wide, beam=3)
    if view["verdict"]["kind"] == "search error":
        assert f"{len(wide)} tokens, and results of this source may have {len(wide) - 1}" in view["verdict"]["sentence"]
    assert view["reference"]["kept_until"] <= len(wide) - 1


@pytest.mark.parametrize(
    "search",
    [
        {"length_rule": Part("none")},
        {"length_rule": Part("gnmt"), "length_penalty": 0.8},
        {"length_rule": Part("power")},
        {"coverage_penalty": 0.3},
    ],
)
def test_a_reference_is_scored_as_the_search_scores(rnn: Pipeline, search: dict[str, Any]) -> None:
    pipeline = searching(rnn, **search)
    for source in SOURCES[:2]:
        for result in trace_beam(pipeline, source, beam=3)["results"]:
            if result["finish_reason"] == "eos":
                view = trace_beam(pipeline, source, result["text"], beam=3)
                assert view["reference"]["score"] == pytest.approx(result["score"], abs=1e-4)
                assert view["reference"]["kept_until"] == len(result["tokens"]) + 1
                assert view["rule"] == search.get("length_rule", Part("mean")).name
                assert on_path(view, "reference")[-1]["id"] == result["node"]
                assert (view["verdict"]["kind"] == "same") == (result["text"] == view["results"][0]["text"])


# -- what cannot be shown ----------------------------------------------------------------------------------------------


def test_what_has_no_tree_says_why(rnn: Pipeline, language_model: Pipeline, classifier: Pipeline) -> None:
    with pytest.raises(UserError, match="labels"):
        trace_beam(classifier, "abc")
    with pytest.raises(UserError, match="blank"):
        trace_beam(rnn, " ")
    with pytest.raises(UserError, match="leave the target out"):
        trace_beam(language_model, "abc", "abcd")
    with pytest.raises(UserError, match="at least 1"):
        trace_beam(rnn, "abc", beam=0)
    fused = replace(rnn, model=ensemble.ShallowFusion(rnn.model, rnn.model, 0.5), fast=False)
    assert trace_beam(fused, "abc")["results"]
    with pytest.raises(UserError, match="without the language model"):
        trace_beam(fused, "abc", "d")


def test_a_view_is_plain_data(rnn: Pipeline) -> None:
    view = trace_beam(rnn, "abc", "ab")
    assert json.loads(json.dumps(view, allow_nan=False)) == view
