"""`a+b` names two model folders, in every command."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dragoman.checkpoint.model_paths import parse_model_paths
from dragoman.core.errors import ModelError


def test_a_plus_joins_folders_unless_it_is_part_of_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert parse_model_paths("a") == ["a"]
    assert parse_model_paths("a+b+c") == ["a", "b", "c"]
    assert parse_model_paths(tmp_path / "a") == [str(tmp_path / "a")]
    (tmp_path / "a+b").mkdir()
    assert parse_model_paths("a+b") == ["a+b"]
    assert parse_model_paths(Path("a+b")) == ["a+b"]


@pytest.mark.parametrize("text", ["+", "a+", "+a", "a++b"])
def test_a_plus_beside_nothing_is_refused(text: str) -> None:
    with pytest.raises(ModelError, match="write MODEL\\+MODEL"):
        parse_model_paths(text)


def test_paths_are_parsed_without_torch() -> None:
    code = "import sys, dragoman.checkpoint.model_paths; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
