"""`dragoman export`: what it prints, its exit codes, and what it leaves behind."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.interop.exporters.random_models import JOINT, save_model, transformers

from dragoman.checkpoint.model_folder import LoadedModel
from dragoman.interop import exporters
from dragoman.interop.exporters.contents import Exported, ExportOptions

from .conftest import Done, process

pytest.importorskip("ctranslate2")

RUN = "runs/copy"
LABELS = {"decoder": None, "head": "classifier", "tie": "none"}
POINTER = transformers() | {"pointer": "general"}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save_model(tmp_path / "model", transformers())


def test_the_other_program_gives_our_outputs_and_the_folder_says_so(tmp_path: Path, model: Path) -> None:
    done = process("export", model, "new/out", "--format", "ct2", "--check", "50", cwd=tmp_path)
    assert done.code == 0, done.err
    assert done.out.startswith("50 of 50 outputs of ctranslate2 ")
    assert "wrote new/out" in done.err
    assert "note: sources and outputs have at most 1024 tokens" in done.err
    written = {path.name for path in (tmp_path / "new" / "out").iterdir()}
    described = {"README.md", "export.json", "tokenization.json", "source.spm", "target.spm"}
    assert written == {"model.bin", "config.json", "shared_vocabulary.json", *described}
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["out"]
    check = json.loads((tmp_path / "new" / "out" / "export.json").read_text(encoding="utf-8"))["check"]
    assert (check["status"], check["sources"], check["equal"]) == ("passed", 50, 50)


def damage_weights(loaded: LoadedModel, folder: Path, options: ExportOptions) -> Exported:
    """An export to CTranslate2 with another sign before one of its matrices."""
    written = exporters.ct2.export_ct2(loaded, folder, options)
    weight = loaded.model.decoder.stack.blocks[1].feedforward.W1.weight.detach().numpy()
    data = (folder / "model.bin").read_bytes()
    assert data.count(weight.tobytes()) == 1
    (folder / "model.bin").write_bytes(data.replace(weight.tobytes(), (-weight).tobytes()))
    return written


def test_a_damaged_weight_fails_the_check_with_exit_code_4(
    tmp_path: Path, model: Path, here: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(exporters.EXPORTERS, "ct2", damage_weights)
    done = here("export", model, tmp_path / "out", "--format", "ct2")
    assert done.code == 4, done.err
    assert " of 200 outputs of ctranslate2 " in done.err
    check = json.loads((tmp_path / "out" / "export.json").read_text(encoding="utf-8"))["check"]
    assert check["status"] == "failed"
    assert check["equal"] < 200

    done = here("export", model, tmp_path / "unchecked", "--format", "ct2", "--no-check")
    assert done.code == 0
    assert done.out == "not checked: --no-check was given\n"


def test_a_folder_that_the_other_program_cannot_load_fails_the_check(
    tmp_path: Path, model: Path, here: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    def empty_weights(loaded: LoadedModel, folder: Path, options: ExportOptions) -> Exported:
        written = exporters.ct2.export_ct2(loaded, folder, options)
        (folder / "model.bin").write_bytes(b"")
        return written

    monkeypatch.setitem(exporters.EXPORTERS, "ct2", empty_weights)
    done = here("export", model, tmp_path / "out", "--format", "ct2")
    assert done.code == 4
    assert "ctranslate2 stopped:" in done.err
    assert "Traceback" not in done.err


def test_a_failing_writer_leaves_nothing_behind(
    tmp_path: Path, model: Path, here: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(loaded: LoadedModel, folder: Path, options: ExportOptions) -> Exported:
        (folder / "half").write_text("written")
        raise KeyboardInterrupt

    monkeypatch.setitem(exporters.EXPORTERS, "ct2", stop)
    assert here("export", model, tmp_path / "out", "--format", "ct2").code == 130
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--format", "ctt2"], "there is no format 'ctt2'; did you mean 'ct2'?"),
        (["--format", "pickle"], "the formats are ct2, hf, onnx, argos"),
        ([], "--format"),
        (["--format", "hf", "--quantization", "int8"], "--quantization int8 cannot be used with --format hf"),
        (["--format", "onnx", "--quantization", "float16"], "--quantization float16 cannot be used with --format onnx"),
        (["--format", "ct2", "--quantization", "int4"], "int4"),
        (["--format", "argos"], "give --from with a language code such as en"),
    ],
    ids=["misspelt", "unknown", "none", "hf int8", "onnx float16", "int4", "argos"],
)
def test_wrong_options_are_named_with_exit_code_2(
    tmp_path: Path, model: Path, here: Callable[..., Done], arguments: list[str], reason: str
) -> None:
    done = here("export", model, tmp_path / "out", *arguments)
    assert done.code == 2
    assert reason in done.err
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("format", exporters.EXPORTERS)
def test_an_existing_out_is_refused_and_stays_as_it_is(
    tmp_path: Path, model: Path, here: Callable[..., Done], format: str
) -> None:
    (tmp_path / "out").write_text("mine")
    (tmp_path / "link").symlink_to("nowhere")
    for name in ("out", "link"):
        done = here("export", model, tmp_path / name, "--format", format)
        assert done.code == 2
        assert "exists already" in done.err
    assert (tmp_path / "out").read_text() == "mine"


@pytest.mark.parametrize(
    ("options", "sections", "reason"),
    [
        (LABELS, {"training": {"objective": "labels"}}, "it predicts labels (model.head)"),
        (POINTER, {}, "it copies words of the source (model.pointer)"),
        (
            {"encoder": "none", "decoder": transformers(source="prefix")["decoder"], "tie": "all"},
            {"training": {"objective": "lm"}},
            "it is a language model",
        ),
    ],
    ids=["labels", "pointer", "language model"],
)
@pytest.mark.parametrize("format", exporters.EXPORTERS)
def test_a_model_that_no_format_can_state_is_refused_in_one_sentence(
    tmp_path: Path,
    here: Callable[..., Done],
    format: str,
    options: dict[str, Any],
    sections: dict[str, Any],
    reason: str,
) -> None:
    save_model(tmp_path / "model", options, JOINT, **sections)
    done = here("export", tmp_path / "model", tmp_path / "out", "--format", format)
    assert done.code == 2
    assert reason in done.err
    assert len(done.err.strip().splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_what_is_no_model_is_named(tmp_path: Path, here: Callable[..., Done]) -> None:
    done = here("export", tmp_path / "nowhere", tmp_path / "out", "--format", "ct2")
    assert done.code == 2
    assert "nowhere" in done.err


@pytest.mark.long
def test_a_trained_run_of_characters_and_its_zip_give_equal_outputs_in_onnxruntime(
    tmp_path: Path, work: Path, here: Callable[..., Done]
) -> None:
    pytest.importorskip("onnxscript")
    assert here("pack", RUN, "-o", tmp_path / "copy.zip").code == 0
    for name in (RUN, str(tmp_path / "copy.zip")):
        out = tmp_path / Path(name).stem
        done = here("export", name, out, "--format", "onnx")
        assert done.code == 0, done.err
        check = json.loads((out / "export.json").read_text(encoding="utf-8"))["check"]
        assert check["equal"] == check["sources"] == 200
