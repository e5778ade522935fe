"""The format of what we write to be read again: a number in every model folder, run folder and token store.

    manifest.json, training.json of a checkpoint · run.json of a run · store.json of a token store   {"format": 1, …}

Each version of Dragoman reads one format. Whoever changes what such a file means raises the number.
"""

from __future__ import annotations

import json
from pathlib import Path

from dragoman.core.errors import FormatError

FORMAT = 1
RUN_FILE = "run.json"


def check_format(found: object, folder: Path) -> None:
    """Refuse a model or run folder of another format, and say how to get one of this."""
    if type(found) is not int or found < FORMAT:
        format = "no format" if found is None else f"format {found!r}"
        raise FormatError(
            f"{folder}: was written by an earlier development version ({format} where this version reads format "
            f"{FORMAT}); train it again: dragoman train {folder}/config.yaml --run NEW"
        )
    if found > FORMAT:
        raise FormatError(f"{folder}: has format {found}, but this version reads format {FORMAT}; update Dragoman")


def check_run_format(run: Path) -> None:
    """Refuse a run folder of another format."""
    try:
        value = json.loads((run / RUN_FILE).read_bytes())
    except (OSError, ValueError):
        value = None
    check_format(value.get("format") if isinstance(value, dict) else None, run)
