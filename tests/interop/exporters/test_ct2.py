"""The folders for CTranslate2, read by ctranslate2 itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
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
from dragoman.core.types import BOS, EOS, PAD, Example
from dragoman.engines.length_batches import pad_ids
from dragoman.interop.exporters import ExportOptions, export_model
from dragoman.interop.exporters.contents import unique_names

ctranslate2 = pytest.importorskip("ctranslate2")

CHARACTERS = {"source": {"name": "characters"}, "joint": True}
SYMBOLS = {"source": {"name": "symbols"}, "target": {"name": "symbols"}, "joint": False}
SHAPES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "post": (transformers(norm_order="post"), JOINT),
    "pre": (transformers(norm_order="pre", activation="gelu") | {"tie": "none"}, SEPARATE),
    "halves": (transformers(position={"name": "sinusoidal", "layout": "halves"}, activation="swish"), CHARACTERS),
    "learned": (
        transformers(norm_order="post", position="learned", embedding_norm=True, activation="gelu_tanh")
        | {"tie": "all"},
        JOINT,
    ),
    "rms": (transformers(norm="rms", activation="swiglu", position="none", bias=False) | {"tie": "embeddings"}, JOINT),
    "symbols": (transformers(activation="geglu", embedding_norm=True) | {"output_bias": False}, SYMBOLS),
    "unscaled": (transformers() | {"scale": False, "frontend": {"name": "tokens", "scale": False}}, SEPARATE),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_ctranslate2_computes_our_probabilities_and_finds_our_outputs(tmp_path: Path, shape: str) -> None:
    model, tokenizer = SHAPES[shape]
    loaded = model_folder.load(save_model(tmp_path / "model", model, tokenizer))
    export_model(tmp_path / "model", tmp_path / "out", "ct2", check=0)
    translator = ctranslate2.Translator(str(tmp_path / "out"), inter_threads=1, intra_threads=1)
    names, target_names = (unique_names(side.vocabulary) for side in (loaded.codec.source, loaded.codec.target))
    ids = sources(loaded)
    tokens = [[names[i] for i in source[:-1]] for source in ids]  # ctranslate2 adds </s>

    expected = our_outputs(loaded, ids)
    results = translator.translate_batch(
        tokens, beam_size=1, max_decoding_length=LONGEST, min_decoding_length=0, max_input_length=0
    )
    assert [each.hypotheses[0] for each in results] == [[target_names[i] for i in output] for output in expected]

    scored = translator.score_batch(tokens, [[target_names[i] for i in output] for output in expected])
    for source, output, score in zip(ids, expected, scored, strict=True):
        z = our_logits(loaded, *pad_ids([source]), torch.tensor([[BOS, *output]]))[0].double()
        z[:, [PAD, BOS]] = -torch.inf  # no output of ours has them, and the folder says so
        log_p = torch.log_softmax(z, -1).gather(-1, torch.tensor([*output, EOS])[:, None])[:, 0]
        np.testing.assert_allclose(score.log_probs, log_p, atol=2e-3, rtol=1e-3)


@pytest.mark.parametrize("tokenizer", [JOINT, SEPARATE], ids=["joint", "separate"])
def test_the_folder_splits_and_joins_texts_as_the_model_does(tmp_path: Path, tokenizer: dict[str, Any]) -> None:
    loaded = model_folder.load(save_model(tmp_path / "model", transformers(), tokenizer))
    export_model(tmp_path / "model", tmp_path / "out", "ct2", check=0)
    source, target = (
        sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "out" / f"{side}.spm"))
        for side in ("source", "target")
    )
    shared = (tmp_path / "out" / "shared_vocabulary.json").exists()
    assert shared == loaded.codec.is_joint
    name = "shared_vocabulary.json" if shared else "source_vocabulary.json"
    vocabulary = json.loads((tmp_path / "out" / name).read_text(encoding="utf-8"))
    for text in [*texts(20), "a  b", " ab"]:
        pieces = source.encode(text, out_type=str)
        assert [vocabulary.index(piece) for piece in pieces] == loaded.codec.encode_source(Example(text))[:-1]
        ids = loaded.codec.target.encode(text if loaded.codec.is_joint else text.upper())
        assert target.decode(ids) == loaded.codec.decode(ids)


@pytest.mark.parametrize("tokenizer", [JOINT, CHARACTERS], ids=["text", "tokens"])
def test_the_check_runs_in_a_process_of_its_own_and_all_outputs_are_equal(
    tmp_path: Path, tokenizer: dict[str, Any]
) -> None:
    save_model(tmp_path / "model", transformers(), tokenizer)
    report = export_model(tmp_path / "model", tmp_path / "out", "ct2")
    written = json.loads((tmp_path / "out" / "export.json").read_text(encoding="utf-8"))
    assert written == report.to_json()
    assert written["check"]["status"] == "passed"
    assert written["check"]["sources"] == 200
    assert written["check"]["equal"] + written["check"]["ties"] == 200
    assert written["check"]["version"] == written["versions"]["ctranslate2"] == ctranslate2.__version__
    if tokenizer is JOINT:
        assert written["check"]["tokenized_equally"] == 200


def test_tags_stand_before_the_tokens_of_a_source(tmp_path: Path) -> None:
    tags = "<to:de>", "<to:fr>"
    save_model(tmp_path / "model", transformers(), languages=tags)
    report = export_model(tmp_path / "model", tmp_path / "out", "ct2", check=40)
    assert (report.check.equal, report.check.tokenized_equally) == (40, 40)
    assert "known: <to:de>, <to:fr>" in (tmp_path / "out" / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("quantization", ["float16", "int8"])
def test_quantized_weights_are_smaller_and_differ_by_rounding_alone(tmp_path: Path, quantization: Any) -> None:
    save_model(tmp_path / "model", transformers() | {"width": 64}, gain=1.5)
    export_model(tmp_path / "model", tmp_path / "full", "ct2", check=0)
    report = export_model(tmp_path / "model", tmp_path / "out", "ct2", ExportOptions(quantization), check=40)
    assert report.check.status == "passed"
    assert any(f"{quantization} rounds the weights" in limitation for limitation in report.limitations)
    sizes = [(tmp_path / name / "model.bin").stat().st_size for name in ("out", "full")]
    assert sizes[0] < 0.6 * sizes[1]


@pytest.mark.parametrize("tokenizer", [JOINT, CHARACTERS], ids=["text", "tokens"])
def test_the_readme_runs_as_it_stands(
    tmp_path: Path, tokenizer: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save_model(tmp_path / "model", transformers(), tokenizer)
    export_model(tmp_path / "model", tmp_path / "out", "ct2", check=0)
    assert run_readme(tmp_path / "out", "cab dada", monkeypatch, capsys)


@pytest.mark.parametrize(
    ("model", "sections", "reason"),
    [
        (transformers(position="rotary"), {}, "positions are added to the embeddings, unlike RotaryPositions"),
        (transformers(key_heads=1), {}, "as many key heads as heads"),
        ({"decoder": {"name": "rnn"}}, {}, "the decoder is RNNDecoder, not a Transformer"),
        (transformers(), {"tokenizer": JOINT | {"source_template": "{text} <x>"}}, "puts '<x>' after the text"),
    ],
    ids=["rotary", "key_heads", "rnn", "template"],
)
def test_a_model_that_ctranslate2_cannot_state_is_refused_in_one_sentence(
    tmp_path: Path, model: dict[str, Any], sections: dict[str, Any], reason: str
) -> None:
    save_model(tmp_path / "model", model, languages=("<x>",), **sections)
    with pytest.raises(UserError, match="cannot be exported") as refused:
        export_model(tmp_path / "model", tmp_path / "out", "ct2")
    assert reason in str(refused.value)
    assert "\n" not in str(refused.value)
    assert [path.name for path in tmp_path.iterdir()] == ["model"], "nothing half-written stays"
