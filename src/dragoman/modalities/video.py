"""A clip as its frames: (n, H · W · 3) bytes, one position for each frame.

    clips/7             a folder of images, or one inside an archive: clips.zip/7
    7.zip, 7.npz        an archive of images, or of (H, W, 3) arrays, or of one folder of them
    clips.npz/7, 7.npy  one array, (n, H, W, 3) bytes; gray without the 3
    7.gif, 7.png        a picture that moves, or one that does not: a clip of one frame

Frames come in the order of their names, numbers by value (9.png before 10.png). Of a longer clip than `frames` so many
are taken, evenly spaced from the first to the last. `augment` looks at all frames of a clip in the same way (image.py).

Where the bytes of a file are given in place of its name, they say themselves which of the last three forms they have.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np

from dragoman.core.types import Example
from dragoman.modalities.archives import Archive, Zip, archive, content, inside_of, is_archive, where
from dragoman.modalities.features import opened, wrong
from dragoman.modalities.image import FORMATS, PIXELS, ImageModality, pillow, upright

if TYPE_CHECKING:
    from numpy.typing import NDArray

IMAGES = (".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp", ".tif", ".tiff", ".ppm")
MEMBERS = 100_000  # of an archive that is given as bytes
INFLATED = 1 << 28  # bytes of what is read from such an archive: a small one may claim to hold a lot
MOVING = 4 * PIXELS  # the most that is decoded of a picture that moves
ARRAY, ARCHIVE = b"\x93NUMPY", b"PK\x03\x04"  # how the files begin


@dataclass(frozen=True)
class VideoModality:
    """Clips whose frames have one size, read from files."""

    size: int = 64
    frames: int = 16  # at most
    crop: bool = True
    augments: bool = field(default=True, repr=False)
    flip: bool = field(default=False, repr=False)
    files: Sequence[str] = field(default=(), repr=False)

    kind, dtype = "clip", "|u1"

    @property
    def width(self) -> int:
        return 3 * self.size**2

    @property
    def image(self) -> ImageModality:
        """What reads a single frame."""
        return ImageModality(self.size, self.crop, self.augments, self.flip, self.files)

    def read(self, example: Example) -> NDArray[Any]:
        """(n, H · W · 3)"""
        names = listed(example, self.files) if example.content is None else None
        if names is not None:
            frames = self._members([inside(example, name) for name in names], example)
        else:
            data = content(example, self.files)
            if data.startswith(ARCHIVE):
                frames = self._members(unpacked(data, self.frames, example), example)
            else:
                frames = self._array(data, example) if data.startswith(ARRAY) else self._moving(data, example)
        return np.stack(frames).reshape(len(frames), -1)

    def _members(self, members: Sequence[Example], example: Example) -> list[NDArray[Any]]:
        """The frames of a folder or archive, one for each of its files; a single array may hold all of them."""
        if not members:
            raise wrong(example, "has no frames in it (no images and no arrays)")
        if len(members) == 1 and is_array(members[0].source):
            return self._array(content(members[0], self.files), members[0])
        return [self._frame(members[i]) for i in spread(len(members), self.frames)]

    def _frame(self, example: Example) -> NDArray[Any]:
        """(H, W · 3)"""
        if not is_array(example.source):
            return self.image.read(example)
        return self._picture(opened(content(example, self.files), example), example)

    def _array(self, data: bytes, example: Example) -> list[NDArray[Any]]:
        """The frames of one array; a single picture is a clip of one."""
        array = opened(data, example)
        array = array[None] if array.ndim == 3 and array.shape[-1] == 3 else array
        if array.ndim not in (3, 4) or not len(array):
            raise wrong(example, f"is of shape {array.shape}, not (frames, height, width, 3)")
        return [self._picture(array[i], example) for i in spread(len(array), self.frames)]

    def _picture(self, array: NDArray[Any], example: Example) -> NDArray[Any]:
        if array.dtype != np.uint8 or array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[-1] != 3):
            raise wrong(example, f"has frames of {array.dtype} and shape {array.shape}, not (height, width, 3) bytes")
        if not array.size:
            raise wrong(example, "has frames without a pixel")
        return self.image.pixels(pillow().Image.fromarray(array).convert("RGB"))

    def _moving(self, data: bytes, example: Example) -> list[NDArray[Any]]:
        """The frames of a picture that moves (GIF, WebP, PNG); another one is a clip of one."""
        pil = pillow()
        try:
            with pil.Image.open(io.BytesIO(data), formats=FORMATS) as file:
                count = int(getattr(file, "n_frames", 1))
                if file.width * file.height * count > MOVING:  # all of them are decoded on the way to the last
                    raise ValueError(f"it has {count:,} × {file.width:,} × {file.height:,} pixels, too many")
                frames = []
                for i in spread(count, self.frames):
                    file.seek(i)
                    frames.append(self.image.pixels(upright(file)))
                return frames
        except Exception as error:  # damaged files make Pillow raise whatever its readers stumble over
            unknown = isinstance(error, pil.UnidentifiedImageError)  # whose text names an object of Python's
            remedy = "; put those of a video into a folder, say with `ffmpeg -i VIDEO FOLDER/%04d.png`"
            reason = remedy if unknown else f" ({error})"
            raise wrong(example, f"is no folder, archive, array or picture of frames{reason}") from None

    def blank(self) -> NDArray[Any]:
        return np.zeros((1, self.width), np.uint8)

    def augment(self, x: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
        """Another look at (n, H · W · 3) pixels, the same crop and light in every frame."""
        seed, image = int(rng.integers(2**63)), self.image
        frames = x.reshape(len(x), self.size, 3 * self.size)
        looks = [image.augment(frame, np.random.default_rng(seed)) for frame in frames]
        return np.stack(looks).reshape(x.shape)

    def state(self) -> dict[str, bytes]:
        return {}


def inside(example: Example, name: str) -> Example:
    return replace(example, source=f"{example.source.strip().rstrip('/')}/{name}")


def unpacked(data: bytes, most: int, example: Example) -> list[Example]:
    """The frames in the bytes of a .zip or .npz, `most` of them: what is not looked at is not inflated."""
    try:
        found = Zip(io.BytesIO(data))
        if len(found.members) > MEMBERS:
            raise ValueError(f"it has {len(found.members):,} members, more than {MEMBERS:,}")
        names = frames_of(one_clip(grouped(found.members)))
        names = [names[i] for i in spread(len(names), most)] if names else []
        if sum(found.members[name].file_size for name in names) > INFLATED:
            raise ValueError(f"its frames have more than {INFLATED:,} bytes")
        return [replace(inside(example, name), content=found.read(name)) for name in names]
    except Exception as error:  # a damaged one makes its reader raise whatever it stumbles over
        raise wrong(example, f"is not an archive that can be read ({error})") from None


def spread(count: int, most: int) -> list[int]:
    """All of `count` places, or `most` of them, evenly spaced from the first to the last."""
    places: list[int] = np.linspace(0, count - 1, min(count, most)).round().astype(int).tolist()
    return places


# -- which frames there are --------------------------------------------------------------------------------------------


def listed(example: Example, places: Sequence[str] = ()) -> list[str] | None:
    """The names of the frames in the folder or archive that a source names; None where it is neither."""
    name = example.source.strip().rstrip("/")
    try:
        for place in where(example, places):
            found = _names(name, place)
            if found is not None:
                return frames_of(found)
    except OSError as error:  # a name too long for one, a folder that may not be looked into
        raise wrong(example, f"cannot be looked for ({error.strerror})") from None
    return None


def frames_of(names: Iterable[str]) -> list[str]:
    """Those that are frames, in order; what begins with a dot is hidden (some systems leave such files everywhere)."""
    seen = (name for name in names if not PurePosixPath(name).name.startswith("."))
    return sorted((name for name in seen if name.lower().endswith((*IMAGES, ".npy"))), key=by_number)


def is_array(name: str) -> bool:
    """In any case, as for images: what is called .NPY would be decoded as one, past the bounds of a server's images."""
    return name.lower().endswith(".npy")


def by_number(name: str) -> list[tuple[float, str]]:
    """Names by the numbers in them: 9.png comes before 10.png, and both before a.png."""
    return [(int(part), "") if part.isdecimal() else (math.inf, part) for part in re.split(r"(\d+)", name) if part]


def _names(name: str, place: Path) -> list[str] | None:
    """What is in a folder or archive of that name at a place; None: there is none."""
    path = place / name
    if is_archive(path):
        return one_clip(_folders(archive(path)))
    if path.is_dir():
        return [file.name for file in path.iterdir() if file.is_file()]
    found = inside_of(name, place)
    return None if found is None else _folders(found[0]).get(found[1])


@lru_cache(maxsize=8)  # a look through all members for each of its clips would take long
def _folders(found: Archive) -> dict[str, list[str]]:
    return grouped(found.members)


def grouped(members: Iterable[str]) -> dict[str, list[str]]:
    """The files of each folder in an archive."""
    folders: dict[str, list[str]] = {}
    for member in members:
        folder, _, name = member.rpartition("/")
        folders.setdefault(folder, []).append(name)
    return folders


def one_clip(folders: dict[str, list[str]]) -> list[str]:
    """The frames of an archive that is one clip: those at its top, or in the one folder that has any."""
    frames = {folder: names for folder, every in folders.items() if (names := frames_of(every))}
    if len(frames) == 1 and "" not in frames:
        ((folder, names),) = frames.items()
        return [f"{folder}/{name}" for name in names]
    return frames.get("", [])
