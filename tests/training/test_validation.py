"""The loss of a validation is the mean over tokens of what the pipeline says, and better means better."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from dragoman import training
from dragoman.core.registry import Part
from dragoman.core.types import Example
from dragoman.data.readers import read_pairs
from dragoman.inference import pipeline
from dragoman.training import prepare, validation
from dragoman.training.tokenizer_learning import load_or_learn_codec


@pytest.fixture
def trained(tiny, tmp_path):
    made = tiny("transformer")
    sets = ["training.validate_metrics=[exact, per]", "training.label_smoothing=0.2", "training.steps=10"]
    reports = list(training.run(made.config(*sets), tmp_path / "run"))
    return made, made.config(*sets), pipeline.load(tmp_path / "run", "cpu"), reports


def test_the_loss_is_the_mean_negative_log_probability_of_a_target_token(trained):
    made, _, model, reports = trained
    examples = list(read_pairs(str(made.folder / "valid.tsv"), columns=["source", "target"]))
    scores = [score for tokens in model.token_scores(examples) for score in tokens]
    assert len(scores) == sum(len(example.target) + 1 for example in examples)  # characters, and </s>
    mean = -math.fsum(scores) / len(scores)
    found = next(report for report in reports if report.kind == "validation").values
    assert found["loss"] == pytest.approx(mean, abs=1e-6)
    assert found["perplexity"] == pytest.approx(math.exp(mean), abs=1e-4)


@pytest.mark.parametrize("tokens", [1, 60, 100_000])
def test_the_loss_does_not_depend_on_the_batches(trained, tokens):
    _, config, model, reports = trained
    prepared = prepare.prepare_data(config, model.codec, model.path.parent.parent.parent / "cache")
    expected = next(report for report in reports if report.kind == "validation").values["loss"]
    model.model.train()  # and dropout is off in a validation, however the model stood
    torch.manual_seed(3)
    assert validation.validation_loss(model, prepared.valid, tokens) == pytest.approx(expected, abs=1e-6)


def test_metrics_are_of_decoded_results(trained):
    made, _, model, reports = trained
    examples = list(read_pairs(str(made.folder / "valid.tsv"), columns=["source", "target"]))
    texts = [prediction.text for prediction in model.predict(examples, beam=1)]
    right = sum(text == example.target for text, example in zip(texts, examples, strict=True))
    found = next(report for report in reports if report.kind == "validation").values
    assert found["exact"] == pytest.approx(100 * right / len(examples))
    assert "per" in found


def test_a_model_that_knows_the_answers_scores_best(trained):
    """The references of the examples are what counts, all of them."""
    _, config, model, _ = trained
    prepared = prepare.prepare_data(config, model.codec, model.path.parent.parent.parent / "cache")
    texts = [p.text for p in model.predict(prepared.examples, beam=1)]
    answers = [
        Example(example.source, "no", references=("no", text))
        for example, text in zip(prepared.examples, texts, strict=True)
    ]
    found = validation.validate(model, replace(prepared, examples=answers), config)
    assert found["per"] == 0
    assert found["exact"] == 100


def test_only_so_many_examples_are_decoded(tiny, tmp_path):
    made = tiny()
    config = made.config("training.validate_examples=7", "training.validate_metrics=[exact]")
    codec, config = load_or_learn_codec(config)
    prepared = prepare.prepare_data(config, codec, tmp_path / "cache")
    assert len(prepared.examples) == 7
    assert len(prepared.valid) == 30  # the loss is of all


def sampled(made, cache, *sets):
    codec, config = load_or_learn_codec(made.config("training.validate_metrics=[exact]", *sets))
    return [example.line for example in prepare.prepare_data(config, codec, cache).examples]


def test_the_decoded_examples_are_a_fixed_sample_of_the_whole_set_in_its_order(tiny, tmp_path):
    """A language whose examples begin past the first so many has its say."""
    made = tiny()
    rows = [f"{letter * (1 + number % 7)}\t{letter}\n" for letter in "abcd" for number in range(50)]
    (made.folder / "valid.tsv").write_text("".join(rows))
    lines = sampled(made, tmp_path / "cache", "training.validate_examples=60")
    assert len(lines) == 60
    assert lines == sorted(set(lines))
    for begin in (0, 50, 100, 150):  # 15 of each are expected; with fewer than 4 the sample is not a fair one
        assert sum(begin < line <= begin + 50 for line in lines) >= 4
    assert sampled(made, tmp_path / "cache", "training.validate_examples=60", "seed=5") == lines


def test_of_a_set_that_is_no_larger_all_examples_are_decoded_in_order(tiny, tmp_path):
    for count in (30, 31, 1000):
        assert sampled(tiny(), tmp_path / "cache", f"training.validate_examples={count}") == list(range(1, 31))


def test_a_sample_is_full_of_what_can_be_used_and_every_example_is_as_likely(tiny):
    examples = [Example(str(number), line=number) for number in range(20)]
    asked = []

    def is_usable(example):
        asked.append(example.line)
        return example.line % 2 == 0

    counts = [0] * 20
    for seed in range(500):
        chosen = prepare.sample_examples(examples, 4, is_usable, seed)
        assert len(chosen) == 4
        assert [example.line for example in chosen] == sorted(example.line for example in chosen)
        for example in chosen:
            counts[example.line] += 1
    assert all(count == 0 for count in counts[1::2])
    assert all(140 < count < 260 for count in counts[::2])  # 200 are expected, with a standard deviation of 11
    assert len(asked) < 500 * 20  # files are read only of what would be chosen


EXACT, PER = Part("exact"), Part("per")


@pytest.mark.parametrize(
    ("name", "new", "old", "expected"),
    [
        ("loss", 1.0, 2.0, True),
        ("loss", 2.0, 1.0, False),
        ("loss", 1.0, 1.0, False),
        ("loss", 1.0, None, True),
        ("per", 0.1, 0.2, True),
        ("per", 0.2, 0.1, False),
        ("exact", 0.2, 0.1, True),
        ("exact", 0.1, 0.2, False),
        ("exact", 0.1, 0.1, False),
        ("exact", 0.0, None, True),
        ("loss", math.nan, None, False),
        ("loss", math.nan, 1.0, False),
        ("loss", math.inf, None, False),
        ("loss", -math.inf, 1.0, False),
        ("exact", math.inf, 0.1, False),
    ],
)
def test_better_is_lower_for_a_loss_higher_for_a_score_and_never_what_is_not_finite(name, new, old, expected):
    found = {"loss": 1.0, name: new}
    assert validation.is_better(name, found, None if old is None else (old, 1.0), [EXACT, PER]) is expected


@pytest.mark.parametrize(("loss", "expected"), [(0.9, True), (1.0, False), (1.1, False), (math.nan, False)])
@pytest.mark.parametrize("name", ["exact", "per"])
def test_the_loss_breaks_ties(name, loss, expected):
    found = {"loss": loss, name: 0.0}
    assert validation.is_better(name, found, (0.0, 1.0), [EXACT, PER]) is expected
