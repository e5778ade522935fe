"""A few sources at every checkpoint: what is kept is what that checkpoint says, and training is none the wiser."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.codec_learning import learn_codec

from dragoman import config as configs
from dragoman import training
from dragoman.checkpoint import model_folder
from dragoman.core.errors import RunError
from dragoman.core.types import Example
from dragoman.inference import pipeline
from dragoman.inference.pipeline import Pipeline
from dragoman.training import replay

AVERAGED = ["training.ema=0.9", "training.steps=20", "training.keep=100"]


def frames(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "replay.jsonl").read_text().split("\n")[:-1]]


def build(**changes: Any) -> Pipeline:
    """An untrained model over the letters a to h."""
    value = {"data": {"train": "nowhere.tsv"}, "model": {"width": 16}} | changes
    config = configs.validate(value, "a test")
    part = config.tokenizer.source
    codec = learn_codec(part, part, config.tokenizer.joint, "nfc", ["abcd efgh"], ["abcd efgh"], [])
    model = configs.build_model(config, len(codec.source), len(codec.target))
    return Pipeline(model, codec, config, torch.device("cpu"))


RNN = {"width": 16, "tie": "none", "encoder": {"name": "rnn"}, "decoder": {"name": "rnn"}}


@pytest.mark.parametrize("family", ["rnn", "transformer"])
def test_a_run_with_a_replay_has_the_weights_of_one_without(family, tiny, metrics, tmp_path):
    for name, count in (("with", 3), ("without", 0)):
        list(training.run(tiny(family).config(*AVERAGED, f"training.replay={count}"), tmp_path / name))
    mine, theirs = (model_folder.list_checkpoints(tmp_path / name) for name in ("with", "without"))
    assert [folder.name for folder in mine] == [folder.name for folder in theirs]
    for one, other in zip(mine, theirs, strict=True):
        for file in ("model.safetensors", "training.safetensors", "training.json"):
            assert (one / file).read_bytes() == (other / file).read_bytes(), f"{one.name}/{file}"
    assert metrics(tmp_path / "with") == metrics(tmp_path / "without")
    assert len(frames(tmp_path / "with")) == len(mine)
    assert not (tmp_path / "without" / "replay.jsonl").exists()


@pytest.mark.parametrize("family", ["rnn", "transformer"])
def test_every_frame_is_what_its_checkpoint_predicts(family, tiny, tmp_path):
    made, run = tiny(family), tmp_path / "run"
    reports = list(training.run(made.config(*AVERAGED, "training.replay=2"), run))
    kept = frames(run)
    assert [frame["step"] for frame in kept] == [report.step for report in reports if report.kind == "saved"]
    first = [line.split("\t")[0] for line in (made.folder / "valid.tsv").read_text().split("\n")[:2]]
    for frame in kept:
        model = pipeline.load(run / "checkpoints" / f"step-{frame['step']}", "cpu", reference=True)
        expected = model.predict(first, beam=1, attention=True)
        assert [entry["source"] for entry in frame["sources"]] == first
        for entry, found in zip(frame["sources"], expected, strict=True):
            tokens = [*found.tokens, *["</s>"] * (found.finish_reason == "eos")]
            assert (entry["output"], entry["tokens"]) == (found.text, tokens)
            assert entry["source_tokens"] == [*entry["source"], "</s>"]
            assert entry["log_prob"] == pytest.approx(found.log_prob, abs=1e-5)
            assert found.attention is not None
            weights = torch.tensor(entry["attention"])
            assert weights.shape == (len(tokens), len(entry["source_tokens"]))
            assert torch.allclose(weights, torch.tensor(found.attention[: len(tokens)]), atol=1e-4)


def test_a_run_abandoned_and_resumed_has_every_frame_once(tiny, tmp_path):
    config = tiny().config("training.validate_every=7")
    list(training.run(config, tmp_path / "whole"))
    run = tmp_path / "run"
    for _ in range(3):
        stop = random.randint(5, 28)  # two reports a step or more: the end is not reached
        reports = training.run(config, run)
        for number, _report in enumerate(reports):
            if number == stop:
                break
        reports.close()  # type: ignore[attr-defined]
        if (run / "replay.jsonl").exists():
            with (run / "replay.jsonl").open("a") as file:
                file.write('{"step": 39, "sources": []}\n{"step": 3, "sou')  # of later steps, and half a line
    list(training.run(config, run))
    assert (run / "replay.jsonl").read_bytes() == (tmp_path / "whole" / "replay.jsonl").read_bytes()


def test_a_run_from_before_there_were_replays_goes_on(tiny, tmp_path):
    config, run = tiny().config(), tmp_path / "run"
    reports = training.run(config, run)
    next(report for report in reports if report.kind == "saved")
    reports.close()  # type: ignore[attr-defined]
    lines = (run / "config.yaml").read_text().split("\n")
    assert any("replay: 3" in line for line in lines)
    (run / "config.yaml").write_text("\n".join(line for line in lines if "replay" not in line))
    (run / "replay.jsonl").unlink()
    assert list(training.run(config, run))[-1].kind == "end"
    assert [frame["step"] for frame in frames(run)] == [*range(10, 41, 5)]


def test_how_many_sources_are_kept_may_change(tiny, tmp_path):
    run = tmp_path / "run"
    for steps, count in ((5, 1), (10, 2)):
        config = tiny().config(f"training.steps={steps}", f"training.replay={count}")
        list(training.run(config, run, allow_change=["training.steps"]))
    assert [len(frame["sources"]) for frame in frames(run)] == [1, 2]


def test_a_frame_that_cannot_be_written_is_one_error_message(tiny, tmp_path):
    run = tmp_path / "run"
    reports = training.run(tiny().config(), run)
    next(report for report in reports if report.kind == "step")
    (run / "replay.jsonl").mkdir()
    with pytest.raises(RunError, match=r"replay\.jsonl: cannot be written: it is not a plain file"):
        list(reports)


@pytest.mark.parametrize("mode", [True, False])
def test_a_frame_changes_no_random_generator_and_no_mode(mode):
    model = build(model=RNN)
    model.model.train(mode)
    before = torch.get_rng_state()
    replay.replay_frame(model, [Example("abc")], 1)
    assert torch.equal(torch.get_rng_state(), before)
    assert {module.training for module in model.model.modules()} == {mode}


def test_the_lengths_of_results_and_attention_are_bounded():
    model = build(model=RNN, generation={"max_length_extra": 400})
    with torch.no_grad():
        model.model.output.bias[2] = -1e9  # </s> never comes
    short, long = replay.replay_frame(model, [Example("abc"), Example("abcd" * 30)], 1)["sources"]
    assert len(short["tokens"]) == len(long["tokens"]) == replay.MAX_TOKENS
    assert len(short["attention"]) == replay.MAX_TOKENS
    assert long["attention"] is None  # 100 × 121 weights


def test_blank_sources_are_passed_over(tmp_path):
    (tmp_path / "valid.tsv").write_text("ab\tba\n \tx\ncd\tdc\nef\tfe\n")
    model = build(data={"train": "nowhere.tsv", "valid": str(tmp_path / "valid.tsv")}, training={"replay": 2})
    assert [example.source for example in replay.select_examples(model)] == ["ab", "cd"]
    assert replay.select_examples(build()) == []  # without a validation set


def test_a_language_model_goes_on_from_half_a_text(tmp_path):
    (tmp_path / "valid.txt").write_text("abcde\nfgh abcd\n")
    decoder = {"name": "transformer", "layers": 1, "heads": 2, "source": "prefix"}
    model = build(
        data={"train": "nowhere.txt", "valid": str(tmp_path / "valid.txt")},
        tokenizer={"joint": True},
        model={"width": 16, "tie": "all", "encoder": "none", "decoder": decoder},
        training={"objective": "lm"},
        generation={"max_length_extra": 4},
    )
    examples = replay.select_examples(model)
    assert [example.source for example in examples] == ["abc", "fgh "]
    for entry in replay.replay_frame(model, examples, 1)["sources"]:
        assert entry["output"].startswith(entry["source"].strip())
        assert entry["attention"] is None


def test_labels_of_a_head_have_no_end_of_sentence():
    model = build(
        model={"width": 16, "tie": "none", "encoder": {"name": "rnn"}, "decoder": None, "head": "classifier"},
        training={"objective": "labels"},
    )
    (entry,) = replay.replay_frame(model, [Example("abc")], 7)["sources"]
    assert entry["tokens"] == [entry["output"]]
