"""A model that starts from another with further tokens and languages: old outputs stay, new tokens can be learned."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

import dragoman
from dragoman import training
from dragoman.checkpoint import model_folder
from dragoman.cli.main import main
from dragoman.core.errors import ConfigError, PartError
from dragoman.core.types import Example
from dragoman.training.initial_weights import load_initial_weights

SHORT = ("training.validate_every=1000", "training.save_every=1000", "training.replay=0", "training.batch_sentences=20")
BPE = "{source: {name: bpe, size: 330}, joint: true}"
EXTEND = "model.extend={tokens: [qq], languages: [yo]}"
OLD = [("abc", "cba"), ("bcd", "dcb"), ("ab", "ba"), ("cab", "bac")]
CONFIG = """
name: base
data: {train: %s, columns: [source, target, target_lang]}
tokenizer: %s
model:
  width: 16
  encoder: {name: transformer, layers: 1, heads: 2, feedforward: 16, dropout: 0.0}
  decoder: {name: transformer, layers: 1, heads: 2, feedforward: 16, dropout: 0.0}
  tie: %s
training: {steps: 2, optimizer: {name: adamw, rate: 1.0e-2}, schedule: {name: constant, warmup: 1}}
"""


def write_config(folder: Path, tokenizer: str, tie: str = "all") -> Path:
    """A config and its data, with the language rev."""
    pairs = folder / "old.tsv"
    pairs.write_text("".join(f"{source} {target}\t{target}\trev\n" for source, target in OLD * 10))
    config = folder / "base.yaml"
    config.write_text(CONFIG % (pairs, tokenizer, tie))
    return config


def load(path: Path, *sets: str) -> dragoman.config.Config:
    return dragoman.config.load(path, None, [*SHORT, *sets]).config


@pytest.fixture(params=[(BPE, "all"), ("{source: words}", "none")], ids=["bpe", "words"])
def base(request, tmp_path: Path) -> tuple[Path, Path]:
    """A config, and a run of two steps."""
    config = write_config(tmp_path, *request.param)
    list(training.run(load(config), tmp_path / "base"))
    return config, tmp_path / "base"


def test_while_new_rows_are_unused_outputs_stay(base, tmp_path):
    config, run = base
    before, folder = dragoman.load(run), tmp_path / "extended"
    sets = [f"training.start_from={run}", EXTEND, "training.steps=1", "training.optimizer.rate=1e-30"]
    list(training.run(load(config, *sets), folder))
    after = dragoman.load(folder)
    assert len(after.codec.target) > len(before.codec.target)
    assert after.codec.source.vocabulary.names[: len(before.codec.source)] == before.codec.source.vocabulary.names
    examples = [Example(source, target_lang="rev") for source, _ in OLD]
    old, new = (model.predict(examples, beam=3, nbest=3) for model in (before, after))
    assert [[one.text for one in each.alternatives] for each in new] == [
        [one.text for one in each.alternatives] for each in old
    ]
    assert_close([each.score for each in new], [each.score for each in old], atol=1e-6, rtol=0)


def test_a_new_word_and_a_new_language_are_learned_and_come_back(base, tmp_path):
    config, run = base
    pairs = tmp_path / "new.tsv"
    pairs.write_text("ab qq\tqq cba\tyo\nab qq\tba\trev\n" * 20)
    sets = [f"training.start_from={run}", EXTEND, f"data.train=[{pairs}]", "training.steps=150"]
    reports = list(training.run(load(config, *sets), tmp_path / "extended"))
    assert any(report.kind == "start" for report in reports)
    model = dragoman.load(tmp_path / "extended")
    assert {"rev", "yo"} <= set(model.codec.target_languages)
    ids = model.codec.encode_source(Example("ab qq", target_lang="yo"))
    assert model.codec.source.pieces(ids)[0] == "<to:yo>"
    assert any(piece.endswith("qq") for piece in model.codec.source.pieces(ids))
    texts = [one.text for one in model.predict([Example("ab qq", target_lang=tag) for tag in ("yo", "rev")])]
    assert texts == ["qq cba", "ba"]


def test_an_extended_model_starts_another_and_nothing_is_added_twice(base, tmp_path):
    config, run = base
    for name, start in (("second", run), ("third", tmp_path / "second")):
        sets = [f"training.start_from={start}", EXTEND, "training.steps=1"]
        list(training.run(load(config, *sets), tmp_path / name))
    second, third = (model_folder.load(tmp_path / name).codec for name in ("second", "third"))
    assert third.source.vocabulary.names == second.source.vocabulary.names
    assert third.target.vocabulary.names == second.target.vocabulary.names


def test_new_rows_of_tables_are_the_mean_and_their_bias_is_low(base, tmp_path):
    config, run = base
    before = model_folder.load(run)
    before.codec.extend(["qq", "zz"], ["yo"])
    options = load(config)
    model = dragoman.config.build_model(options, before.codec.source_size, len(before.codec.target))
    load_initial_weights(model, run, [], grows=True)
    old = before.model.embedding.table.weight
    assert_close(model.embedding.table.weight[: len(old)], old)
    assert_close(model.embedding.table.weight[-1], old.mean(0))
    assert torch.all(model.output.bias[len(old) :] < -10)


@pytest.mark.parametrize(
    ("sets", "problem"),
    [
        ([], "training.start_from, which is missing"),
        (["training.start_from=x", "model.output_bias=false"], "output_bias: true"),
        (["training.start_from=x", "training.adapter=lora"], "leave out one of the two"),
        (["training.start_from=x", "model.extend.tokens=[a b]"], "must be one word"),
        (["training.start_from=x", "model.extend.languages=['<yo>']"], "model.extend.languages"),
    ],
)
def test_an_extension_that_cannot_be_is_refused_in_one_sentence(sets, problem, tmp_path):
    config = write_config(tmp_path, BPE)
    with pytest.raises(ConfigError, match=problem):
        load(config, EXTEND, *sets)


def test_a_token_that_the_tokenizer_never_gives_is_refused(tmp_path, monkeypatch, capsys):
    config = write_config(tmp_path, "{source: characters, joint: true}")
    list(training.run(load(config), tmp_path / "base"))
    codec = model_folder.load(tmp_path / "base").codec
    with pytest.raises(PartError, match="'qq' is no single token"):
        codec.extend(["qq"], [])
    codec.extend(["ŋ"], [])
    assert codec.decode(codec.encode_phrase("aŋb")) == "aŋb"
    command = ["train", str(config), "--set", f"training.start_from={tmp_path}/base", "--set", EXTEND]
    monkeypatch.setattr("sys.argv", ["dragoman", *command, "--run", str(tmp_path / "run")])
    with pytest.raises(SystemExit) as exit:
        main()
    assert exit.value.code == 2
    assert "'qq' is no single token" in capsys.readouterr().err
