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
from dragoman.modalities.features import FRAMES_MEMBER, OFFSETS_MEMBER
from dragoman.recipes import tables

SPLITS = {"train": "train", "valid": "dev", "test": "test"}
COEFFICIENTS = 13  # of a frame


def prepare(data_sets: Mapping[str, Path], part: str, folder: Path) -> None:
    """Write the path of each row of the feature archives with its transcript, after a check; `part` is ignored."""
    data_set = data_sets["an4-mfcc"].resolve()
    for name, split in SPLITS.items():
        rows = list(tables.read_rows(data_set / f"{split}.tsv", num_columns=4))
        check_lengths(rows, data_set / f"{split}.npz")
        pairs = ([f"{data_set / split}.npz/{i}", row[3]] for i, row in enumerate(rows))
        tables.write_rows(folder / f"{name}.tsv", pairs, has_file_name=True)


def check_lengths(rows: Sequence[tables.TableRow], path: Path) -> None:
    """Raise a DataError unless row i of the archive has as many frames as line i of the table says."""
    frames, offsets = tables.read_arrays(path, FRAMES_MEMBER, OFFSETS_MEMBER)
    if offsets.ndim != 1 or not len(offsets) or offsets.dtype.kind not in "iu":
        raise DataError(f"'{OFFSETS_MEMBER}' is {offsets.dtype} of shape {offsets.shape}, not a list of places", path)
    lengths = np.diff(offsets).tolist()
    if len(lengths) != len(rows):
        raise DataError(f"has {len(lengths):,} rows, and {path.with_suffix('.tsv')} has {len(rows):,} lines", path)
    if offsets[-1] > len(frames):
        raise DataError(
            f"has {len(frames):,} frames, and its rows end at {offsets[-1]:,}; {tables.DOWNLOAD_AGAIN}", path
        )
    for i, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        if row.integer(2) != length:
            raise row.error(f"says {row[2]} frames, and row {i} of {path} has {length:,}")


def make_example(data_sets: Mapping[str, Path], rng: random.Random) -> None:
    """Write noisy random features with transcripts: each word is a vector of its own that is held for a while."""
    words = ["A", "B", "C", "TEN", "FOUR"]
    numbers = np.random.default_rng(rng.randrange(2**32))
    sounds = numbers.normal(size=(len(words), COEFFICIENTS))
    for split, count in {"train": 100, "dev": 10, "test": 10}.items():
        rows, clips = [], []
        for i in range(count):
            spoken = [rng.randrange(len(words)) for _ in range(rng.randint(1, 5))]
            cepstra = np.concatenate([np.repeat(sounds[[word]], rng.randint(20, 40), 0) for word in spoken])
            clips.append((cepstra + 0.3 * numbers.normal(size=cepstra.shape)).astype(np.float16))
            rows.append([f"made/up/{split}{i}", "up", str(len(cepstra)), " ".join(words[word] for word in spoken)])
        offsets = np.cumsum([0, *map(len, clips)], dtype=np.int32)
        np.savez_compressed(data_sets["an4-mfcc"] / f"{split}.npz", feats=np.concatenate(clips), offsets=offsets)
        tables.write_data_set(data_sets["an4-mfcc"] / f"{split}.tsv", rows)
