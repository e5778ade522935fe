"""What a user installs works: the wheel, in an environment of its own, away from the source tree."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "dragoman"

CONFIG = """
data: {train: pairs.tsv}
model:
  width: 16
  tie: none
  encoder: {name: rnn, cell: gru}
  decoder: {name: rnn, cell: gru}
training: {steps: 20, batch_tokens: 256, schedule: {name: linear, warmup: 5}}
runtime: {device: cpu, threads: 1}
"""


def run(*command: str | Path, cwd: Path, input: str = "") -> str:
    outside = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, input=input, env=outside, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, f"{command}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    run(*pip, "--wheel-dir", folder, ROOT, cwd=folder)
    (built,) = folder.glob("dragoman-*.whl")
    return built


@pytest.fixture(scope="module")
def bin(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a fresh environment with the wheel and what it depends on."""
    venv = tmp_path_factory.mktemp("venv") / "fresh"
    run(sys.executable, "-m", "venv", venv, cwd=venv.parent)
    pip = [venv / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run(*pip, "-c", ROOT / "constraints.txt", wheel, cwd=venv.parent)
    return venv / "bin"


def test_the_wheel_holds_every_file_of_the_package_and_nothing_else(wheel: Path) -> None:
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    there = {
        f"dragoman/{path.relative_to(SOURCE).as_posix()}"
        for path in SOURCE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert held == there
    assert {"dragoman/py.typed", "dragoman/presets/dates.yaml"} <= held


def test_the_installed_wheel_trains_and_predicts_away_from_the_source_tree(bin: Path, tmp_path: Path) -> None:
    place = run(bin / "python", "-c", "import dragoman; print(dragoman.__file__)", cwd=tmp_path).strip()
    assert Path(place).is_relative_to(bin.parent)
    assert "predict" in run(bin / "dragoman", "--help", cwd=tmp_path)
    assert "dates: " in run(bin / "dragoman", "list", "presets", cwd=tmp_path)
    (tmp_path / "pairs.tsv").write_text("".join(f"{a} {b}\t{b} {a}\n" for a in "abcdef" for b in "abcdef"))
    (tmp_path / "toy.yaml").write_text(CONFIG)
    run(bin / "dragoman", "train", "toy.yaml", cwd=tmp_path)
    assert (tmp_path / "runs" / "toy" / "best").is_file()
    results = run(bin / "dragoman", "predict", "runs/toy", cwd=tmp_path, input="a b\n\nc d\n")
    assert results.count("\n") == 3
    assert results.split("\n")[1] == ""
    run(bin / "python", "-m", "pip", "check", cwd=tmp_path)
