"""Multi30k: descriptions of pictures in German and English, as files of lines."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from dragoman.recipes.multi30k.prepare import example as example
from dragoman.recipes.multi30k.prepare import write_pairs


def prepare(sets: Mapping[str, Path], part: str, folder: Path) -> None:
    write_pairs(sets["multi30k"], "de", "en", folder)
