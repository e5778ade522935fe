"""Multi30k: descriptions of pictures in German and English, as files of lines."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from dragoman.recipes.multi30k.prepare import make_example as make_example
from dragoman.recipes.multi30k.prepare import write_pairs


def prepare(data_sets: Mapping[str, Path], part: str, folder: Path) -> None:
    """Write the German to English pairs of Multi30k; `part` is ignored."""
    write_pairs(data_sets["multi30k"], "de", "en", folder)
