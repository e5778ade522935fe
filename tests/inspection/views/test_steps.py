"""A step shows the model's own distribution; free running is greedy search; a forced token changes what follows."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from dragoman.core.errors import UserError
from dragoman.core.generation import GenerationOptions
from dragoman.core.types import BOS, EOS, PAD, Example
from dragoman.data.batching import collate
from dragoman.inference import ensemble
from dragoman.inference.pipeline import Pipeline
from dragoman.inspection.views.steps import trace_steps

MODELS = ["transformer", "rnn", "convolutional", "no_attention", "decoder_only"]
WORDS, LETTERS = ["the old bridges", "a newer bee", "old road"], ["abc", "hgfed ba", "e", "bb a"]


def sources(kind: str) -> list[str]:
    return WORDS if kind == "transformer" else LETTERS


def said(part: dict[str, Any]) -> list[int]:
    return [step["id"] for step in part["steps"]]


def distribution(pipeline: Pipeline, source: str, tokens: list[int]) -> np.ndarray:
    """log p of whatever comes after these tokens, from a pass over the whole pair."""
    batch = collate([(pipeline.input_processor.encode_source(Example(source)), [*tokens, EOS])], [0])
    with torch.no_grad():
        logits = pipeline.model(batch).logits[0, len(tokens)].double().numpy()
    logits[[PAD, BOS]] = -np.inf  # which are never generated
    return logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", MODELS)
def test_each_step_has_the_distribution_after_its_beginning(kind: str, request: Any) -> None:
    pipeline = request.getfixturevalue(kind)
    source, target = sources(kind)[:2]
    view = trace_steps(pipeline, source, target, top=5)
    for part in (view["free"], view["forced"]):
        tokens = said(part)
        for t, step in enumerate(part["steps"]):
            log_p = distribution(pipeline, source, tokens[:t])
            best = np.argsort(-log_p, kind="stable")[:5]
            assert step["log_prob"] == pytest.approx(log_p[step["id"]], abs=1e-5)
            assert step["rank"] == 1 + sum(log_p > log_p[step["id"]] + 1e-6)
            assert step["entropy"] == pytest.approx(-(np.exp(log_p[EOS:]) * log_p[EOS:]).sum(), abs=1e-4)
            assert [one["id"] for one in step["top"]] == best.tolist()
            np.testing.assert_allclose([one["log_prob"] for one in step["top"]], log_p[best], atol=1e-5)
            assert [one["token"] for one in step["top"]] == pipeline.codec.target.pieces(best.tolist())
            assert step["token"] == pipeline.codec.target.pieces([step["id"]])[0]


def with_options(pipeline: Pipeline, **options: Any) -> Pipeline:
    """The pipeline with other generation options in its config."""
    generation = pipeline.config.generation.merge(GenerationOptions(**options))
    return replace(pipeline, config=pipeline.config.model_copy(update={"generation": generation}))


@pytest.mark.parametrize("kind", [*MODELS, "language_model"])
def test_running_free_is_greedy_search(kind: str, request: Any) -> None:
    pipeline = request.getfixturevalue(kind)
    for source in sources(kind):
        found, truth = trace_steps(pipeline, source)["free"], pipeline.predict([source], beam=1)[0]
        assert found["text"] == truth.text
        assert said(found) == [*truth.ids, *([EOS] if truth.finish_reason == "eos" else [])]
        np.testing.assert_allclose([step["log_prob"] for step in found["steps"]], truth.log_probs, atol=1e-5)
        assert found["log_prob"] == pytest.approx(truth.log_prob, abs=1e-4)
        assert not any(step["forced"] for step in found["steps"])


@pytest.mark.parametrize("kind", ["rnn", "convolutional", "no_attention"])
def test_rules_of_the_config_hold_and_probabilities_stay_the_models(kind: str, request: Any) -> None:
    pipeline = request.getfixturevalue(kind)
    other = with_options(pipeline, allow_unk=False, no_repeat_ngram_size=1)
    changed = 0
    for source in LETTERS:
        found, truth = trace_steps(other, source)["free"], other.predict([source], beam=1)[0]
        assert [step["token"] for step in found["steps"]][: len(truth.tokens)] == truth.tokens
        assert len(set(said(found))) == len(said(found))
        for t, step in enumerate(found["steps"]):
            log_p = distribution(pipeline, source, said(found)[:t])
            assert step["log_prob"] == pytest.approx(log_p[step["id"]], abs=1e-5)
        changed += said(found) != said(trace_steps(pipeline, source)["free"])
    assert changed, "the rules must change something"


@pytest.mark.parametrize("kind", ["rnn", "convolutional", "no_attention", "decoder_only"])
def test_a_forced_prefix_goes_on_as_predict_does_with_that_prefix(kind: str, request: Any) -> None:
    pipeline = request.getfixturevalue(kind)
    for source in LETTERS:
        for prefix in ("h", "bad", "gg fed cab gg fed cab"):  # the last is longer than results may be
            ids = pipeline.codec.target.encode(prefix)
            view = trace_steps(pipeline, source, prefix=ids)
            truth = pipeline.predict([source], GenerationOptions(prefix=prefix), beam=1)[0]
            assert view["prefix"] == ids
            assert view["free"]["text"] == truth.text
            assert said(view["free"])[: len(truth.ids)] == truth.ids
            assert [step["forced"] for step in view["free"]["steps"]][: len(ids)] == [True] * len(ids)
            assert not any(step["forced"] for step in view["free"]["steps"][len(ids) :])


@pytest.mark.parametrize("kind", MODELS)
def test_along_a_target_every_token_is_the_targets(kind: str, request: Any) -> None:
    pipeline = request.getfixturevalue(kind)
    source, target = sources(kind)[:2]
    part = trace_steps(pipeline, Example(source), target)["forced"]
    assert said(part) == pipeline.codec.encode_target(Example("", target))
    assert part["text"] == target
    assert all(step["forced"] for step in part["steps"])
    truth = pipeline.token_scores([(source, target)])[0]
    np.testing.assert_allclose([step["log_prob"] for step in part["steps"]], truth, atol=1e-5)


def test_both_ways_part_at_the_first_token_that_differs(rnn: Pipeline) -> None:
    pipeline = with_options(rnn, allow_unk=False)
    ended = 0
    for source in LETTERS:
        truth = pipeline.predict([source], beam=1)[0]
        tokens = [*truth.tokens, "</s>"] if truth.finish_reason == "eos" else truth.tokens
        for target in (truth.text, truth.text[:2] + "d", truth.text + "a", "h"):
            found = trace_steps(pipeline, source, target)["diverges"]
            other = [*("␣" if letter == " " else letter for letter in target), "</s>"]
            same = 0
            while same < min(len(tokens), len(other)) and tokens[same] == other[same]:
                same += 1
            assert found == (None if tokens == other else same)
            ended += found is None
    assert ended, "some output must have been the target"
    assert trace_steps(pipeline, "abc")["diverges"] is None


def test_a_free_run_that_its_limit_cuts_off_parts_from_a_longer_target_there(no_attention: Pipeline) -> None:
    free = trace_steps(no_attention, "e")["free"]
    assert said(free)[-1] != EOS, "the limit must come first"
    view = trace_steps(no_attention, "e", free["text"] + "a")
    assert view["diverges"] == len(free["steps"]) < len(view["forced"]["steps"])


def test_an_ensemble_has_steps_too(rnn: Pipeline, no_attention: Pipeline) -> None:
    both = replace(rnn, model=ensemble.Ensemble([rnn.model, no_attention.model]), fast=False)
    step = trace_steps(both, "abc")["free"]["steps"][0]
    each = [np.exp(distribution(one, "abc", [])) for one in (rnn, no_attention)]
    assert step["log_prob"] == pytest.approx(np.log(np.mean(each, 0)[step["id"]]), abs=1e-5)


def test_what_has_no_steps_says_why(
    rnn: Pipeline, transformer: Pipeline, language_model: Pipeline, classifier: Pipeline
) -> None:
    with pytest.raises(UserError, match="labels"):
        trace_steps(classifier, "abc")
    with pytest.raises(UserError, match="blank"):
        trace_steps(rnn, "  ")
    with pytest.raises(UserError, match="no target"):
        trace_steps(language_model, "abc", "def")
    with pytest.raises(UserError, match="the token 2"):
        trace_steps(rnn, "abc", prefix=[5, EOS])
    with pytest.raises(UserError, match="from 3 to 12"):
        trace_steps(rnn, "abc", prefix=[13])
    with pytest.raises(UserError, match="at least 1"):
        trace_steps(rnn, "abc", top=0)
    fused = replace(rnn, model=ensemble.ShallowFusion(rnn.model, rnn.model, 0.5), fast=False)
    with pytest.raises(UserError, match="load the model without the language model"):
        trace_steps(fused, "abc")


@pytest.mark.parametrize("kind", [*MODELS, "language_model"])
def test_a_view_is_plain_data(kind: str, request: Any) -> None:
    pipeline = request.getfixturevalue(kind)
    view = trace_steps(pipeline, sources(kind)[0], None if kind == "language_model" else sources(kind)[1], top=1000)
    assert json.loads(json.dumps(view, allow_nan=False)) == view
    assert len(view["free"]["steps"][0]["top"]) == len(pipeline.codec.target) - 2  # all but <pad> and <s>
