"""Scores, intervals and comparisons on pairs, against numbers worked out by hand."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from tests.codec_learning import learn_codec

from dragoman import config as configs
from dragoman.core.errors import DataError
from dragoman.core.registry import Part
from dragoman.core.types import Example
from dragoman.evaluation.metrics import metrics
from dragoman.inference.pipeline import Pipeline
from dragoman.inspection.assessment import assess, compare_scores, compute_perplexity, score_metric
from dragoman.inspection.views.quality import group_by_length

TEXTS = ["abcd", "dcba", "a b"]


@pytest.fixture(scope="module")
def pipeline() -> Pipeline:
    return made({"name": "rnn"})


def made(part: dict[str, Any]) -> Pipeline:
    value = {
        "data": {"train": "nowhere.tsv", "max_source": 16, "max_target": 16},
        "model": {"width": 16, "encoder": part, "decoder": part},
        "generation": {"max_length_extra": 3, "max_length_ratio": 1.0},
    }
    config = configs.validate(value, "a test")
    kind = config.tokenizer.source
    codec = learn_codec(kind, kind, False, "nfc", TEXTS, TEXTS, [])
    return Pipeline(
        configs.build_model(config, len(codec.source), len(codec.target)), codec, config, torch.device("cpu")
    )


def test_an_assessment_counts_its_own_predictions(pipeline: Pipeline) -> None:
    sources = ["abc", "d", "aabb", "b a", "dd"]
    found = [prediction.text for prediction in pipeline.predict(sources, beam=2)]
    targets = [found[0], "d", found[2], "zzz", "dd"]  # two right, the others as they come
    examples = [Example(source, target) for source, target in zip(sources, targets, strict=True)]
    right = sum(a == b for a, b in zip(found, targets, strict=True))
    result = assess(pipeline, examples, ["exact"], beam=2)
    assert list(result.scores) == ["exact"]
    assert [prediction.text for prediction in result.predictions] == found
    assert math.isclose(result.scores["exact"].value, 100 * right / 5)
    assert result.scores["exact"].low <= 100 * right / 5 <= result.scores["exact"].high
    assert result.seconds > 0


def test_any_of_several_references_counts(pipeline: Pipeline) -> None:
    (prediction,) = pipeline.predict(["abc"])
    examples = [Example("abc", "wrong", references=("wrong", prediction.text))]
    assert assess(pipeline, examples, ["exact"]).scores["exact"].value == 100.0


def test_every_metric_is_measured_where_none_is_named_and_the_json_is_json(pipeline: Pipeline) -> None:
    result = assess(pipeline, [Example("abc", "abc"), Example("", ""), Example("d", "dcba")], beam=1)
    value = json.loads(json.dumps(result.as_json(), allow_nan=False))
    assert set(value["metrics"]) == set(metrics.names)
    assert value["n"] == 3
    assert value["decoding"]["seconds"] == result.seconds
    tokens = sum(len(prediction.tokens) for prediction in result.predictions)
    assert math.isclose(value["decoding"]["tokens_per_second"], tokens / result.seconds)


def test_the_perplexity_is_e_to_the_mean_negative_log_probability_of_a_token(pipeline: Pipeline) -> None:
    pairs = [("abc", "ab"), ("d", ""), ("a b", "dcba")]
    total = sum(pipeline.score([pair])[0] for pair in pairs)
    tokens = (2 + 1) + (0 + 1) + (4 + 1)
    found, unscored = compute_perplexity(pipeline, [Example(*pair) for pair in pairs])
    assert math.isclose(found, math.exp(-total / tokens), rel_tol=1e-6)
    assert unscored == 0


def test_a_pair_beyond_the_models_positions_is_left_out_of_the_perplexity_alone() -> None:
    pipeline = made({"name": "transformer", "heads": 2, "layers": 1, "position": {"name": "learned", "length": 16}})
    good, long = Example("abc", "ab"), Example("abcd" * 10, "abcd" * 10)
    found = assess(pipeline, [good, long, good], ["exact"])
    assert len(found.predictions) == 3
    assert found.unscored == 1
    assert math.isclose(found.perplexity, math.exp(-pipeline.score([good])[0] / 3), rel_tol=1e-6)
    none = assess(pipeline, [long], ["exact"])
    assert none.unscored == 1
    assert json.loads(json.dumps(none.as_json(), allow_nan=False))["perplexity"] is None


def test_a_model_that_knows_nothing_has_the_perplexity_of_what_it_may_generate(pipeline: Pipeline) -> None:
    model = configs.build_model(pipeline.config, len(pipeline.codec.source), len(pipeline.codec.target))
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    blank = Pipeline(model, pipeline.codec, pipeline.config, torch.device("cpu"))
    found, _ = compute_perplexity(blank, [Example("abc", "dcb"), Example("a", "b")])
    assert math.isclose(found, len(pipeline.codec.target) - 2, rel_tol=1e-6)  # all but <pad> and <s>


def test_pairs_without_a_target_are_left_out_and_none_at_all_is_an_error(pipeline: Pipeline) -> None:
    assert len(assess(pipeline, [Example("a", "b"), Example("c")], ["exact"]).examples) == 1
    for examples in ([], [Example("a")]):
        with pytest.raises(DataError, match="no pair"):
            assess(pipeline, examples)


def test_a_difference_is_what_the_second_model_gains_over_the_first() -> None:
    references = [(letter,) for letter in "abcdefghij"]
    worse = score_metric(Part("exact"), list("abcXXXXXXX"), references)
    better = score_metric(Part("exact"), list("abcdefghiX"), references)
    assert (worse.value, better.value) == (30.0, 90.0)
    found = compare_scores(worse, better)
    assert math.isclose(found.difference, 60.0)
    assert found.low > 0
    assert found.p < 0.05
    assert math.isclose(compare_scores(better, worse).difference, -60.0)
    same = compare_scores(worse, worse)
    assert same.difference == 0.0
    assert same.p > 0.5


def test_quality_by_length_counts_source_tokens_without_the_end(pipeline: Pipeline) -> None:
    sources = ["a", "b", "ab", "abcd", "abcda", "abcdabcd"]
    result = assess(pipeline, [Example(source, "a") for source in sources], ["exact"], beam=1)
    buckets = group_by_length({"one": result}, "exact")["one"]
    assert sum(bucket.count for bucket in buckets) == len(sources)
    sizes = [len(source) for source in sources]
    for bucket in buckets:
        inside = [i for i, size in enumerate(sizes) if bucket.low <= size <= bucket.high]
        assert bucket.count == len(inside)
        right = sum(result.predictions[i].text == "a" for i in inside)
        assert math.isclose(bucket.score, 100 * right / len(inside))
