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
from typing import TYPE_CHECKING, Any

import numpy as np

from dragoman.core.types import Example
from dragoman.modalities.image import ImageModality, pillow
from dragoman.recipes import tables

if TYPE_CHECKING:
    from numpy.typing import NDArray

SPLITS = {"train": "train", "valid": "dev", "test": "test"}
THUMBNAIL = 16  # pixels of each side that the nearest picture is looked for with
CAPTIONS = 5


def prepare(sets: Mapping[str, Path], part: str, folder: Path) -> None:
    place = sets["flickr8k"].resolve()
    for name, split in SPLITS.items():
        rows = list(tables.rows(place / f"{split}.tsv", 1 + CAPTIONS))
        tables.require(place / f"{split}.zip", (row[0] for row in rows))
        pairs = ([f"{place / split}.zip/{file}", *map(plain, captions)] for file, *captions in rows)
        tables.write(folder / f"{name}.tsv", pairs, named=True)


def plain(caption: str) -> str:
    """A caption of tokens in lower case, without those that have no letter and no digit."""
    return " ".join(word for word in caption.lower().split() if any(map(str.isalnum, word)))


# -- what needs no model -----------------------------------------------------------------------------------------------


def baselines(folder: Path, part: str) -> dict[str, list[str]]:
    """The caption that is said most often, and the first one of the training picture that looks most alike."""
    train, test = (list(tables.rows(folder / f"{name}.tsv", 2)) for name in ("train", "test"))
    [(most, _)] = Counter(caption for _, *captions in train for caption in captions).most_common(1)
    nearest = closest(thumbnails(test), thumbnails(train))
    return {"most frequent caption": [most] * len(test), "nearest picture": [train[i][1] for i in nearest]}


def thumbnails(rows: Sequence[Sequence[str]]) -> NDArray[Any]:
    """(N, 16 · 16 · 3) pixels"""
    medium = ImageModality(THUMBNAIL, crop=False)
    return np.stack([medium.read(Example(file)).ravel() for file, *_ in rows]).astype(np.float32)


def closest(x: NDArray[Any], y: NDArray[Any]) -> list[int]:
    """For each row of x the row of y at the least distance: |x − y|² = |x|² − 2 x·y + |y|², of which |x|² is fixed."""
    found: list[int] = ((y**2).sum(1) - 2 * x @ y.T).argmin(1).tolist()
    return found


# -- made-up data ------------------------------------------------------------------------------------------------------


def example(sets: Mapping[str, Path], rng: random.Random) -> None:
    """Plain pictures in three colors, a caption of which says the color; the last one of each has a caption twice."""
    for split, count in {"train": 100, "dev": 10, "test": 10}.items():
        rows = []
        with zipfile.ZipFile(sets["flickr8k"] / f"{split}.zip", "w") as archive:
            for i in range(count):
                color = rng.choice(["red", "green", "blue"])
                archive.writestr(f"{split}-{i}.jpg", picture(color, rng))
                rows.append([f"{split}-{i}.jpg", *captions(color, rng)])
        tables.write_set(sets["flickr8k"] / f"{split}.tsv{'.gz' if split == 'train' else ''}", rows)


def captions(color: str, rng: random.Random) -> Iterator[str]:
    for _ in range(CAPTIONS):
        thing = rng.choice(["wall", "door", "sheet of paper"])
        yield rng.choice(
            [f"A {color} {thing} .", f"Somebody painted the {thing} {color}", f"A {thing} , all {color} ."]
        )


def picture(color: str, rng: random.Random) -> bytes:
    light = rng.randint(120, 250)
    pixels = np.full((32, 32, 3), 20, np.uint8)
    pixels[..., ["red", "green", "blue"].index(color)] = light
    file = io.BytesIO()
    pillow().Image.fromarray(pixels).save(file, "JPEG")
    return file.getvalue()
