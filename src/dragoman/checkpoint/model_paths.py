"""Which model folders a text names, on a command line or in Python: `a`, or `a+b+c` for several that work as one."""

from __future__ import annotations

from pathlib import Path

from dragoman.core.errors import ModelError


def paths(named: str | Path) -> list[str]:
    """The folders that `a+b+c` names, there or not; a folder whose own name has a plus is one."""
    text = str(named)
    if Path(text).exists():
        return [text]
    parts = text.split("+")
    if not all(parts):
        raise ModelError(f"{text}: no model is named before or after a '+'; write MODEL+MODEL")
    return parts
