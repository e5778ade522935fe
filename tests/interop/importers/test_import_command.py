"""`dragoman import hf:DIR OUT` on the command line, and what the other commands make of its folder."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.interop.importers import hf_models
from tests.interop.importers.conftest import ImportedCase

from dragoman import config as configs
from dragoman import training
from dragoman.checkpoint import model_folder
from dragoman.cli.main import main
from dragoman.core.errors import PartError
from dragoman.core.registry import Part
from dragoman.core.types import Example
from dragoman.inference import pipeline

Find = Callable[[str], ImportedCase]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command in this process and in a folder of its own; returns what it printed."""
    monkeypatch.chdir(tmp_path)

    def call(*args: str, code: int = 0) -> str:
        monkeypatch.setattr(sys, "argv", ["dragoman", *args])
        with pytest.raises(SystemExit) as raised:
            main()
        printed = capsys.readouterr()
        assert (raised.value.code or 0) == code, printed.err
        return printed.out + printed.err

    return call


def test_an_imported_folder_works_in_every_command(imported: Find, run: Callable[..., str], tmp_path: Path) -> None:
    case = imported("marian with languages")
    shutil.copytree(case.theirs.folder, tmp_path / "theirs")
    (tmp_path / "theirs/README.md").write_text("---\nlicense: apache-2.0\n---\n")
    printed = run("import", "hf:theirs", "ours")
    assert "license: apache-2.0" in printed
    assert "wrote ours" in printed
    assert run("import", "hf:theirs", "ours", code=2).count("exists already") == 1

    lines = hf_models.texts(6, 21)
    (tmp_path / "lines.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    outputs = [result.text for result in case.ours.predict(case.examples(lines))]
    assert run("predict", "ours", "lines.txt", "--target-lang", "deu").splitlines()[: len(lines)] == outputs
    pairs = [
        {"source": line, "target": target or "ab", "target_lang": "deu"}
        for line, target in zip(lines, outputs, strict=True)
    ]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs), encoding="utf-8")
    assert run("score", "ours", "pairs.jsonl").count("\n") >= len(lines)
    assert "bleu" in run("evaluate", "ours", "pairs.jsonl", "--metrics", "bleu,chrf").lower()
    assert "config.yaml is right" in run("config", "check", "ours/config.yaml")
    run("inspect", "ours", lines[0], "--target-lang", "deu", "--html", "page.html")
    assert (tmp_path / "page.html").stat().st_size > 1000
    assert run("predict", "ours", "lines.txt", "--target-lang", "xxx", code=2).count("<to:xxx>") == 1


FAMILIES = {"marian", "mbart-50", "byt5"}  # post-norm, pre-norm with languages, T5
EVERY = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in FAMILIES else pytest.mark.long) for name in hf_models.CASES]
)


def write_pairs(case: ImportedCase, path: Path) -> list[Example]:
    """Forty pairs in the languages of a model."""
    sources, targets = hf_models.texts(40, 1), hf_models.texts(40, 2)
    pairs = [replace(example, target=y) for example, y in zip(case.examples(sources), targets, strict=True)]
    keys = ("source", "target", "source_lang", "target_lang")
    lines = (json.dumps({key: getattr(pair, key) for key in keys if getattr(pair, key)}) for pair in pairs)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return pairs


def tuning_config(case: ImportedCase, data: Path, **model: Any) -> configs.Config:
    """A few steps from an imported model."""
    value = model_folder.load(case.path).config.model_dump(mode="json", exclude_unset=True)
    value["data"] |= {"train": str(data), "valid": str(data)}
    value["model"] |= model
    value["training"] = {
        "start_from": str(case.path),
        "steps": 4,
        "save_every": 2,
        "validate_every": 4,
        "batch_tokens": 256,
        "optimizer": {"name": "adamw", "rate": 1e-3},
        "schedule": "constant",
    }
    value["runtime"] = {"device": "cpu", "threads": 1}
    return configs.validate(value, "fine-tuning")


@EVERY
def test_training_goes_on_from_an_imported_folder_and_resumes(name: str, imported: Find, tmp_path: Path) -> None:
    case = imported(name)
    pairs = write_pairs(case, tmp_path / "pairs.jsonl")
    base, config = model_folder.load(case.path), tuning_config(case, tmp_path / "pairs.jsonl")
    reports = []
    for report in training.run(config, tmp_path / "run"):
        reports.append(report)
        if len(reports) == 2:
            break
    assert list(training.run(config, tmp_path / "run"))
    tuned = model_folder.load(tmp_path / "run")
    assert tuned.codec.fingerprint == base.codec.fingerprint
    before, after = base.model.state_dict(), tuned.model.state_dict()
    assert all(bool(x.isfinite().all()) for x in after.values())
    assert not torch.equal(
        before["encoder.stack.blocks.0.mixer.Wq.weight"], after["encoder.stack.blocks.0.mixer.Wq.weight"]
    )
    tuned_pipeline = pipeline.load(tmp_path / "run", "cpu")
    assert sum(tuned_pipeline.score(pairs)) > sum(case.ours.score(pairs))
    assert len(tuned_pipeline.predict(case.examples(["ab ba"]))) == 1


@EVERY
def test_an_imported_model_learns_low_rank_matrices_and_new_words(name: str, imported: Find, tmp_path: Path) -> None:
    case = imported(name)
    pairs = write_pairs(case, tmp_path / "pairs.jsonl")
    config = tuning_config(case, tmp_path / "pairs.jsonl")
    low_rank = config.model_copy(update={"training": config.training.model_copy(update={"adapter": Part("lora")})})
    list(training.run(low_rank, tmp_path / "lora"))
    assert sum(pipeline.load(tmp_path / "lora", "cpu").score(pairs)) > sum(case.ours.score(pairs))

    grown = tuning_config(case, tmp_path / "pairs.jsonl", extend={"tokens": ["zyzzyva"]})
    one_step = grown.training.model_copy(update={"steps": 1, "optimizer": Part("adamw", {"rate": 1e-30})})
    grown = grown.model_copy(update={"training": one_step})
    if name == "byt5":
        with pytest.raises(PartError, match="no single token of a tokenizer 'bytes'"):
            list(training.run(grown, tmp_path / "more"))
        return
    list(training.run(grown, tmp_path / "more"))
    more = pipeline.load(tmp_path / "more", "cpu")
    assert len(more.codec.target) == len(case.ours.codec.target) + 1
    ids = more.codec.source.encode("ab zyzzyva ab")
    assert sum("zyzzyva" in piece for piece in more.codec.source.pieces(ids)) == 1
    examples = case.examples(hf_models.texts(10, 3))
    assert [one.text for one in more.predict(examples)] == [one.text for one in case.ours.predict(examples)]


# -- memory ------------------------------------------------------------------------------------------------------------

PROGRAM = """
import resource, sys
from pathlib import Path
from dragoman.interop.importers import import_model
import_model("hf:" + sys.argv[1], Path(sys.argv[2]))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def write_large_nllb(case: ImportedCase, folder: Path, width: int, rows: int, layers: int) -> int:
    """A folder in NLLB's shape with random weights in float32, in shards that are written piece by piece; its bytes."""
    shutil.copytree(case.theirs.folder, folder)
    (folder / "model.safetensors").unlink()
    sizes = {"d_model": width, "vocab_size": rows, "encoder_layers": layers, "decoder_layers": layers}
    sizes |= {f"{side}_ffn_dim": 4 * width for side in ("encoder", "decoder")}
    config = json.loads((folder / "config.json").read_text()) | sizes
    hf_models.write_json(folder / "config.json", config)
    with torch.device("meta"):
        model = hf_models.transformers.M2M100ForConditionalGeneration(hf_models.transformers.M2M100Config(**config))
    tied = ("lm_head.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight")
    shapes = {name: tuple(x.shape) for name, x in model.state_dict().items() if name not in tied}
    names, index, total = list(shapes), {}, 0
    shards = [names[i::3] for i in range(3)]
    noise = torch.randn(2**20).numpy().tobytes()
    for number, own in enumerate(shards):
        header, end = {}, 0
        for name in own:
            size = 4 * torch.Size(shapes[name]).numel()
            header[name] = {"dtype": "F32", "shape": list(shapes[name]), "data_offsets": [end, end + size]}
            end += size
        text = json.dumps(header).encode()
        file = f"model-{number}.safetensors"
        with (folder / file).open("wb") as out:
            out.write(len(text).to_bytes(8, "little") + text)
            for start in range(0, end, len(noise)):
                out.write(noise[: min(len(noise), end - start)])
        index |= dict.fromkeys(own, file)
        total += end
    hf_models.write_json(folder / "model.safetensors.index.json", {"weight_map": index})
    return total


@pytest.mark.long
def test_a_folder_larger_than_memory_would_hold_twice_is_imported_piece_by_piece(
    imported: Find, tmp_path: Path
) -> None:
    size = write_large_nllb(imported("nllb"), tmp_path / "theirs", width=1536, rows=164_000, layers=6)
    assert size > 2.4e9
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, tmp_path / "theirs", tmp_path / "ours"],
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) * 1024 < 3.5e9  # 2.3 GB of 2.5, of which the largest tensor and its copy are 2
