"""What `import dragoman` offers: a model that evaluates itself, and views that draw themselves where they are shown."""

from __future__ import annotations

import inspect
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from rich.console import Console

import dragoman
from dragoman import config as configs
from dragoman.checkpoint import model_folder, packing
from dragoman.inspection.assessment import assess
from dragoman.inspection.views import find_view
from dragoman.inspection.views.alignment import compute_alignment
from dragoman.inspection.views.beam import trace_beam
from dragoman.inspection.views.steps import trace_steps
from dragoman.training.report import Report

from .codec_learning import learn_codec

PAIRS = [("ab", "ba"), ("abc", "cba"), ("b", "b"), ("ca", "ac")]


def save(folder: Path, **model: Any) -> Path:
    part = {"name": "rnn", "cell": "gru"}
    value = {
        "data": {"train": "t.tsv"},
        "model": {"width": 8, "tie": "none", "encoder": part, "decoder": part, **model},
    }
    config = configs.validate(value, "a test")
    texts = [text for pair in PAIRS for text in pair]
    codec = learn_codec(config.tokenizer.source, config.tokenizer.source, False, "nfc", texts, texts, [])
    built = configs.build_model(config, len(codec.source), len(codec.target))
    model_folder.save(folder, config, model_folder.unique_weights(built), codec, {})
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def model(folder: Path) -> dragoman.Pipeline:
    return dragoman.load(folder, "cpu", reference=True)


# -- the package -------------------------------------------------------------------------------------------------------


def test_dir_and_star_import_show_what_is_public_and_nothing_else() -> None:
    code = "import dragoman; print(dir(dragoman)); from dragoman import *; print([k for k in globals() if k[0] != '_'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    shown, starred = map(json.loads, done.stdout.replace("'", '"').splitlines())
    public = {"Example", "GenerationOptions", "Part", "Pipeline", "Prediction", "Report", "UserError", "load", "train"}
    assert {*shown} == {*dragoman.__all__} == public | {"__version__"}
    assert {*starred} == public | {"dragoman"}


def test_the_methods_of_a_model_have_names_signatures_and_docstrings(model: dragoman.Pipeline) -> None:
    for name, options in {
        "evaluate": ["metrics", "beam", "workers"],
        "alignment": ["target", "beam"],
        "beam_tree": ["target", "beam"],
        "steps": ["target", "top"],
        "blame": ["target", "output", "top"],
    }.items():
        method = getattr(model, name)
        assert (method.__name__, method.__self__) == (name, model)
        assert list(inspect.signature(method).parameters)[1:] == options
        assert inspect.getdoc(method)


def test_importing_the_package_loads_neither_torch_nor_the_views() -> None:
    code = "import sys, dragoman; dragoman.Example('a'); print([m for m in ('torch', 'rich') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


# -- a short repr ------------------------------------------------------------------------------------------------------


def test_what_a_user_meets_has_a_repr_of_one_short_line(model: dragoman.Pipeline, folder: Path) -> None:
    parameters = sum(p.numel() for p in model.model.parameters())
    assert repr(model) == f"<Pipeline {folder}: rnn → rnn, {parameters:,} parameters, on cpu>"
    [prediction] = model.predict(["ab"], beam=2, nbest=2, attention=True)
    rows = len(prediction.tokens) + (prediction.finish_reason == "eos")
    shown = repr(prediction)
    assert shown.startswith(f"<Prediction {prediction.text!r}: log p {prediction.log_prob:.3f}, 1 alternative")
    assert f"attention ({rows}, 3)" in shown
    reports = [
        Report("validation", 3, 9, values={"kind": "valid", "step": 3, "loss": 0.123456, "metrics": None}),
        Report("step", 3, 9, loss=0.5),
        Report("notice", 0, 9, "hello"),
        Report("skipped", 1, 9),
    ]
    assert [repr(report) for report in reports] == [
        "<Report validation, step 3 of 9: loss 0.1235, metrics None>",
        "<Report step, step 3 of 9: loss 0.5>",
        "<Report notice, step 0 of 9: hello>",
        "<Report skipped, step 1 of 9>",
    ]
    drawings = [model.alignment("ab"), model.beam_tree("ab", beam=2), model.steps("ab"), model.evaluate(PAIRS)]
    for value in (model, prediction, *reports, *drawings):
        assert "\n" not in repr(value)
        assert len(repr(value)) < 400


# -- evaluation --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", ["exact,cer", ["exact", "cer"], [dragoman.Part("exact"), "cer"]])
def test_an_evaluation_has_the_scores_of_an_assessment(model: dragoman.Pipeline, names: Any) -> None:
    examples = [dragoman.Example(*pair) for pair in PAIRS]
    expected = assess(model, examples, ["exact", "cer"])
    result = model.evaluate(PAIRS, names)
    for name in ("exact", "cer"):
        assert (result[name].value, result[name].low) == (expected.scores[name].value, expected.scores[name].low)
    assert [prediction.text for prediction in result.predictions] == [
        one.text for one in model.predict([x for x, _ in PAIRS])
    ]
    value = json.loads(json.dumps(result.as_json()))
    assert value["metrics"]["cer"]["value"] == result["cer"].value
    assert value["n"] == len(PAIRS)


def test_an_evaluation_prints_a_line_for_each_score(model: dragoman.Pipeline) -> None:
    result = model.evaluate(PAIRS, "exact,cer,chrf")
    first, *lines = str(result).split("\n")
    assert first == "4 pairs"
    for line, score in zip(lines, result.scores.values(), strict=True):
        percent = " %" if score.metric.unit == "%" else ""
        assert line.startswith(score.label)
        assert f"  {score.value:.1f}{percent}  [{score.low:.1f}, {score.high:.1f}]" in line
        assert line.endswith("higher is better" if score.metric.higher_is_better else "lower is better")
    table = ElementTree.fromstring(result._repr_html_())
    cells = [[cell.text for cell in row.iter("td")] for row in table.iter("tr")]
    assert [row[0] for row in cells] == [score.label for score in result.scores.values()]


def test_pairs_may_come_from_a_file(model: dragoman.Pipeline, tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_text("".join(f"{source}\t{target}\n" for source, target in PAIRS))
    expected = {name: score.value for name, score in model.evaluate(PAIRS).scores.items()}
    for spec in (path, str(path)):
        assert {name: score.value for name, score in model.evaluate(spec).scores.items()} == expected
    examples = (dragoman.Example(*pair) for pair in PAIRS)
    assert {name: score.value for name, score in model.evaluate(examples).scores.items()} == expected


@pytest.mark.parametrize(
    ("pairs", "metrics", "words"),
    [
        ("nothing.tsv", (), "nothing.tsv"),
        ([], (), "no pair"),
        (["ab"], (), "a pair must be two texts"),
        ([("a", "b", "c")], (), "a pair must be two texts"),
        (3, (), "a file or a list of pairs"),
        (PAIRS, "blue", "no metric called 'blue'; did you mean 'bleu'"),
    ],
)
def test_what_cannot_be_evaluated_is_a_user_error(
    model: dragoman.Pipeline, pairs: Any, metrics: Any, words: str
) -> None:
    with pytest.raises(dragoman.UserError, match=words):
        model.evaluate(pairs, metrics)


# -- views -------------------------------------------------------------------------------------------------------------


def test_drawings_hold_the_data_of_their_views(model: dragoman.Pipeline) -> None:
    assert model.alignment("ab", "ba").data == compute_alignment(model, "ab", "ba")
    assert model.beam_tree("ab", beam=3).data == trace_beam(model, "ab", beam=3)
    assert model.steps("ab", "ba", top=2).data == trace_steps(model, "ab", "ba", top=2)


@pytest.mark.parametrize("method", ["alignment", "beam_tree", "steps"])
def test_a_drawing_is_the_same_in_print_rich_and_html(
    model: dragoman.Pipeline, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "110")
    drawing = getattr(model, method)("ab", "ba")
    plain = str(drawing)
    out = Console(width=110, color_system=None, record=True, file=io.StringIO())
    find_view(drawing.data["view"]).print_view(out, drawing.data)
    assert plain == out.export_text().rstrip("\n")
    colored = Console(width=110, force_terminal=True, color_system="truecolor", record=True, file=io.StringIO())
    colored.print(drawing)
    words = re.findall(r"\w+", plain)
    assert re.findall(r"\w+", colored.export_text()) == words
    html = drawing._repr_html_()
    assert "<script" not in html
    text = "".join(ElementTree.fromstring(html).itertext())
    if method != "alignment":
        assert re.findall(r"\w+", text) == words


def test_texts_are_escaped_in_html(model: dragoman.Pipeline) -> None:
    for drawing in (model.alignment("<b>&a"), model.beam_tree("<b>&a", beam=2), model.steps("a", "<i>&")):
        html = drawing._repr_html_()
        ElementTree.fromstring(html)
        assert "<b>&a" not in html
        assert "<i>&" not in html


def test_a_heat_map_in_html_has_a_square_for_each_weight(model: dragoman.Pipeline) -> None:
    drawing = model.alignment("abc", "ba")
    html = drawing._repr_html_()
    assert html.count("<rect") == len(drawing.data["soft"]) * len(drawing.data["soft"][0]) == 3 * 4


def test_a_language_model_has_steps_and_says_why_it_has_no_alignment(tmp_path: Path) -> None:
    decoder = {"name": "transformer", "layers": 1, "heads": 2, "source": "prefix"}
    value = {
        "data": {"train": "t.txt"},
        "tokenizer": {"joint": True},
        "model": {"width": 8, "encoder": "none", "decoder": decoder, "tie": "all"},
        "training": {"objective": "lm"},
    }
    config = configs.validate(value, "a test")
    codec = learn_codec(config.tokenizer.source, config.tokenizer.source, True, "nfc", ["abc"], ["abc"], [])
    built = configs.build_model(config, len(codec.source), len(codec.target))
    model_folder.save(tmp_path / "lm", config, model_folder.unique_weights(built), codec, {})
    lm = dragoman.load(tmp_path / "lm")
    assert str(lm.steps("ab"))
    assert "log p" in str(lm.alignment("ab"))  # as on the command line: the prediction, without weights
    with pytest.raises(dragoman.UserError, match="language model"):
        lm.alignment("ab", "c")
    with pytest.raises(dragoman.UserError, match="language model"):
        lm.evaluate(PAIRS)


def test_a_model_without_its_training_lines_cannot_blame_them(model: dragoman.Pipeline, folder: Path) -> None:
    packing.pack(folder, folder.with_name("tiny.zip"), {})
    for one in (model, dragoman.load(folder.with_name("tiny.zip"))):
        with pytest.raises(dragoman.UserError, match=r"is missing|run folder"):
            one.blame("ab")


def test_a_packed_model_predicts_the_same(model: dragoman.Pipeline, folder: Path) -> None:
    packing.pack(folder, folder.with_name("same.zip"), {})
    other = dragoman.load(folder.with_name("same.zip"), "cpu", reference=True)
    sources = [source for source, _ in PAIRS]
    assert [one.text for one in other.predict(sources)] == [one.text for one in model.predict(sources)]
    assert other.score(PAIRS) == model.score(PAIRS)
    assert torch.equal(*(next(iter(one.model.parameters())) for one in (model, other)))
