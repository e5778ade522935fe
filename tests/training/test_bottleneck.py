"""SPEC H4: one vector for the whole source does not hold a long one; looking at the source has no such limit."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "bench" / "bottleneck.py"


@pytest.mark.long
def test_without_attention_quality_falls_with_length_and_with_attention_it_does_not(tmp_path: Path) -> None:
    """Trained on up to 20 letters, asked for up to 40."""
    subprocess.run([sys.executable, str(SCRIPT), str(tmp_path)], check=True)
    models = ["initial", "context", "additive", "location"]
    command = [
        sys.executable,
        "-m",
        "dragoman",
        "compare",
        *models,
        "--data",
        "test.tsv",
        "--metrics",
        "exact",
        "--json",
    ]
    found = json.loads(subprocess.run(command, cwd=tmp_path, check=True, capture_output=True).stdout)
    first, last = ({name: found[name]["by_length"]["exact"][i]["score"] for name in models} for i in (0, -1))
    assert all(score > 95 for score in first.values())
    assert last["initial"] < 5
    assert last["context"] < 5
    assert last["additive"] > 50  # by content alone, places not seen in training are not all found
    assert last["location"] > 95
