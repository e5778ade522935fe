"""The packages for argostranslate: their files always, and argostranslate itself where it is installed."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import sentencepiece
from tests.interop.exporters.random_models import (
    JOINT,
    LONGEST,
    SEPARATE,
    our_outputs,
    save_model,
    sources,
    texts,
    transformers,
)
from tests.interop.exporters.readme import python_block

from dragoman.checkpoint import model_folder
from dragoman.core.errors import UserError
from dragoman.interop.exporters import ExportOptions, export_model

ctranslate2 = pytest.importorskip("ctranslate2")

ENGLISH_GERMAN = ExportOptions(source_lang="en", target_lang="de")
has_argos = pytest.mark.skipif(
    importlib.util.find_spec("argostranslate") is None, reason="argostranslate is not installed"
)


def test_a_package_has_all_that_argostranslate_reads_and_translates_by_ctranslate2_as_we_do(tmp_path: Path) -> None:
    loaded = model_folder.load(save_model(tmp_path / "model", transformers()))
    archive = tmp_path / "en_de.argosmodel"
    export_model(tmp_path / "model", archive, "argos", ENGLISH_GERMAN, check=0)
    with zipfile.ZipFile(archive) as opened:
        opened.extractall(tmp_path)
    package = tmp_path / "translate-en_de-1_0"
    metadata = json.loads((package / "metadata.json").read_text(encoding="utf-8"))
    assert (metadata["from_code"], metadata["to_code"]) == ("en", "de")
    assert json.loads((package / "export.json").read_text(encoding="utf-8"))["check"]["status"] == "not run"

    processor = sentencepiece.SentencePieceProcessor(model_file=str(package / "sentencepiece.model"))
    translator = ctranslate2.Translator(str(package / "model"), inter_threads=1, intra_threads=1)
    results = translator.translate_batch(
        [processor.encode(text, out_type=str) for text in texts(40)],
        beam_size=1,
        max_decoding_length=LONGEST,
        min_decoding_length=0,
    )
    expected = [loaded.codec.decode(ids) for ids in our_outputs(loaded, sources(loaded))]
    assert [processor.decode(each.hypotheses[0]) for each in results] == expected


def test_equal_models_give_equal_bytes(tmp_path: Path) -> None:
    save_model(tmp_path / "model", transformers())
    for name in ("a", "b"):
        export_model(tmp_path / "model", tmp_path / name, "argos", ENGLISH_GERMAN, check=0)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "model"]


@pytest.mark.parametrize(
    ("options", "tokenizer", "languages", "reason"),
    [
        (ExportOptions(target_lang="de"), JOINT, (), "give --from with a language code such as en"),
        (
            ExportOptions(source_lang="en", target_lang="../x"),
            JOINT,
            (),
            "give --to with a language code such as en, f",
        ),
        (ENGLISH_GERMAN, SEPARATE, (), "tokenizer.joint: true"),
        (ENGLISH_GERMAN, {"source": {"name": "characters"}, "joint": True}, (), "tokenizer.joint: true and bpe or"),
        (ENGLISH_GERMAN, JOINT, ("<to:de>",), "it puts no tags before a source"),
    ],
    ids=["no --from", "bad --to", "separate", "characters", "tags"],
)
def test_a_model_that_argostranslate_cannot_state_is_refused_in_one_sentence(
    tmp_path: Path, options: ExportOptions, tokenizer: dict[str, object], languages: tuple[str, ...], reason: str
) -> None:
    save_model(tmp_path / "model", transformers(), tokenizer, languages)
    with pytest.raises(UserError, match="cannot be exported as argos") as refused:
        export_model(tmp_path / "model", tmp_path / "out.argosmodel", "argos", options)
    assert reason in str(refused.value)
    assert "\n" not in str(refused.value)
    assert [path.name for path in tmp_path.iterdir()] == ["model"], "nothing half-written stays"


def test_without_argostranslate_the_package_is_written_and_the_pip_command_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_model(tmp_path / "model", transformers())
    monkeypatch.setattr("dragoman.interop.exporters.verification.is_installed", lambda package: False)
    report = export_model(tmp_path / "model", tmp_path / "out.argosmodel", "argos", ENGLISH_GERMAN)
    assert "pip install argostranslate" in report.check.summary()
    assert zipfile.is_zipfile(tmp_path / "out.argosmodel")


@has_argos
@pytest.mark.parametrize("byte_fallback", [False, True])
def test_argostranslate_installs_the_package_and_gives_our_outputs(tmp_path: Path, byte_fallback: bool) -> None:
    size = 300 if byte_fallback else 40
    tokenizer = {"source": {"name": "bpe", "size": size, "byte_fallback": byte_fallback}, "joint": True}
    save_model(tmp_path / "model", transformers(), tokenizer)
    report = export_model(tmp_path / "model", tmp_path / "out.argosmodel", "argos", ENGLISH_GERMAN, check=60)
    assert report.check.status == "passed"
    assert report.check.equal == report.check.sources > 0


@has_argos
def test_the_readme_runs_as_it_stands(tmp_path: Path) -> None:
    save_model(tmp_path / "model", transformers())
    export_model(tmp_path / "model", tmp_path / "out.argosmodel", "argos", ENGLISH_GERMAN, check=0)
    with zipfile.ZipFile(tmp_path / "out.argosmodel") as opened:
        readme = opened.read("translate-en_de-1_0/README.md").decode()
    # What splits texts into sentences downloads its model at its first use: here each text is one.
    (tmp_path / "minisbd.py").write_text(
        "class models:\n    def list_models(): return ['en']\n"
        "class SBDetect:\n    def __init__(self, *a, **k): pass\n    def sentences(self, text): return [text]\n"
    )
    home = {name: str(tmp_path) for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME")}
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    (tmp_path / "program.py").write_text(python_block(readme), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "program.py", "out.argosmodel"],
        cwd=tmp_path,
        input=b"cab dada\n",
        capture_output=True,
        env=os.environ | home | {"PYTHONPATH": path},
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.strip()
