"""Why an output deserves a look: each reason by itself, and none for a sure output."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from dragoman.inference.output_checks import find_doubts, is_doubtful, output_probability
from dragoman.inference.prediction import Prediction

SURE = Prediction("a b", -0.1, -0.2, ["a", "b"], [-0.1, -0.05, -0.05], "eos", ["a", "</s>"])


def scored(log_probs: list[float], **changes: Any) -> Prediction:
    """An output whose tokens and </s> have these log p."""
    return replace(SURE, log_probs=log_probs, log_prob=sum(log_probs), tokens=["a"] * (len(log_probs) - 1), **changes)


NOTHING = scored([], finish_reason="empty_source", text="")


def doubts(prediction: Prediction, *unseen: str, tokenizer: str = "symbols") -> list[str]:
    return list(find_doubts(prediction, tokenizer, unseen))


def test_a_probability_is_the_product_of_those_of_the_tokens() -> None:
    assert output_probability(SURE) == pytest.approx(math.prod(math.exp(p) for p in SURE.log_probs))
    assert output_probability(NOTHING) == 0.0
    assert output_probability(replace(SURE, log_probs=[])) == output_probability(SURE)  # with log p of the whole alone


def test_a_sure_output_gives_no_reason_and_each_reason_is_named() -> None:
    assert doubts(SURE) == []
    assert doubts(replace(SURE, finish_reason="length")) == ["cut at the length limit"]
    assert doubts(replace(SURE, finish_reason="no_valid_token")) == ["the constraints left no token"]
    assert doubts(replace(SURE, source_truncated=True)) == ["the source was too long and is cut"]
    assert doubts(replace(SURE, text=" ")) == ["empty output"]
    assert doubts(scored([-0.4, -0.4])) == ["low confidence"]
    assert doubts(NOTHING) == ["empty source"]
    assert doubts(SURE, "ß", "\u200d") == ["unseen: ß U+200D"]
    both = doubts(replace(SURE, source_truncated=True, finish_reason="length"), *"abcdef")
    assert both == ["unseen: a b c d e …", "the source was too long and is cut", "cut at the length limit"]


@pytest.mark.parametrize(
    ("tokenizer", "log_probs", "doubtful"),
    [
        ("characters", [-0.69], False),
        ("characters", [-0.70], True),
        ("symbols", [-0.1] * 6, False),
        ("symbols", [-0.1] * 7, True),  # the whole is less probable than not
        ("bpe", [-0.1] * 40, False),  # a sentence has many good translations
        ("bpe", [-0.70] * 40, True),
        ("words", [-0.69] * 40, False),
    ],
)
def test_symbols_are_judged_by_the_whole_and_sentences_by_the_token(
    tokenizer: str, log_probs: list[float], doubtful: bool
) -> None:
    assert is_doubtful(scored(log_probs), tokenizer) is doubtful
    assert is_doubtful(replace(scored(log_probs), log_probs=[]), tokenizer) is doubtful  # with that of the whole alone


def test_a_label_is_judged_by_its_own_probability_and_no_output_by_none() -> None:
    label = replace(SURE, text="x", tokens=["x"], log_probs=[-0.8], log_prob=-0.8)  # of a head, which has no </s>
    assert is_doubtful(label, "words")
    assert not is_doubtful(NOTHING, "bytes")
