"""Flickr8k: photographs and five captions of each.

    flickr8k/SPLIT.zip            the pictures                SPLIT: train, dev, test
    flickr8k/SPLIT.tsv(.gz)       file name ⇥ five captions
        ─→  train.tsv, valid.tsv, test.tsv      DIR/flickr8k/SPLIT.zip/file name ⇥ five captions

Captions are written as Show, Attend and Tell scored them: in lower case, and without the tokens that are punctuation.
"""

from __future__ import annotations

import io
import random
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dragoman.core.types import Example
from dragoman.modalities.image import ImageModality, import_pillow
from dragoman.recipes import tables

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Pixels = NDArray[np.float32]  # (N, 16 · 16 · 3)

SPLITS = {"train": "train", "valid": "dev", "test": "test"}
THUMBNAIL = 16  # pixels of each side that the nearest picture is looked for with
CAPTIONS = 5


def prepare(data_sets: Mapping[str, Path], part: str, folder: Path) -> None:
    """Write the pairs of Flickr8k's own splits: a picture's path in its archive and its five normalized captions."""
    data_set = data_sets["flickr8k"].resolve()
    for name, split in SPLITS.items():
        rows = list(tables.read_rows(data_set / f"{split}.tsv", 1 + CAPTIONS))
        tables.require_members(data_set / f"{split}.zip", (row[0] for row in rows))
        pairs = ([f"{data_set / split}.zip/{file}", *map(normalize_caption, captions)] for file, *captions in rows)
        tables.write_rows(folder / f"{name}.tsv", pairs, has_file_name=True)


def normalize_caption(caption: str) -> str:
    """Lower-case a caption of tokens and leave out tokens without a letter or digit."""
    return " ".join(word for word in caption.lower().split() if any(map(str.isalnum, word)))


# -- what needs no model -----------------------------------------------------------------------------------------------


def baseline_outputs(folder: Path, part: str) -> dict[str, list[str]]:
    """For each test picture, the most frequent training caption, and that of the nearest picture; `part` is ignored."""
    train, test = (list(tables.read_rows(folder / f"{name}.tsv", 2)) for name in ("train", "test"))
    [(most, _)] = Counter(caption for _, *captions in train for caption in captions).most_common(1)
    nearest = nearest_rows(load_thumbnails(test), load_thumbnails(train))
    return {"most frequent caption": [most] * len(test), "nearest picture": [train[i][1] for i in nearest]}


def load_thumbnails(rows: Sequence[Sequence[str]]) -> Pixels:
    """Read the pictures that the first columns name, as 16 × 16 RGB pixels: (N, 16 · 16 · 3)."""
    modality = ImageModality(THUMBNAIL, crop=False)
    return np.stack([modality.read(Example(file)).ravel() for file, *_ in rows]).astype(np.float32)


def nearest_rows(x: Pixels, y: Pixels) -> list[int]:
    """For each row of x, the index of the row of y at the least Euclidean distance."""
    indices: list[int] = ((y**2).sum(1) - 2 * x @ y.T).argmin(1).tolist()
    return indices


# -- generated example data --------------------------------------------------------------------------------------------


def make_example(data_sets: Mapping[str, Path], rng: random.Random) -> None:
    """Write a data set of single-color pictures in zip files, each with five random captions that name the color."""
    for split, count in {"train": 100, "dev": 10, "test": 10}.items():
        rows = []
        with zipfile.ZipFile(data_sets["flickr8k"] / f"{split}.zip", "w") as archive:
            for i in range(count):
                color = rng.choice(["red", "green", "blue"])
                archive.writestr(f"{split}-{i}.jpg", generate_picture(color, rng))
                rows.append([f"{split}-{i}.jpg", *generate_captions(color, rng)])
        tables.write_data_set(data_sets["flickr8k"] / f"{split}.tsv{'.gz' if split == 'train' else ''}", rows)


def generate_captions(color: str, rng: random.Random) -> Iterator[str]:
    """Yield five random captions that name a color."""
    for _ in range(CAPTIONS):
        thing = rng.choice(["wall", "door", "sheet of paper"])
        yield rng.choice(
            [f"A {color} {thing} .", f"Somebody painted the {thing} {color}", f"A {thing} , all {color} ."]
        )


def generate_picture(color: str, rng: random.Random) -> bytes:
    """A JPEG of 32 × 32 pixels of one color, at a random brightness."""
    light = rng.randint(120, 250)
    pixels = np.full((32, 32, 3), 20, np.uint8)
    pixels[..., ["red", "green", "blue"].index(color)] = light
    file = io.BytesIO()
    import_pillow().Image.fromarray(pixels).save(file, "JPEG")
    return file.getvalue()
