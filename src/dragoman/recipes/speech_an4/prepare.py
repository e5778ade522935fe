"""AN4: words, letters and numbers, said over a microphone in 1991; as cepstra, since no waveforms are to be had.

an4-mfcc/SPLIT.tsv     utterance ⇥ speaker ⇥ frames ⇥ transcript          SPLIT: train, dev, test
an4-mfcc/SPLIT.npz     feats (frames, 13) and offsets; row i is line i of the table
    ─→  train.tsv, valid.tsv, test.tsv      DIR/an4-mfcc/SPLIT.npz/i ⇥ transcript
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from dragoman.core.errors import DataError
from dragoman.modalities.features import FRAMES, OFFSETS
from dragoman.recipes import tables

SPLITS = {"train": "train", "valid": "dev", "test": "test"}
NUMBERS = 13  # of a frame


def prepare(sets: Mapping[str, Path], part: str, folder: Path) -> None:
    place = sets["an4-mfcc"].resolve()
    for name, split in SPLITS.items():
        rows = list(tables.rows(place / f"{split}.tsv", exactly=4))
        compare(rows, place / f"{split}.npz")
        pairs = ([f"{place / split}.npz/{i}", row[3]] for i, row in enumerate(rows))
        tables.write(folder / f"{name}.tsv", pairs, named=True)


def compare(rows: Sequence[tables.Row], path: Path) -> None:
    """That row i of the arrays is line i of the table: a line too few would give each sound its neighbor's words."""
    frames, offsets = tables.arrays(path, FRAMES, OFFSETS)
    if offsets.ndim != 1 or not len(offsets) or offsets.dtype.kind not in "iu":
        raise DataError(f"'{OFFSETS}' is {offsets.dtype} of shape {offsets.shape}, not a list of places", path)
    lengths = np.diff(offsets).tolist()
    if len(lengths) != len(rows):
        raise DataError(f"has {len(lengths):,} rows, and {path.with_suffix('.tsv')} has {len(rows):,} lines", path)
    if offsets[-1] > len(frames):
        raise DataError(f"has {len(frames):,} frames, and its rows end at {offsets[-1]:,}; {tables.AGAIN}", path)
    for i, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        if row.whole(2) != length:
            raise row.wrong(f"says {row[2]} frames, and row {i} of {path} has {length:,}")


def example(sets: Mapping[str, Path], rng: random.Random) -> None:
    """Letters and digits, each a cepstrum of its own that is held for a while."""
    words = ["A", "B", "C", "TEN", "FOUR"]
    numbers = np.random.default_rng(rng.randrange(2**32))
    sounds = numbers.normal(size=(len(words), NUMBERS))
    for split, count in {"train": 100, "dev": 10, "test": 10}.items():
        rows, clips = [], []
        for i in range(count):
            said = [rng.randrange(len(words)) for _ in range(rng.randint(1, 5))]
            held = np.concatenate([np.repeat(sounds[[word]], rng.randint(20, 40), 0) for word in said])
            clips.append((held + 0.3 * numbers.normal(size=held.shape)).astype(np.float16))
            rows.append([f"made/up/{split}{i}", "up", str(len(held)), " ".join(words[word] for word in said)])
        offsets = np.cumsum([0, *map(len, clips)], dtype=np.int32)
        np.savez_compressed(sets["an4-mfcc"] / f"{split}.npz", feats=np.concatenate(clips), offsets=offsets)
        tables.write_set(sets["an4-mfcc"] / f"{split}.tsv", rows)
