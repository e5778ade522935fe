"""Runs the Python of a README that an export wrote, as it stands."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def python_block(readme: str) -> str:
    """The one block of Python in a README."""
    (code,) = BLOCK.findall(readme)
    return str(code)


def run_readme(
    folder: Path,
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: Sequence[str] = (),
) -> str:
    """What the README's program prints in its folder for a text on standard input."""
    code = python_block((folder / "README.md").read_text(encoding="utf-8"))
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "stdin", io.StringIO(text + "\n"))
    monkeypatch.setattr(sys, "argv", ["program", *arguments])
    capsys.readouterr()
    exec(compile(code, "README.md", "exec"), {"__name__": "__main__"})
    return capsys.readouterr().out.strip()
