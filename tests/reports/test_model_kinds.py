"""A report of every kind of model: images, sounds, clips, two sources, labels, subwords, one sequence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.inspection.conftest import RNN, TRANSFORMER, WORDS, save_and_load, seeing

from dragoman.core.registry import Part
from dragoman.core.types import Example
from dragoman.inference.pipeline import Pipeline
from dragoman.reports.page import render_page
from dragoman.reports.report import EvaluationReport, evaluate
from dragoman.reports.terminal import report_lines

MEDIA_TASKS = {"soft": "captions", "speech": "speech", "frames": "speech", "clip": "captions", "asked": "captions"}


def report_on(pipeline: Pipeline, examples: list[Example]) -> EvaluationReport:
    """Evaluate, and render the report in every form."""
    assessment, report = evaluate(pipeline, examples, model="a model", pairs="pairs.tsv")
    assert list(report.scores) == [part.name for part in report.task.metrics]
    assert [item.output for item in report.items] == [prediction.text for prediction in assessment.predictions]
    assert len(list(report_lines(report))) > len(report.scores)
    assert render_page(report).endswith("</html>\n")
    json.dumps(assessment.as_json() | {"report": report.as_json()}, allow_nan=False)
    return report


@pytest.mark.parametrize("kind", MEDIA_TASKS)
def test_models_that_see_or_hear(kind: str, tmp_path: Path) -> None:
    pipeline, source = seeing(tmp_path, kind)
    first, _, second = source.partition("\t")
    captions = ("a red square at the top", "a blue bar below")
    examples = [
        Example(first, captions[n % 2], second_source=second, references=captions if "captions" in MEDIA_TASKS[kind]
                else ()) for n in range(4)
    ]  # fmt: skip
    report = report_on(pipeline, examples)
    assert report.task.kind == MEDIA_TASKS[kind]
    assert not any(grouping.key == "rarity" for grouping in report.groupings)
    assert not report.unwritable


def test_labels(tmp_path: Path) -> None:
    classifier = save_and_load(tmp_path / "c", TRANSFORMER, None, head="classifier", objective="labels")
    report = report_on(classifier, [Example(text, label) for text in ("ab", "ba", "cd") for label in ("a", "d")])
    assert report.task.kind == "labels"
    assert report.headline.split(" [")[0].endswith(" of 6 labels right")
    assert report.unwritable.counts == {"d": 3}  # a label that the model does not have


@pytest.mark.parametrize("decoder", [RNN, {**TRANSFORMER, "source": "prefix"}], ids=["rnn", "one sequence"])
def test_subwords_and_one_sequence(decoder: dict[str, object], tmp_path: Path) -> None:
    subwords = Part("bpe", {"size": 48, "byte_fallback": False})
    encoder = "none" if "source" in decoder else RNN
    pipeline = save_and_load(tmp_path / "m", encoder, decoder, tokenizer=subwords, lines=WORDS)
    report = report_on(pipeline, [Example(text, f"{other} ж") for text, other in zip(WORDS, WORDS[::-1], strict=True)])
    assert report.unwritable.counts == {"ж": len(WORDS)}


def test_metrics_that_are_named_replace_those_that_fit(tmp_path: Path) -> None:
    pipeline = save_and_load(tmp_path / "m", RNN, RNN)
    _, report = evaluate(pipeline, [Example("ab", "ba"), Example("", "")], [Part("chrf"), Part("exact")])
    assert list(report.scores) == ["chrf", "exact"]
    assert report.main_score.metric.label == "chrF"
