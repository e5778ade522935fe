"""Rendered scenes: images with questions, images with labels, and clips; any number of them, from a seed.

    questions   what color is the square ?  ⇥  7.png  ⇥  red             two objects in each image
    labels      7.png  ⇥  square                                         one object
    clips       7  ⇥  a red square moves left  ⇥  left                   one moving object, a folder of frames

Objects have a shape, a color and a corner (or a direction). Every test is about a combination of
three that is in no training image, although each two of the three are: a model that memorizes
images fails. The names in train.tsv, valid.tsv and test.tsv are members of `pictures.zip`.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dragoman.data.samples import synthetic
from dragoman.data.samples.synthetic import SplitName
from dragoman.modalities.image import import_pillow

SHAPES = ("square", "bar", "pole")
COLORS = {"red": (220, 40, 40), "green": (40, 170, 60), "blue": (50, 80, 220), "yellow": (235, 205, 40)}
DIRECTIONS = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}
ARCHIVE_NAME = "pictures.zip"
BACKGROUND_GRAY = 25

Picture = NDArray[np.uint8]  # (H, W, 3)


class SceneObject(NamedTuple):
    """An object in an image; x and y from 0 to 1, from the top left."""

    shape: str
    color: str
    x: float
    y: float


class SceneItem(NamedTuple):
    """Images for the archive, and the TSV lines about them."""

    files: dict[str, Picture]
    lines: Sequence[tuple[str, ...]]


def render(objects: Sequence[SceneObject], pixels: int, rng: np.random.Generator) -> Picture:
    """Draw objects on a dark background, with a little noise."""
    picture = np.full((pixels, pixels, 3), BACKGROUND_GRAY, np.float64)
    for one in objects:
        picture[object_mask(one, pixels)] = COLORS[one.color]
    noisy = picture + rng.normal(0.0, 5.0, picture.shape)
    return np.clip(noisy, 0, 255).astype(np.uint8)


def object_mask(one: SceneObject, pixels: int) -> NDArray[np.bool_]:
    """(H, W): true at the pixels of an object; it is two fifths of the image wide."""
    y, x = (np.mgrid[:pixels, :pixels] + 0.5) / pixels
    dx, dy, r = x - one.x, y - one.y, 1 / 5
    mask: NDArray[np.bool_] = np.maximum(abs(dx), abs(dy)) <= r
    if one.shape == "bar":
        mask = mask & (abs(dy) <= 0.3 * r)
    if one.shape == "pole":
        mask = mask & (abs(dx) <= 0.3 * r)
    return mask


def place_in_corner(shape: str, color: str, corner: int, rng: np.random.Generator) -> SceneObject:
    """An object near the center of a corner of the image."""
    row, column = divmod(corner, 2)
    x, y = np.array([column, row]) / 2 + 0.25 + rng.uniform(-0.04, 0.04, 2)
    return SceneObject(shape, color, float(x), float(y))


def sample_combination(split: SplitName, rng: np.random.Generator) -> tuple[str, str, int]:
    """A random shape, color, and corner or direction: one of 12 held out for tests, or one of the 36 others."""
    shape, color, third = (int(rng.integers(count)) for count in (len(SHAPES), len(COLORS), 4))
    held_out = (shape + color) % 4
    if split == "test":
        third = held_out
    elif third == held_out:
        third = (held_out + int(rng.integers(1, 4))) % 4
    return SHAPES[shape], list(COLORS)[color], third


def make_questions(number: int, split: SplitName, pixels: int, rng: np.random.Generator) -> SceneItem:
    """An image of two objects that differ in shape, color and corner, with questions; in tests, about the new one."""
    first, other, name = sample_combination(split, rng), sample_combination("train", rng), f"{split}/{number}.png"
    while any(a == b for a, b in zip(first, other, strict=True)):
        other = sample_combination("train", rng)
    lines = []
    for shape, color, _ in [first] if split == "test" else [first, other]:
        lines += [(f"what color is the {shape} ?", name, color), (f"what shape is the {color} thing ?", name, shape)]
    return SceneItem({name: render([place_in_corner(*first, rng), place_in_corner(*other, rng)], pixels, rng)}, lines)


def make_labels(number: int, split: SplitName, pixels: int, rng: np.random.Generator) -> SceneItem:
    """An image of one object, with its shape as label."""
    one, name = place_in_corner(*sample_combination(split, rng), rng), f"{split}/{number}.png"
    return SceneItem({name: render([one], pixels, rng)}, [(name, one.shape)])


def make_clip(number: int, split: SplitName, pixels: int, rng: np.random.Generator) -> SceneItem:
    """Four to six frames of an object that crosses the image, with a caption and its direction as label."""
    shape, color, way = sample_combination(split, rng)
    one = place_in_corner(shape, color, int(rng.integers(4)), rng)
    name, direction = f"{split}/{number}", list(DIRECTIONS)[way]
    (dx, dy), count = DIRECTIONS[direction], int(rng.integers(4, 7))
    files = {}
    for i, far in enumerate(np.linspace(-0.3, 0.3, count)):
        x, y = (0.5 + far * d if d else old for d, old in ((dx, one.x), (dy, one.y)))
        files[f"{name}/{i}.png"] = render([one._replace(x=float(x), y=float(y))], pixels, rng)
    return SceneItem(files, [(name, f"a {one.color} {one.shape} moves {direction}", direction)])


SceneTask = Callable[[int, SplitName, int, np.random.Generator], SceneItem]
TASKS: dict[str, SceneTask] = {"questions": make_questions, "labels": make_labels, "clips": make_clip}


def generate(task: str, split: SplitName, count: int, seed: int, pixels: int = 32) -> Iterator[SceneItem]:
    """`count` items of a task; each depends on seed, split and its number alone."""
    for number in range(count):
        key = (seed, ("train", "valid", "test").index(split), number)
        yield TASKS[task](number, split, pixels, np.random.default_rng(key))


def write_dataset(folder: str | Path, task: str, counts: dict[SplitName, int], seed: int, pixels: int = 32) -> None:
    """Write the images of a task as one archive, and a TSV file for each split of `counts`."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / ARCHIVE_NAME, "w") as archive:
        for split, count in counts.items():
            lines: list[tuple[str, ...]] = []
            for item in generate(task, split, count, seed, pixels):
                lines += item.lines
                for name, picture in item.files.items():
                    archive.writestr(name, encode_png(picture))
            synthetic.write_tsv(folder / f"{split}.tsv", lines)


def encode_png(picture: Picture) -> bytes:
    """The picture as the bytes of a PNG file; MissingExtra without pillow."""
    file = io.BytesIO()
    import_pillow().Image.fromarray(picture).save(file, "PNG")
    return file.getvalue()
