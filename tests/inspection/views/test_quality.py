"""The report on several models, against assessments put together by hand."""

from __future__ import annotations

import gzip
import json
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.codec_learning import learn_codec

from dragoman import config as configs
from dragoman.config.schema import Corpus
from dragoman.core.registry import Part
from dragoman.core.types import Example
from dragoman.inference.pipeline import Pipeline
from dragoman.inference.prediction import Prediction
from dragoman.inspection.assessment import Assessment, assess, score_metric
from dragoman.inspection.length_units import strip_eos
from dragoman.inspection.views.quality import GZIP_RATIO, MAX_TRAINING_BYTES, count_training_tokens, quality_report

SOURCES = ["a b", "a", "a c c", "b", "a a a a", "zebra a"]
TARGETS = ["A B", "A", "A C C", "B", "A A A A", "Z A"]


def assessment(outputs: list[str], sources: list[str] = SOURCES, metrics: tuple[str, ...] = ("exact",)) -> Assessment:
    """A model that gave these outputs; words are its tokens, and `zebra` it does not know."""
    examples = [Example(source, target) for source, target in zip(sources, TARGETS, strict=False)]
    predictions = [
        Prediction(text, 0.0, 0.0, [], [], "eos", [*("<unk>" if w == "zebra" else w for w in source.split()), "</s>"])
        for source, text in zip(sources, outputs, strict=True)
    ]
    scores = {name: score_metric(Part(name), outputs, [[e.target or ""] for e in examples]) for name in metrics}
    return Assessment(
        examples, predictions, scores, 2.5, 1.0, length_pieces=[strip_eos(p.source_tokens) for p in predictions]
    )


def ranges(lines: list[dict[str, Any]], model: int = 0) -> list[tuple[int, int, int, float]]:
    return [(p["low"], p["high"], p["count"], p["score"]) for p in lines[model]["points"]]


def holds(lines: list[dict[str, Any]], *expected: tuple[int, int, float]) -> None:
    """One model's ranges hold a value each, of so many pairs with such a score."""
    for (low, high, count, score), (value, wanted, right) in zip(ranges(lines), expected, strict=True):
        assert low <= value <= high
        assert (count, score) == (wanted, right)


GOOD = assessment(["A B", "A", "A C C", "B", "A A A A", "x"])
BAD = assessment(["A B", "x", "x", "B", "x", "x"])


def test_a_report_says_how_good_each_model_is_and_is_json() -> None:
    found = json.loads(json.dumps(quality_report({"good": GOOD, "bad": BAD}), allow_nan=False))
    assert (found["view"], found["metric"], found["metrics"]) == ("quality", "exact", ["exact"])
    assert found["higher_is_better"] is True
    assert [model["name"] for model in found["models"]] == ["good", "bad"]
    for model, right in zip(found["models"], (5, 2), strict=True):
        assert (model["n"], model["perplexity"]) == (6, 2.5)
        score = model["scores"]["exact"]
        assert score["value"] == pytest.approx(100 * right / 6)
        assert score["low"] <= score["value"] <= score["high"]


def test_few_pairs_are_one_range_of_lengths_and_one_of_counts() -> None:
    """Counts here: a 8, b 2, c 2, zebra unknown; the rarest of each source: 2, 8, 2, 2, 8, 0."""
    found = quality_report({"good": GOOD, "bad": BAD})
    for model, right in ((0, 5), (1, 2)):
        assert ranges(found["by_length"], model) == [(1, 4, 6, pytest.approx(100 * right / 6))]
        assert ranges(found["by_rarity"], model) == [(0, 8, 6, pytest.approx(100 * right / 6))]
    assert found["rarity_of"] == "these sources"


def test_many_pairs_are_cut_by_length_and_by_the_count_of_the_rarest_token() -> None:
    """20 of one common word, 20 with a word that is there 20 times in all; the model fails on the latter."""
    sources = ["a"] * 20 + ["a b"] * 20
    examples = [Example(source, "right") for source in sources]
    outputs = ["right"] * 20 + ["wrong"] * 20
    tokens = [[*source.split(), "</s>"] for source in sources]
    predictions = [Prediction(o, 0.0, 0.0, [], [], "eos", t) for o, t in zip(outputs, tokens, strict=True)]
    scores = {"exact": score_metric(Part("exact"), outputs, [["right"]] * 40)}
    one = {"one": Assessment(examples, predictions, scores, 1.0, 1.0, length_pieces=[t[:-1] for t in tokens])}
    found = quality_report(one)
    holds(found["by_rarity"], (20, 20, 0.0), (40, 20, 100.0))
    holds(found["by_length"], (1, 20, 100.0), (2, 20, 0.0))
    found = quality_report(one, counts={"a": 7, "b": 1000})  # in training b was common: all are as rare as a
    assert ranges(found["by_rarity"]) == [(7, 7, 40, 50.0)]
    assert found["rarity_of"] == "training"
    found = quality_report(one, counts=Counter(a=7))  # b was never seen
    holds(found["by_rarity"], (0, 20, 0.0), (7, 20, 100.0))


def test_blank_sources_have_no_rarest_token() -> None:
    one = assessment(["", "A"], ["", "a"])
    assert ranges(quality_report({"one": one})["by_rarity"]) == [(1, 1, 1, 100.0)]
    assert quality_report({"one": assessment([""], [""])})["by_rarity"] == [{"model": "one", "points": []}]


def test_the_worst_come_first_whichever_way_a_metric_points() -> None:
    """Character errors of the first model: 0, 1 of 1, 4 of 5, 0, 6 of 7, 2 of 3; of equals the earlier."""
    outputs = ["A B", "x", "A", "B", "A", "A"]
    one = assessment(outputs, metrics=("exact", "cer"))
    found = quality_report({"one": one, "two": assessment(TARGETS, metrics=("exact", "cer"))}, "cer", worst=4)
    assert found["higher_is_better"] is False
    assert [(entry["index"], entry["score"]) for entry in found["worst"]] == [
        (1, pytest.approx(100.0)),
        (4, pytest.approx(600 / 7)),
        (2, pytest.approx(80.0)),
        (5, pytest.approx(200 / 3)),
    ]
    assert found["worst"][0] == {
        "model": "one",
        "index": 1,
        "source": "a",
        "reference": "A",
        "output": "x",
        "score": pytest.approx(100.0),
    }
    assert [entry["index"] for entry in quality_report({"one": one}, "exact")["worst"]] == [1, 2, 4, 5, 0, 3]


# -- counts of training tokens -----------------------------------------------------------------------------------------


def build(*paths: Path | str) -> Pipeline:
    value = {
        "data": {"train": [str(path) for path in paths]},
        "model": {"width": 8, "encoder": {"name": "rnn"}, "decoder": {"name": "rnn"}},
    }
    config = configs.validate(value, "a test")
    part = config.tokenizer.source
    codec = learn_codec(part, part, False, "nfc", ["abc"], ["x"], [])
    model = configs.build_model(config, len(codec.source), len(codec.target))
    return Pipeline(model, codec, config, torch.device("cpu"))


def test_training_tokens_are_counted_over_all_files_on_the_source_side(tmp_path: Path) -> None:
    (tmp_path / "one.tsv").write_text("aab\tx\nb c\tx\n")
    (tmp_path / "two.tsv.gz").write_bytes(gzip.compress(b"ca\tx\n"))
    found = count_training_tokens(build(tmp_path / "one.tsv", tmp_path / "two.tsv.gz"))
    assert found is not None
    assert {token: found[token] for token in "abcx"} == {"a": 3, "b": 2, "c": 2, "x": 0}
    assert "</s>" not in found


def test_training_data_that_is_gone_broken_or_endless_is_not_counted(tmp_path: Path) -> None:
    assert count_training_tokens(build(tmp_path / "gone.tsv")) is None
    (tmp_path / "broken.tsv").write_bytes(b"no tab\n")
    assert count_training_tokens(build(tmp_path / "broken.tsv")) is None
    os.mkfifo(tmp_path / "pipe.tsv")
    assert count_training_tokens(build(tmp_path / "pipe.tsv")) is None
    assert count_training_tokens(build("/dev/zero")) is None


@pytest.mark.parametrize(
    ("kind", "length", "unit"),
    [
        ("soft", None, ""),
        ("patches", None, ""),
        ("asked", 5, "tokens"),  # what color is it ?
        ("speech", 8, "steps of 40 ms"),
        ("frames", 4, "steps of 120 ms"),  # 23 frames of 20 ms, in stacks of 3, two of which are one state
        ("clip", 3, "frames"),
        ("cells", 3, "frames"),
    ],
)
def test_sources_that_are_no_texts_have_lengths_of_their_own_and_no_rarities(
    media: Callable[[str], Any], tmp_path: Path, kind: str, length: int | None, unit: str
) -> None:
    """The guide's own model of images was compared with a traceback where its training data was still there."""
    model, source = media(kind)
    (tmp_path / "train.tsv").write_text(f"{source}\ta red square\n")
    corpora = model.config.data.model_copy(update={"train": [Corpus(path=str(tmp_path / "train.tsv"))]})
    model = replace(model, config=model.config.model_copy(update={"data": corpora}))
    assert count_training_tokens(model) is None
    pair = replace(model.input_processor.to_example(source), target="a red square")
    found = quality_report({"one": assess(model, [pair], ["exact"])})
    points = {name: [(p["low"], p["high"]) for p in found[name][0]["points"]] for name in ("by_length", "by_rarity")}
    assert points["by_length"] == ([] if length is None else [(length, length)])
    assert points["by_rarity"] == ([(1, 1)] if unit == "tokens" else [])
    assert (found["length_unit"], bool(found["left_out"])) == (unit, unit != "tokens")


def test_training_data_that_takes_long_to_read_is_not_counted(tmp_path: Path) -> None:
    (tmp_path / "small.tsv").write_text("a\tx\n")
    (tmp_path / "large.tsv").write_bytes(b"a\tx\n" * (MAX_TRAINING_BYTES // 4))
    (tmp_path / "large.tsv.gz").write_bytes(
        gzip.compress(b"a\tx\n" * (MAX_TRAINING_BYTES // GZIP_RATIO // 4), compresslevel=0)
    )
    for name in ("large.tsv", "large.tsv.gz"):
        assert count_training_tokens(build(tmp_path / "small.tsv", tmp_path / name)) is None
