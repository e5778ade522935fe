"""Accuracy by source position is counted by hand from the model's own logits."""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any

import pytest

from dragoman.core.errors import DataError, UserError
from dragoman.core.types import Example
from dragoman.data.batching import collate
from dragoman.inference.pipeline import Pipeline
from dragoman.inspection.views.accuracy_by_position import measure_accuracy

MODELS = ["transformer", "rnn", "convolutional", "no_attention", "decoder_only"]


@pytest.mark.parametrize("kind", MODELS)
def test_a_position_counts_the_tokens_that_are_predicted_right(kind: str, request: Any) -> None:
    pipeline = request.getfixturevalue(kind)
    words = ["the old bridge", "a newer road", "roads", "an older bee"]
    letters = ["abc", "hgfedcbahg", "e", "bb a b", "aa", "fefefe"]
    texts = words if kind == "transformer" else letters
    said = [prediction.text for prediction in pipeline.predict(texts, beam=1)]  # which greedy search finds right
    examples = [Example(a, b) for a in texts for b in (*texts, *said) if b.strip()]
    count, right = Counter[int](), Counter[int]()
    for example in examples:
        source, target = (
            pipeline.input_processor.encode_source(example),
            pipeline.codec.encode_target(example),
        )
        logits = pipeline.model(collate([(source, target)], [0])).logits[0]
        for t in range(len(target) - 1):
            j = math.ceil((t + 1) * (len(source) - 1) / (len(target) - 1))
            count[j] += 1
            right[j] += int(logits[t].argmax()) == target[t]
    truth = [{"position": j, "count": count[j], "correct": right[j] / count[j]} for j in sorted(count)]
    found = measure_accuracy(pipeline, [*examples, Example("abc"), Example(" ", "a")])["points"]
    assert found == truth
    assert 0 < sum(right.values()) < sum(count.values())


def test_what_has_no_source_beside_a_target_is_refused(
    rnn: Pipeline, language_model: Pipeline, classifier: Pipeline
) -> None:
    with pytest.raises(UserError, match="language model"):
        measure_accuracy(language_model, [Example("abc", "abc")])
    with pytest.raises(UserError, match="labels"):
        measure_accuracy(classifier, [Example("abc", "abc")])
    with pytest.raises(DataError, match="no pair"):
        measure_accuracy(rnn, [Example("abc")])


@pytest.mark.parametrize("kind", MODELS)
def test_the_view_is_plain_data(kind: str, request: Any) -> None:
    source, target = ("the bee", "a road") if kind == "transformer" else ("ab", "dc")
    view = measure_accuracy(request.getfixturevalue(kind), [Example(source, target)])
    assert json.loads(json.dumps(view, allow_nan=False)) == view
