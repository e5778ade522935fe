"""A small config that is right, and files to write others to."""

from __future__ import annotations

from pathlib import Path

TINY = """
data: {train: pairs.tsv}
model:
  width: 8
  encoder: {name: rnn, layers: 1}
  decoder: {name: rnn, layers: 1}
training: {steps: 10, schedule: {name: linear, warmup: 2}}
"""


def written(folder: Path, text: str, name: str = "broken.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path
