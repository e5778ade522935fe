"""The graphs for onnxruntime, run by onnxruntime itself."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.interop.exporters.random_models import (
    JOINT,
    SEPARATE,
    our_logits,
    our_outputs,
    save_model,
    sources,
    transformers,
)
from tests.interop.exporters.readme import run_readme

from dragoman.checkpoint import model_folder
from dragoman.checkpoint.model_folder import LoadedModel
from dragoman.core.errors import MissingExtra, UserError
from dragoman.core.types import BOS, EOS
from dragoman.engines.length_batches import pad_ids
from dragoman.interop.exporters import export_model, onnx
from dragoman.nn.losses import output_log_probs

ort = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

CHARACTERS = {"source": {"name": "characters"}, "joint": True}


def rnn(decoder: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    return {"encoder": {"name": "rnn", **options}, "decoder": {"name": "rnn", **options, **(decoder or {})}}


def conv(**decoder: Any) -> dict[str, Any]:
    return {"encoder": {"name": "conv", "layers": 2}, "decoder": {"name": "conv", "layers": 2, **decoder}}


GRU = rnn(cell="gru")
SHAPES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "gru": (GRU, JOINT),
    "transformer": (transformers(), JOINT),
    "lstm": (rnn(cell="lstm", layers=2), JOINT),
    "lstm general, input feeding": (rnn({"score": "general", "input_feeding": True}, cell="lstm"), SEPARATE),
    "gru reset before": (rnn(cell="gru", reset="before"), CHARACTERS),
    "gru location": (rnn({"score": "location"}, cell="gru"), JOINT),
    "gru coverage": (rnn({"score": "coverage"}, cell="gru"), JOINT),
    "gru without attention": (rnn({"source": "initial"}, cell="gru"), JOINT),
    "rnn": (rnn(cell="rnn_tanh"), JOINT),
    "rnn relu sparsemax": (rnn({"normalizer": "sparsemax"}, cell="rnn_relu"), JOINT),
    "conv": (conv(), JOINT),
    "conv weight norm": (conv(weight_norm=True, kernel=4), SEPARATE),
    "post": (transformers(norm_order="post", position="learned", embedding_norm=True), SEPARATE),
    "rms, grouped heads": (transformers(norm="rms", activation="swiglu", key_heads=1, position="rotary"), JOINT),
    "t5": (transformers(position="t5", activation="geglu"), CHARACTERS),
    "shaw": (transformers(position={"name": "shaw", "values": True}), JOINT),
    "xl": (transformers(position="xl"), JOINT),
    "alibi": (transformers(position="alibi"), JOINT),
    "average": (
        {"encoder": transformers()["encoder"], "decoder": transformers(mixer="average")["decoder"]},
        JOINT,
    ),
    "ssru": ({"encoder": transformers()["encoder"], "decoder": transformers(mixer="ssru")["decoder"]}, JOINT),
    "prefix": ({"encoder": {"name": "none"}, "decoder": transformers(source="prefix")["decoder"]}, JOINT),
    "pyramid": ({"encoder": {"name": "pyramid", "layers": 1}, "decoder": {"name": "rnn"}}, JOINT),
    "transformer and rnn": ({"encoder": transformers()["encoder"], "decoder": {"name": "rnn"}}, JOINT),
}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[LoadedModel, Path]:
    """A model and its export: tracing takes seconds, whatever the size."""
    folder = tmp_path_factory.mktemp("onnx")
    export_model(save_model(folder / "model", GRU, CHARACTERS), folder / "out", "onnx", check=0)
    return model_folder.load(folder / "model"), folder / "out"


def step_by_step(folder: Path, source: Any, lengths: Any, target: Any, capacity: int) -> Any:
    """log p (B, T, V) by the two graphs, for given target tokens (B, T)."""
    encoder, decoder = (ort.InferenceSession(folder / f"{name}.onnx") for name in ("encoder", "decoder_step"))
    inputs = {"source": source, "source_lengths": lengths, "target_positions": np.arange(capacity)}
    names = [each.name for each in encoder.get_outputs()]
    state = dict(zip(names, encoder.run(None, {x.name: inputs[x.name] for x in encoder.get_inputs()}), strict=True))
    rows = []
    for t in range(target.shape[1]):
        feed = state | {"token": target[:, t : t + 1]}
        log_p, *new = decoder.run(None, {x.name: feed[x.name] for x in decoder.get_inputs()})
        changed = [x.name.removeprefix("next_") for x in decoder.get_outputs()[1:]]
        state |= dict(zip(changed, new, strict=True))
        rows.append(log_p[:, 0])
    return np.stack(rows, 1)


def check_probabilities(loaded: LoadedModel, folder: Path) -> None:
    """Compare log p for batches of sizes and lengths that the exporter never saw, one row and one token included."""
    for rows, capacity in (([4], 8), ([1], 5), ([17, 3, 9], 25), ([1, 12], 3)):
        source, lengths = pad_ids([[*torch.randint(4, len(loaded.codec.source), (n - 1,)).tolist(), EOS] for n in rows])
        target = torch.randint(4, len(loaded.codec.target), (len(rows), capacity))
        target[:, 0] = BOS
        theirs = step_by_step(folder, source.numpy(), lengths.numpy(), target.numpy(), capacity)
        ours = output_log_probs(our_logits(loaded, source, lengths, target))
        np.testing.assert_allclose(theirs, ours, atol=2e-3, rtol=1e-3)


def test_the_graphs_give_our_probabilities_for_lengths_and_batches_that_they_were_not_traced_with(
    exported: tuple[LoadedModel, Path],
) -> None:
    check_probabilities(*exported)


@pytest.mark.long
@pytest.mark.parametrize("shape", SHAPES)
def test_every_architecture_gives_our_probabilities_and_passes_its_check(tmp_path: Path, shape: str) -> None:
    options, tokenizer = SHAPES[shape]
    gain = 1.2 if options["encoder"]["name"] == "conv" else 2.5
    loaded = model_folder.load(save_model(tmp_path / "model", options, tokenizer, gain=gain))
    export_model(tmp_path / "model", tmp_path / "out", "onnx")
    check_probabilities(loaded, tmp_path / "out")
    check = json.loads((tmp_path / "out" / "export.json").read_text(encoding="utf-8"))["check"]
    assert check["status"] == "passed"
    assert check["equal"] + check["ties"] == check["sources"] == 200


def test_the_readme_is_greedy_search_as_it_stands(
    exported: tuple[LoadedModel, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    loaded, folder = exported
    readme = (folder / "README.md").read_text(encoding="utf-8")
    example = [len(loaded.codec.source) - 1, EOS]
    line = f"sources = [{example}]  # token ids"
    assert line in readme
    for ids in ([example], sources(loaded, 3)):
        (folder / "README.md").write_text(readme.replace(line, f"sources = {ids}"), encoding="utf-8")
        printed = json.loads(run_readme(folder, "", monkeypatch, capsys))
        found = [row[: row.index(EOS) if EOS in row else None] for row in printed]
        assert found == our_outputs(loaded, ids, 60)


@pytest.mark.long
def test_weights_too_large_for_a_graph_are_in_a_file_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_model(tmp_path / "model", GRU)
    monkeypatch.setattr(onnx, "MAX_GRAPH_BYTES", 1000)
    report = export_model(tmp_path / "model", tmp_path / "out", "onnx", check=20)
    assert report.check.equal == 20
    assert (tmp_path / "out" / "encoder.onnx").stat().st_size < 100_000
    assert (tmp_path / "out" / "encoder.onnx.data").is_file()


@pytest.mark.parametrize("shape", ["conv weight norm", "t5"])
def test_what_is_traced_is_a_copy_that_computes_the_same_and_the_model_stays_as_it_was(
    tmp_path: Path, shape: str
) -> None:
    options, tokenizer = SHAPES[shape]
    loaded = model_folder.load(save_model(tmp_path / "model", options, tokenizer, gain=1.2))
    source, lengths = pad_ids(sources(loaded, 8))
    target = torch.randint(4, len(loaded.codec.target), (8, 5))
    before = our_logits(loaded, source, lengths, target)
    copied = replace(loaded, model=onnx.exportable_copy(loaded.model))
    assert not any("parametrizations" in name for name, _ in copied.model.named_parameters())
    torch.testing.assert_close(our_logits(loaded, source, lengths, target), before, atol=0, rtol=0)
    torch.testing.assert_close(our_logits(copied, source, lengths, target), before, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("package", ["onnx", "onnxscript"])
def test_a_missing_package_is_named_with_its_extra(
    tmp_path: Path, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_model(tmp_path / "model", GRU)
    find_spec = onnx.importlib.util.find_spec
    monkeypatch.setattr(onnx.importlib.util, "find_spec", lambda name: None if name == package else find_spec(name))
    with pytest.raises(MissingExtra, match=rf"'{package}'.*pip install 'dragoman\[onnx\]'"):
        export_model(tmp_path / "model", tmp_path / "out", "onnx")
    assert not (tmp_path / "out").exists()


def test_a_model_that_cannot_be_traced_is_refused_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_model(tmp_path / "model", GRU)

    def fail(*arguments: Any) -> None:
        raise RuntimeError("data-dependent\nand more")

    monkeypatch.setattr(onnx, "export_graph", fail)
    with pytest.raises(UserError, match=r"cannot be exported as onnx: .* RNNEncoder and RNNDecoder \(data-dependent\)"):
        export_model(tmp_path / "model", tmp_path / "out", "onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["model"], "nothing half-written stays"
