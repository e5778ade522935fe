"""The MODEL argument of commands and of `dragoman.load`: a folder `a`, or an ensemble `a+b+c`."""

from __future__ import annotations

import os
from pathlib import Path

from dragoman.core.errors import ModelError


def parse_model_paths(models: str | Path) -> list[str]:
    """Split `a+b+c` into its paths, which need not exist; an existing folder named `a+b` is one path."""
    text = str(models)
    if os.path.exists(text):  # Path.exists would raise for a name that is too long
        return [text]
    parts = text.split("+")
    if not all(parts):
        raise ModelError(f"{text}: no model is named before or after a '+'; write MODEL+MODEL")
    return parts
