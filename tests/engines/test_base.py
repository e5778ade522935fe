"""The engine report, against the engines that are really opened."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from dragoman import config as configs
from dragoman.core.generation import GenerationOptions
from dragoman.core.registry import Part
from dragoman.core.types import EOS, Hypothesis
from dragoman.engines.base import (
    DecodingRequest,
    EngineReport,
    choose_training_engine,
    chosen_engine,
    open_engine,
    open_training_engine,
    report_config,
    report_engines,
)
from dragoman.engines.cpu.ctranslate2 import CTranslate2Engine
from dragoman.engines.training.rnn_graph import CapturedLoop
from dragoman.nn.kernels.packed import supports_triton
from dragoman.nn.seq2seq import Seq2Seq
from dragoman.search import SearchConstraints, build_search
from dragoman.search.logits_processors import NoUnkProcessor

CPU, GPU = torch.device("cpu"), torch.device("cuda")
V = 30


def transformer(**options: Any) -> Part:
    return Part("transformer", {"layers": 1, "heads": 2, "dropout": 0.0, **options})


def both_sides(part: Part) -> dict[str, Part]:
    return {"encoder": part, "decoder": part}


MODELS: dict[str, dict[str, Any]] = {
    "transformer": both_sides(transformer()),
    "wide": both_sides(transformer()) | {"width": 264},
    "narrow heads": both_sides(transformer(heads=4)),
    "rotary": both_sides(transformer(position=Part("rotary"))),
    "alibi": both_sides(transformer(position=Part("alibi"))),
    "ssru": {"encoder": transformer(), "decoder": transformer(mixer=Part("ssru"))},
    "rnn": {"encoder": Part("rnn"), "decoder": Part("rnn", {"order": "after"})},
    "input feeding": {"encoder": Part("rnn"), "decoder": Part("rnn", {"input_feeding": True})},
    "rnn encoder": {"encoder": Part("rnn"), "decoder": transformer()},
    "conv": {"encoder": Part("conv", {"layers": 1}), "decoder": Part("conv", {"layers": 1})},
    "pointer": both_sides(transformer()) | {"pointer": Part("additive")},
    "prefix": {"encoder": Part("none"), "decoder": transformer(source="prefix")},
    "head": {"encoder": transformer(), "decoder": None, "head": Part("tagger")},
}
OPTIONS = {
    "greedy": GenerationOptions(search=Part("greedy")),
    "beam": GenerationOptions(beam=3),
    "never": GenerationOptions(beam=3, early_stopping="never"),
    "early": GenerationOptions(beam=3, early_stopping=True),
    "coverage": GenerationOptions(beam=3, coverage_penalty=0.2),
    "sample": GenerationOptions(search=Part("sample")),
}
GREEDY = DecodingRequest.from_options(OPTIONS["greedy"])
CONSTRAINTS: dict[str, dict[str, Any]] = {
    "none": {},
    "minimum length": {"min_lengths": 2},
    "processors": {"processors": [NoUnkProcessor()]},
    "trace": {"traces": {}},
}


def build(name: str) -> Seq2Seq:
    return Seq2Seq(V, V, **({"width": 32, "tie": "none"} | MODELS[name])).eval()


def build_on_meta(name: str) -> Seq2Seq:
    with torch.device("meta"):
        return build(name)


def used_engine(
    model: Seq2Seq, device: torch.device, precision: str, request: DecodingRequest, monkeypatch: pytest.MonkeyPatch
) -> str:
    """The name of the engine that decodes a request when it is opened and called."""
    engine = open_engine(model.to(device), device, precision)
    if engine is None or not engine.serves(request.search, request.constraints):
        return "reference"
    calls = []

    def record(self: CTranslate2Engine, sources: list[list[int]], *rest: object) -> list[list[Hypothesis]]:
        calls.append(self.name)
        return [[] for _ in sources]

    monkeypatch.setattr(CTranslate2Engine, "__call__", record)
    engine([[5, 6, EOS]] * 2, request.search, request.constraints)
    return calls[0] if calls else engine.name


@pytest.mark.parametrize("precision", ["float32", "int8", "bfloat16"])
@pytest.mark.parametrize("device", [CPU, GPU], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_the_engine_that_decodes_is_the_one_that_the_report_names(
    name: str, device: torch.device, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if device == GPU and not supports_triton():
        pytest.skip("needs a GPU and Triton")
    model, on_meta = build(name), build_on_meta(name)
    for options in OPTIONS.values():
        for constraints in CONSTRAINTS.values():
            limits = SearchConstraints(torch.full((2,), 3), **constraints)
            request = DecodingRequest(build_search(options), limits)
            report = report_engines(on_meta, device, precision, decoding=request)
            assert chosen_engine(report.decoding) == used_engine(model, device, precision, request, monkeypatch)


TRAINED_BY = {
    "transformer": "fused_transformer",
    "narrow heads": "reference",  # the kernel for packed attention takes no heads of width 8
    "rotary": "compiled",
    "alibi": "reference",
    "ssru": "reference",
    "rnn": "reference",
    "input feeding": "rnn_graph",
    "conv": "reference",
    "head": "reference",
}


@pytest.mark.parametrize("name", TRAINED_BY)
def test_the_training_engine_that_is_opened_is_the_one_that_the_report_names(name: str) -> None:
    options, device = configs.TrainingOptions(), GPU if supports_triton() else CPU
    report = report_engines(build_on_meta(name), GPU, decoding=GREEDY, training=options, on_this_machine=False)
    assert chosen_engine(report.training) == TRAINED_BY[name]
    expected = TRAINED_BY[name] if device == GPU else "reference"
    assert (
        chosen_engine(report_engines(build_on_meta(name), device, decoding=GREEDY, training=options).training)
        == expected
    )
    model = build(name).to(device)
    graph_step, choices = open_training_engine(model, device, options)
    assert chosen_engine(choices) == expected
    assert (graph_step is not None) == (expected in ("fused_transformer", "compiled"))
    assert (graph_step is not None and graph_step.fused is not None) == (expected == "fused_transformer")
    assert isinstance(getattr(model.decoder, "step_loop", None), CapturedLoop) == (expected == "rnn_graph")


@pytest.mark.parametrize(
    "change", [{"scheduled_sampling": Part("linear")}, {"objective": Part("prefix")}, {"r_drop": 1.0}], ids=str
)
def test_training_options_decide_the_engine(change: dict[str, Any]) -> None:
    options = configs.TrainingOptions().model_copy(update=change)
    choices = choose_training_engine(build_on_meta("transformer"), GPU, options, on_this_machine=False)
    assert chosen_engine(choices) == ("fused_transformer" if "r_drop" in change else "reference")


@pytest.mark.parametrize("change", [{"sharding": "full"}, {"activation_checkpointing": True}], ids=str)
def test_runtime_options_that_work_on_modules_leave_the_reference(change: dict[str, Any]) -> None:
    runtime, options = configs.RuntimeOptions().model_copy(update=change), configs.TrainingOptions()
    for name in ("transformer", "rnn"):
        model = build_on_meta(name)
        choices = choose_training_engine(model, GPU, options, on_this_machine=False, runtime=runtime)
        assert chosen_engine(choices) == "reference"
        assert all(
            f"runtime.{next(iter(change))}" in str(blocker) for blocker in choices.values() if blocker is not None
        )


def test_reference_only_leaves_the_reference() -> None:
    report = report_engines(
        build("transformer"),
        CPU,
        decoding=GREEDY,
        training=configs.TrainingOptions(),
        reference_only=True,
        on_this_machine=False,
    )
    assert (chosen_engine(report.training), chosen_engine(report.decoding)) == ("reference", "reference")
    assert all(blocker == "runtime.engine is 'reference'" for blocker in list(report.decoding.values())[:-1])


@pytest.mark.parametrize(
    ("request_options", "reason"),
    [
        ({"record_attention": True}, "attention weights are asked for"),
        ({"ctc_weight": 0.3}, "CTC score"),
        ({"continues_text": True}, "a language model continues its input"),
    ],
)
def test_what_no_engine_does_blocks_all_of_them(request_options: dict[str, Any], reason: str) -> None:
    request = replace(GREEDY, **request_options)
    report = report_engines(build("transformer"), CPU, decoding=request)
    assert chosen_engine(report.decoding) == "reference"
    assert all(reason in str(blocker) for blocker in list(report.decoding.values())[:-1])


def test_what_is_not_a_single_model_is_decoded_by_the_reference() -> None:
    report = report_engines(object(), CPU, decoding=GREEDY, training=configs.TrainingOptions())
    assert (chosen_engine(report.training), chosen_engine(report.decoding)) == ("reference", "reference")
    assert report.decoding["cuda"] == "object is not a single model"


def assert_complete(report: EngineReport) -> None:
    for choices in (report.training, report.decoding):
        assert list(choices.values()).count(None) == 1
        assert list(choices)[-1] == "reference"


@pytest.mark.parametrize(
    "preset",
    [
        name
        if name in ("bahdanau2015", "bert", "gpt2", "transformer-tiny", "show-attend-tell-soft")
        else pytest.param(name, marks=pytest.mark.long)
        for name in configs.list_presets()
    ],
)
def test_every_preset_has_a_report(preset: str) -> None:
    config = configs.load(None, preset, ["data.train=pairs.tsv"]).config
    for device in (CPU, GPU):
        report = report_config(config, device, on_this_machine=False)
        assert_complete(report)
        lines = list(report.lines())
        assert lines[0].startswith(f"training on {device.type}: ")
        assert all(line.startswith(("training on", "decoding on", "  not ", "  note: ")) for line in lines)
