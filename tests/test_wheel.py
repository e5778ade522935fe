"""What a user installs works: the wheel, in an environment of its own, away from the source tree.

    the wheel + what it says it depends on, and nothing else ─→ an environment ─→ train, predict

What it depends on is linked from the environment of the tests, where pip has just installed it under the same
constraints; the long form downloads it again.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

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


@pytest.fixture(scope="module", params=["linked", pytest.param("downloaded", marks=pytest.mark.long)])
def environment(request: pytest.FixtureRequest, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh one, with the wheel and what it depends on."""
    venv = tmp_path_factory.mktemp("venv") / "fresh"
    run(sys.executable, "-m", "venv", "--without-pip", venv, cwd=venv.parent)
    if request.param == "linked":
        pip(venv, "install", "--no-deps", wheel)
        (packages,) = venv.glob("lib/python3*/site-packages")
        link_dependencies(packages)
    else:
        pip(venv, "install", "-c", ROOT / "constraints.txt", wheel)
    return venv


def pip(venv: Path, *command: str | Path) -> None:
    options = ["--quiet", "--disable-pip-version-check", "--python", venv / "bin" / "python"]
    run(sys.executable, "-m", "pip", *options, *command, cwd=venv.parent)


def link_dependencies(packages: Path) -> None:
    """Everything that the wheel there requires, and what that requires; no extras, and nothing of the tests' own."""
    installed = metadata.Distribution.at(next(packages.glob("dragoman-*.dist-info")))
    waiting, linked = wanted(installed, set()), set()
    while waiting:
        name, extras = waiting.pop()
        found = metadata.distribution(name)
        waiting += [one for one in wanted(found, extras) if one[0] not in linked]
        linked.add(name)
        for top in {file.parts[0] for file in found.files or () if file.parts[0] not in ("..", "__pycache__")}:
            if not (packages / top).exists():
                (packages / top).symlink_to(Path(str(found.locate_file(top))).resolve())


def wanted(one: metadata.Distribution, extras: set[str]) -> list[tuple[str, set[str]]]:
    """The distributions that another requires here, with those of their extras that it asks for."""
    needs = [Requirement(text) for text in one.requires or ()]
    return [
        (need.name, need.extras)
        for need in needs
        if need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in ("", *extras))
    ]


def test_the_wheel_holds_every_file_of_the_package_and_nothing_else(wheel: Path) -> None:
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    there = {
        f"dragoman/{path.relative_to(SOURCE).as_posix()}"
        for path in SOURCE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert held == there
    assert {"dragoman/py.typed", "dragoman/presets/dates.yaml"} <= held


def test_the_installed_wheel_trains_and_predicts_away_from_the_source_tree(environment: Path, tmp_path: Path) -> None:
    bin = environment / "bin"
    place = run(bin / "python", "-c", "import dragoman; print(dragoman.__file__)", cwd=tmp_path).strip()
    assert Path(place).is_relative_to(environment)
    assert "predict" in run(bin / "dragoman", "--help", cwd=tmp_path)
    assert "dates: " in run(bin / "dragoman", "list", "presets", cwd=tmp_path)
    (tmp_path / "pairs.tsv").write_text("".join(f"{a} {b}\t{b} {a}\n" for a in "abcdef" for b in "abcdef"))
    (tmp_path / "toy.yaml").write_text(CONFIG)
    run(bin / "dragoman", "train", "toy.yaml", cwd=tmp_path)
    assert (tmp_path / "runs" / "toy" / "best").is_file()
    results = run(bin / "dragoman", "predict", "runs/toy", cwd=tmp_path, input="a b\n\nc d\n")
    assert results.count("\n") == 3
    assert results.split("\n")[1] == ""
    pip(environment, "check")
