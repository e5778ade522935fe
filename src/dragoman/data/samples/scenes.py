"""Pictures the project draws itself, with questions about them, labels and clips: any number, from a seed.

    questions   what color is the square ?  ⇥  7.png  ⇥  red             two things in each picture
    labels      7.png  ⇥  square                                         one thing
    clips       7  ⇥  a red square moves left  ⇥  left                   one thing that moves, a folder of frames

Things have a shape, a color and a corner (or a direction), and every test is about threes of them that no training
picture shows, though each two of the three are seen together: who has only learned pictures by heart does not pass.
(Where even a shape and a color are never seen together, models learn just that: 5 to 30 % of such tests were passed.)

Written are `pictures.zip` and train.tsv, valid.tsv and test.tsv; the names in them are members of the archive.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dragoman.core.errors import MissingExtra
from dragoman.data.samples import synthetic

SHAPES = ("square", "bar", "pole")
COLORS = {"red": (220, 40, 40), "green": (40, 170, 60), "blue": (50, 80, 220), "yellow": (235, 205, 40)}
DIRECTIONS = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}
ARCHIVE = "pictures.zip"
GROUND = 25  # the gray of the background

Side = Literal["train", "valid", "test"]
Picture = NDArray[np.uint8]  # (H, W, 3)


class Thing(NamedTuple):
    """What is drawn; x and y from 0 to 1, from the top left."""

    shape: str
    color: str
    x: float
    y: float


class Item(NamedTuple):
    """Files for the archive, and the lines that are about them."""

    files: dict[str, Picture]
    lines: Sequence[tuple[str, ...]]


# -- drawing -----------------------------------------------------------------------------------------------------------


def draw(things: Sequence[Thing], pixels: int, rng: np.random.Generator) -> Picture:
    """The things on dark ground, with a little noise."""
    picture = np.full((pixels, pixels, 3), GROUND, np.float64)
    for thing in things:
        picture[mask(thing, pixels)] = COLORS[thing.color]
    noisy = picture + rng.normal(0.0, 5.0, picture.shape)
    return np.clip(noisy, 0, 255).astype(np.uint8)


def mask(thing: Thing, pixels: int) -> NDArray[np.bool_]:
    """(H, W): true where the thing is; it is two fifths of the picture wide."""
    y, x = (np.mgrid[:pixels, :pixels] + 0.5) / pixels
    dx, dy, r = x - thing.x, y - thing.y, 1 / 5
    inside: NDArray[np.bool_] = np.maximum(abs(dx), abs(dy)) <= r
    if thing.shape == "bar":
        inside = inside & (abs(dy) <= 0.3 * r)
    if thing.shape == "pole":
        inside = inside & (abs(dx) <= 0.3 * r)
    return inside


def put(shape: str, color: str, corner: int, rng: np.random.Generator) -> Thing:
    """A thing somewhere in a corner of the picture."""
    row, column = divmod(corner, 2)
    x, y = np.array([column, row]) / 2 + 0.25 + rng.uniform(-0.04, 0.04, 2)
    return Thing(shape, color, float(x), float(y))


def combination(side: Side, rng: np.random.Generator) -> tuple[str, str, int]:
    """A shape, a color, and the number of a corner or direction: one of 12 kept for tests, or one of the 36 others."""
    shape, color, third = (int(rng.integers(count)) for count in (len(SHAPES), len(COLORS), 4))
    held_out = (shape + color) % 4
    if side == "test":
        third = held_out
    elif third == held_out:
        third = (held_out + int(rng.integers(1, 4))) % 4
    return SHAPES[shape], list(COLORS)[color], third


# -- the tasks: a number, a side and a generator → an item -------------------------------------------------------------


def questions(number: int, side: Side, pixels: int, rng: np.random.Generator) -> Item:
    """A picture of two things that differ in shape, color and corner, and questions: in tests, about the new one."""
    first, other, name = combination(side, rng), combination("train", rng), f"{side}/{number}.png"
    while any(a == b for a, b in zip(first, other, strict=True)):
        other = combination("train", rng)
    lines = []
    for shape, color, _ in [first] if side == "test" else [first, other]:
        lines += [(f"what color is the {shape} ?", name, color), (f"what shape is the {color} thing ?", name, shape)]
    return Item({name: draw([put(*first, rng), put(*other, rng)], pixels, rng)}, lines)


def labels(number: int, side: Side, pixels: int, rng: np.random.Generator) -> Item:
    """A picture of one thing, and its shape."""
    one, name = put(*combination(side, rng), rng), f"{side}/{number}.png"
    return Item({name: draw([one], pixels, rng)}, [(name, one.shape)])


def clips(number: int, side: Side, pixels: int, rng: np.random.Generator) -> Item:
    """Four to six frames of one thing on its way from one side of the picture to the other, in words and as a label."""
    shape, color, way = combination(side, rng)
    one, name, direction = put(shape, color, int(rng.integers(4)), rng), f"{side}/{number}", list(DIRECTIONS)[way]
    (dx, dy), count = DIRECTIONS[direction], int(rng.integers(4, 7))
    files = {}
    for i, far in enumerate(np.linspace(-0.3, 0.3, count)):
        x, y = (0.5 + far * d if d else old for d, old in ((dx, one.x), (dy, one.y)))
        files[f"{name}/{i}.png"] = draw([one._replace(x=float(x), y=float(y))], pixels, rng)
    return Item(files, [(name, f"a {one.color} {one.shape} moves {direction}", direction)])


Task = Callable[[int, Side, int, np.random.Generator], Item]
TASKS: dict[str, Task] = {"questions": questions, "labels": labels, "clips": clips}


# -- as files ----------------------------------------------------------------------------------------------------------


def items(task: str, side: Side, count: int, seed: int, pixels: int = 32) -> Iterator[Item]:
    """`count` items of a task; each is a function of seed, side and its number alone."""
    for number in range(count):
        key = (seed, ("train", "valid", "test").index(side), number)
        yield TASKS[task](number, side, pixels, np.random.default_rng(key))


def write(folder: str | Path, task: str, counts: dict[Side, int], seed: int, pixels: int = 32) -> None:
    """The pictures of a task in one archive, and a TSV file for each side."""
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(place / ARCHIVE, "w") as archive:
        for side, count in counts.items():
            lines: list[tuple[str, ...]] = []
            for item in items(task, side, count, seed, pixels):
                lines += item.lines
                for name, picture in item.files.items():
                    archive.writestr(name, png(picture))
            synthetic.write(place / f"{side}.tsv", lines)


def png(picture: Picture) -> bytes:
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtra("pillow", "image", "drawing pictures") from None
    file = io.BytesIO()
    image: Any = Image.fromarray(picture)
    image.save(file, "PNG")
    return file.getvalue()
