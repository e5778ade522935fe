"""The format version of model folders, run folders and token stores.

    manifest.json, training.json of a checkpoint · run.json of a run · store.json of a token store   {"format": 1, …}

Each version of Dragoman reads one format. A change of the meaning of such a file increases the number.
"""

from __future__ import annotations

import json
from pathlib import Path

from dragoman.core import files
from dragoman.core.errors import FormatError

FORMAT = 1
RUN_FILE = "run.json"
MAX_POINTER_BYTES = 300  # of run.json, and of a run's files best, last and finished


def check_format(version: object, folder: Path) -> None:
    """Raise FormatError for a model or run folder of another format, with a remedy."""
    if type(version) is not int or version < FORMAT:
        format = "no format" if version is None else f"format {version!r}"
        raise FormatError(
            f"{folder}: was written by an earlier development version ({format} where this version reads format "
            f"{FORMAT}); train it again: dragoman train {folder}/config.yaml --run NEW"
        )
    if version > FORMAT:
        raise FormatError(f"{folder}: has format {version}, but this version reads format {FORMAT}; update Dragoman")


def check_run_format(run: Path) -> None:
    """Raise FormatError for a run folder of another format."""
    try:
        value = json.loads(files.read_plain(run / RUN_FILE, MAX_POINTER_BYTES))
    except (OSError, ValueError, RecursionError):
        value = None
    check_format(value.get("format") if isinstance(value, dict) else None, run)
