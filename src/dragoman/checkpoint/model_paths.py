"""The MODEL argument of commands and of `dragoman.load`: a folder or a packed model `a`, or an ensemble `a+b+c`."""

from __future__ import annotations

import os
import re
from pathlib import Path

from dragoman.core.errors import ModelError, did_you_mean

FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")  # of a model's files, and of a run's checkpoints


def parse_model_paths(models: str | Path) -> list[str]:
    """Split `a+b+c` into its paths, which need not exist; an existing folder named `a+b` is one path."""
    text = str(models)
    if os.path.exists(text):  # Path.exists would raise for a name that is too long
        return [text]
    parts = text.split("+")
    if not all(parts):
        raise ModelError(f"{text}: no model is named before or after a '+'; write MODEL+MODEL")
    return parts


def check_exists(path: Path) -> None:
    """Raise ModelError with a hint unless a path is a folder or a plain file, such as a packed model."""
    if not os.path.isdir(path) and not os.path.isfile(path):  # Path.is_dir would raise for a name that is too long
        siblings = _models_in(path.parent) if os.path.isdir(path.parent) else []
        raise ModelError(f"{path}: there is no such model or run folder{did_you_mean(path.name, siblings)}")


def _models_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.is_dir() or path.suffix == ".zip"]


def model_name(path: str | Path) -> str:
    """The name of a model by its path: that of the folder, or of the zip without its suffix."""
    resolved = Path(path).resolve()
    return resolved.stem if resolved.suffix == ".zip" and not resolved.is_dir() else resolved.name
