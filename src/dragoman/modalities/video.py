"""Video clips as frames: (n, H · W · 3) bytes, one position per frame.

    clips/7             a folder of images, or one inside an archive: clips.zip/7
    7.zip, 7.npz        an archive of images or (H, W, 3) arrays, at its top or in a single folder
    clips.npz/7, 7.npy  one array, (n, H, W, 3) bytes; gray without the 3
    7.gif, 7.png        an animated image; a still image is a clip of one frame

Frames are sorted by name, numbers by value (9.png before 10.png). A clip longer than `frames` is
reduced to that many frames, evenly spaced from the first to the last. `augment` changes all frames
of a clip in the same way (image.py).

If an example carries the bytes of its source, their first bytes tell which of the last three forms they have.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import numpy as np

from dragoman.core.types import Example
from dragoman.modalities import archives
from dragoman.modalities.archives import read_content, source_error
from dragoman.modalities.features import parse_array
from dragoman.modalities.image import IMAGE_FORMATS, MAX_PIXELS, ImageModality, import_pillow, to_rgb

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL.Image import Image

    Pixels = NDArray[np.uint8]

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp", ".tif", ".tiff", ".ppm")
MAX_MEMBERS = 100_000  # of an archive that comes as bytes
MAX_UNZIPPED_BYTES = 1 << 28  # read from such an archive: a small one may claim to hold a lot
MAX_ANIMATION_PIXELS = 4 * MAX_PIXELS  # of all frames of an animated image
NPY_MAGIC, ZIP_MAGIC = b"\x93NUMPY", b"PK\x03\x04"  # first bytes of the files


@dataclass(frozen=True)
class VideoModality:
    """Video clips, read as frames of one size."""

    size: int = 64
    frames: int = 16  # at most
    crop: bool = True
    has_augmentation: bool = field(default=True, repr=False)
    flip: bool = field(default=False, repr=False)
    search_paths: Sequence[str] = field(default=(), repr=False)

    kind, dtype = "video", "|u1"

    @property
    def width(self) -> int:
        return 3 * self.size**2

    @property
    def image(self) -> ImageModality:
        """The reader of a single frame."""
        return ImageModality(self.size, self.crop, self.has_augmentation, self.flip, self.search_paths)

    def read(self, example: Example) -> Pixels:
        names = list_frames(example, self.search_paths) if example.content is None else None
        if names is not None:
            frames = self._read_members([member_example(example, name) for name in names], example)
        else:
            data = read_content(example, self.search_paths)
            if data.startswith(ZIP_MAGIC):
                frames = self._read_members(unzip_frames(data, self.frames, example), example)
            elif data.startswith(NPY_MAGIC):
                frames = self._read_array(data, example)
            else:
                frames = self._read_animation(data, example)
        return np.stack(frames).reshape(len(frames), -1)

    def _read_members(self, members: Sequence[Example], example: Example) -> list[Pixels]:
        """Frames of a folder or archive, evenly spaced, one per file; a single array may hold all of them."""
        if not members:
            raise source_error(example, "has no frames in it (no images and no arrays)")
        if len(members) == 1 and has_npy_suffix(members[0].source):
            return self._read_array(read_content(members[0], self.search_paths), members[0])
        return [self._read_frame(members[i]) for i in evenly_spaced(len(members), self.frames)]

    def _read_frame(self, example: Example) -> Pixels:
        if not has_npy_suffix(example.source):
            return self.image.read(example)
        return self._resize_array(parse_array(read_content(example, self.search_paths), example), example)

    def _read_array(self, data: bytes, example: Example) -> list[Pixels]:
        array = parse_array(data, example)
        array = array[None] if array.ndim == 3 and array.shape[-1] == 3 else array
        if array.ndim not in (3, 4) or not len(array):
            raise source_error(example, f"is of shape {array.shape}, not (frames, height, width, 3)")
        return [self._resize_array(array[i], example) for i in evenly_spaced(len(array), self.frames)]

    def _resize_array(self, array: Pixels, example: Example) -> Pixels:
        """(h, w, 3) or gray (h, w) bytes → (H, W · 3) at the size; DataError for others"""
        if array.dtype != np.uint8 or array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[-1] != 3):
            raise source_error(
                example, f"has frames of {array.dtype} and shape {array.shape}, not (height, width, 3) bytes"
            )
        if not array.size:
            raise source_error(example, "has frames without a pixel")
        image: Image = import_pillow().Image.fromarray(array)
        return self.image.resize(image.convert("RGB"))

    def _read_animation(self, data: bytes, example: Example) -> list[Pixels]:
        """Frames of an animated image (GIF, WebP, PNG), evenly spaced; a still image is one frame."""
        pil = import_pillow()
        try:
            with pil.Image.open(io.BytesIO(data), formats=IMAGE_FORMATS) as file:
                count = int(getattr(file, "n_frames", 1))
                if file.width * file.height * count > MAX_ANIMATION_PIXELS:  # seeking decodes every frame before
                    raise ValueError(f"it has {count:,} × {file.width:,} × {file.height:,} pixels, too many")
                frames = []
                for i in evenly_spaced(count, self.frames):
                    file.seek(i)
                    frames.append(self.image.resize(to_rgb(file)))
                return frames
        except Exception as error:  # damaged files make Pillow raise all kinds of errors
            is_unknown = isinstance(error, pil.UnidentifiedImageError)  # its text shows a Python object
            remedy = "; put those of a video into a folder, say with `ffmpeg -i VIDEO FOLDER/%04d.png`"
            reason = remedy if is_unknown else f" ({error})"
            raise source_error(example, f"is no folder, archive, array or image of frames{reason}") from None

    def blank(self) -> Pixels:
        return np.zeros((1, self.width), np.uint8)

    def augment(self, x: Pixels, rng: np.random.Generator) -> Pixels:
        seed, image = int(rng.integers(2**63)), self.image
        frames = x.reshape(len(x), self.size, 3 * self.size)
        augmented = [image.augment(frame, np.random.default_rng(seed)) for frame in frames]
        return np.stack(augmented).reshape(x.shape)


def member_example(example: Example, name: str) -> Example:
    """The same example with a file inside the folder or archive that it names as its source."""
    return replace(example, source=f"{example.source.strip().rstrip('/')}/{name}")


def unzip_frames(data: bytes, max_frames: int, example: Example) -> list[Example]:
    """At most max_frames frames in the bytes of a .zip or .npz, as examples; the other members stay packed."""
    try:
        archive = archives.ZipArchive(io.BytesIO(data))
        if len(archive.sizes) > MAX_MEMBERS:
            raise ValueError(f"it has {len(archive.sizes):,} members; the limit is {MAX_MEMBERS:,}")
        names = select_frame_names(single_clip_frames(archive.folders))
        names = [names[i] for i in evenly_spaced(len(names), max_frames)] if names else []
        if sum(archive.sizes[name] for name in names) > MAX_UNZIPPED_BYTES:
            raise ValueError(f"its frames have more than {MAX_UNZIPPED_BYTES:,} bytes")
        return [replace(member_example(example, name), content=archive.read(name)) for name in names]
    except Exception as error:  # damaged archives raise all kinds of errors
        raise source_error(example, f"is not an archive that can be read ({error})") from None


def evenly_spaced(count: int, max_count: int) -> list[int]:
    """All indices below `count`, or max_count of them, evenly spaced from the first to the last."""
    indices: list[int] = np.linspace(0, count - 1, min(count, max_count)).round().astype(int).tolist()
    return indices


def list_frames(example: Example, search_paths: Sequence[str] = ()) -> list[str] | None:
    """The names of the frames in the folder or archive that a source names; None if it is neither."""
    name = example.source.strip().rstrip("/")
    try:
        for root in archives.candidate_roots(example, search_paths):
            members = _list_members(name, root)
            if members is not None:
                return select_frame_names(members)
    except OSError as error:  # a name that is too long, a folder without permission
        raise source_error(example, f"cannot be looked for ({error.strerror})") from None
    return None


def select_frame_names(names: Iterable[str]) -> list[str]:
    """The names of images and arrays, numbers sorted by value; hidden files are left out."""
    visible = (name for name in names if not PurePosixPath(name).name.startswith("."))
    return sorted((name for name in visible if name.lower().endswith((*IMAGE_SUFFIXES, ".npy"))), key=natural_sort_key)


def has_npy_suffix(name: str) -> bool:
    """Whether a name ends with .npy, in upper or lower case: .NPY must not pass a server's limits as an image."""
    return name.lower().endswith(".npy")


def natural_sort_key(name: str) -> list[tuple[float, str]]:
    """Sort names by the numbers in them: 9.png comes before 10.png, and both before a.png."""
    return [(int(part), "") if part.isdecimal() else (math.inf, part) for part in re.split(r"(\d+)", name) if part]


def _list_members(name: str, root: Path) -> list[str] | None:
    path = root / name
    if archives.is_archive(path):
        return single_clip_frames(archives.open_archive(path).folders)
    if path.is_dir():
        return [file.name for file in path.iterdir() if file.is_file()]
    member = archives.locate_member(name, root)
    return None if member is None else member[0].folders.get(member[1])


def single_clip_frames(folders: dict[str, list[str]]) -> list[str]:
    """The frames of an archive that is one clip: those at its top, or in the only folder with frames."""
    frames = {folder: selected for folder, names in folders.items() if (selected := select_frame_names(names))}
    if len(frames) == 1 and "" not in frames:
        ((folder, names),) = frames.items()
        return [f"{folder}/{name}" for name in names]
    return frames.get("", [])
