"""The folders for Hugging Face's transformers, read by transformers itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.interop.exporters.random_models import (
    JOINT,
    LONGEST,
    SEPARATE,
    our_logits,
    our_outputs,
    save_model,
    sources,
    texts,
    transformers,
)
from tests.interop.exporters.readme import run_readme

from dragoman.checkpoint import model_folder
from dragoman.core.errors import UserError
from dragoman.core.types import BOS, PAD, Example
from dragoman.engines.length_batches import pad_ids
from dragoman.interop.exporters import ExportOptions, export_model
from dragoman.nn.positions import SinusoidalPositions

hf = pytest.importorskip("transformers")

CHARACTERS = {"source": {"name": "characters"}, "joint": True}
HALVES = {"name": "sinusoidal", "layout": "halves"}
T5 = {"norm": "rms", "position": "t5", "bias": False}
FAMILIES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "marian": ("MarianMTModel", transformers(norm_order="post"), SEPARATE),
    "marian tied": ("MarianMTModel", transformers(norm_order="post", activation="swish") | {"tie": "all"}, JOINT),
    "marian halves": ("MarianMTModel", transformers(norm_order="post", position=HALVES, bias=False), JOINT),
    "bart": (
        "BartForConditionalGeneration",
        transformers(norm_order="post", position="learned", embedding_norm=True, activation="gelu") | {"tie": "all"},
        JOINT,
    ),
    "bart sinusoidal": (
        "BartForConditionalGeneration",
        transformers(norm_order="post", embedding_norm=True) | {"tie": "none"},
        CHARACTERS,
    ),
    "pegasus": ("PegasusForConditionalGeneration", transformers(activation="gelu_tanh"), JOINT),
    "pegasus learned": (
        "PegasusForConditionalGeneration",
        transformers(position="learned") | {"tie": "embeddings"},
        CHARACTERS,
    ),
    "mbart": (
        "MBartForConditionalGeneration",
        transformers(position="none", embedding_norm=True) | {"scale": False, "output_bias": False},
        JOINT,
    ),
    "t5": ("T5ForConditionalGeneration", transformers(**T5) | {"tie": "all", "output_bias": False}, JOINT),
    "t5 gated": (
        "T5ForConditionalGeneration",
        transformers(**T5 | {"activation": "geglu", "position": {"name": "t5", "buckets": 8, "distance": 6}})
        | {"tie": "none", "output_bias": False},
        CHARACTERS,
    ),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_computes_our_logits_and_generates_our_outputs(tmp_path: Path, family: str) -> None:
    name, options, tokenizer = FAMILIES[family]
    loaded = model_folder.load(save_model(tmp_path / "model", options, tokenizer))
    export_model(tmp_path / "model", tmp_path / "out", "hf", check=0)
    model, report = hf.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert type(model).__name__ == name
    assert not report["unexpected_keys"]
    assert not report["missing_keys"]
    assert not report["mismatched_keys"]
    encoder = loaded.model.encoder.stack
    if name.startswith(("Marian", "Pegasus")) and isinstance(encoder.positions[0], SinusoidalPositions):
        # Some versions of transformers compute these tables themselves.
        own = type(model)(model.config).get_encoder().embed_positions.weight
        torch.testing.assert_close(model.get_encoder().embed_positions.weight, own, atol=1e-4, rtol=0)

    ids = sources(loaded)
    source, lengths = pad_ids(ids)
    mask = (torch.arange(source.shape[1]) < lengths[:, None]).long()
    expected = our_outputs(loaded, ids)
    target, _ = pad_ids([[BOS, *tokens] for tokens in expected])
    with torch.no_grad():
        theirs = model.eval()(input_ids=source, attention_mask=mask, decoder_input_ids=target).logits
        found = model.generate(source, attention_mask=mask, max_new_tokens=LONGEST).tolist()
    real = target != PAD
    torch.testing.assert_close(theirs[real], our_logits(loaded, source, lengths, target)[real], atol=2e-3, rtol=1e-3)
    eos = model.config.eos_token_id
    assert [row[1 : row.index(eos, 1) if eos in row[1:] else None] for row in found] == expected


@pytest.mark.parametrize("tokenizer", [JOINT, SEPARATE], ids=["joint", "separate"])
def test_its_tokenizer_makes_our_ids_and_our_texts(tmp_path: Path, tokenizer: dict[str, Any]) -> None:
    tags = ("<to:de>", "<to:fr>") if tokenizer is JOINT else ()
    path = save_model(tmp_path / "model", transformers(norm_order="post"), tokenizer, tags)
    codec = model_folder.load(path).codec
    export_model(path, tmp_path / "out", "hf", check=0)
    theirs = hf.AutoTokenizer.from_pretrained(tmp_path / "out")
    for text in texts(20):
        assert theirs(text).input_ids == codec.encode_source(Example(text))
        ids = codec.target.encode(text if codec.is_joint else text.upper())
        assert theirs.batch_decode([ids], skip_special_tokens=True) == [codec.decode(ids)]
        for tag in tags:
            assert theirs(tag + text).input_ids == codec.encode_source(Example(text, target_lang=tag[4:-1]))


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
def test_the_check_runs_in_a_process_of_its_own_and_all_outputs_are_equal(tmp_path: Path, family: str) -> None:
    _, options, tokenizer = FAMILIES[family]
    save_model(tmp_path / "model", options, tokenizer)
    export_model(tmp_path / "model", tmp_path / "out", "hf")
    written = json.loads((tmp_path / "out" / "export.json").read_text(encoding="utf-8"))
    assert written["check"]["status"] == "passed"
    assert written["check"]["equal"] + written["check"]["ties"] == written["check"]["sources"] == 200
    assert written["check"]["version"] == written["versions"]["transformers"] == hf.__version__
    assert written["check"].get("tokenized_equally", 200) == 200


def test_float16_halves_the_file_and_the_outputs_are_those_of_rounded_weights(tmp_path: Path) -> None:
    loaded = model_folder.load(save_model(tmp_path / "model", transformers()))
    export_model(tmp_path / "model", tmp_path / "out", "hf", ExportOptions("float16"), check=0)
    export_model(tmp_path / "model", tmp_path / "full", "hf", check=0)
    model = hf.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out")
    assert model.dtype == torch.float16
    sizes = [(tmp_path / name / "model.safetensors").stat().st_size for name in ("out", "full")]
    assert sizes[0] < 0.6 * sizes[1]
    rounded = loaded.model.output.weight.detach().half()
    torch.testing.assert_close(model.get_output_embeddings().weight.sort().values, rounded.sort().values)


@pytest.mark.parametrize("tokenizer", [JOINT, CHARACTERS], ids=["text", "ids"])
def test_the_readme_runs_as_it_stands(
    tmp_path: Path, tokenizer: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save_model(tmp_path / "model", transformers(norm_order="post"), tokenizer)
    export_model(tmp_path / "model", tmp_path / "out", "hf", check=0)
    assert run_readme(tmp_path / "out", "cab dada", monkeypatch, capsys)


@pytest.mark.parametrize(
    ("model", "tokenizer", "reason"),
    [
        (transformers(position="rotary"), JOINT, "have sinusoidal, learned or t5 positions"),
        (transformers(position="t5"), JOINT, "with t5 positions it is rms there"),
        (transformers(**T5), JOINT, "train with output_bias: false"),
        (transformers(norm_order="post", position="learned"), JOINT, "it is sinusoidal there"),
        (transformers(), SEPARATE, "has one vocabulary for both sides"),
        (transformers(activation="swiglu"), JOINT, "have no gated activation"),
        (transformers(norm="rms"), JOINT, "have norm: layer"),
        (transformers(key_heads=1), JOINT, "as many key heads as heads"),
        (transformers(shared=True) | {"decoder": {"name": "rnn"}}, JOINT, "the decoder is RNNDecoder"),
        (
            {"encoder": transformers()["encoder"], "decoder": transformers(norm_order="post")["decoder"]},
            JOINT,
            "encoder and decoder differ in norm_order (pre and post)",
        ),
    ],
    ids=["rotary", "t5 norm", "t5 bias", "post learned", "separate", "gated", "rms", "key heads", "rnn", "two orders"],
)
def test_a_model_that_transformers_cannot_state_is_refused_in_one_sentence(
    tmp_path: Path, model: dict[str, Any], tokenizer: dict[str, Any], reason: str
) -> None:
    save_model(tmp_path / "model", model, tokenizer)
    with pytest.raises(UserError, match="cannot be exported as hf") as refused:
        export_model(tmp_path / "model", tmp_path / "out", "hf")
    assert reason in str(refused.value)
    assert "\n" not in str(refused.value)
    assert [path.name for path in tmp_path.iterdir()] == ["model"], "nothing half-written stays"


def test_without_transformers_the_folder_is_written_and_the_pip_command_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_model(tmp_path / "model", transformers())
    monkeypatch.setattr("dragoman.interop.exporters.verification.is_installed", lambda package: False)
    report = export_model(tmp_path / "model", tmp_path / "out", "hf")
    assert report.check.status == "not run"
    assert "pip install transformers" in report.check.summary()
    assert (tmp_path / "out" / "model.safetensors").is_file()
