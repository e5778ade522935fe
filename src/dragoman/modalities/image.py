"""Images as rows of pixels: (H, W · 3) bytes, red, green and blue of each pixel in turn.

    file ─Pillow→ upright RGB on white ─resize to the shorter side, crop the center→ size × size

`augment`: a random crop of at least 7/8 of each side, scaled back; small random changes of
brightness and contrast; with `flip`, a horizontal flip half of the time. All randomness comes from
the generator.

Gray images of more than 8 bits are scaled down to 8. White is 65535 in a 16-bit file; in 32-bit
integers it is 255 if no value exceeds that, else 65535; in floats it is 1. Other values are
refused, because their white is unknown.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from dragoman.core.errors import MissingExtra
from dragoman.core.types import Example
from dragoman.modalities.archives import read_content, source_error

if TYPE_CHECKING:
    from types import ModuleType

    from numpy.typing import NDArray
    from PIL.Image import Image

    Pixels = NDArray[np.uint8]  # (H, W · 3)

MAX_PIXELS = 89_000_000  # that are decoded: a small file may claim to be a huge image; Pillow warns from there on
IMAGE_FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM")  # other readers of Pillow start programs (EPS)
MIN_CROP = 7 / 8  # of each side in a random crop


@dataclass(frozen=True)
class ImageModality:
    """Image files, read as pixels of one size."""

    size: int = 128
    crop: bool = True  # the center of the longer side; else both sides are scaled to the size
    has_augmentation: bool = field(default=True, repr=False)  # repr=False: does not change what is read
    flip: bool = field(default=False, repr=False)  # it exchanges left and right
    search_paths: Sequence[str] = field(default=(), repr=False)

    kind, dtype = "image", "|u1"

    @property
    def width(self) -> int:
        return 3 * self.size

    def read(self, example: Example) -> Pixels:
        data = read_content(example, self.search_paths)
        pil = import_pillow()
        try:
            with pil.Image.open(io.BytesIO(data), formats=IMAGE_FORMATS) as file:
                if file.width * file.height > MAX_PIXELS:
                    raise ValueError(f"it has {file.width:,} × {file.height:,} pixels, too many")
                return self.resize(to_rgb(file))
        except Exception as error:  # damaged files make Pillow raise all kinds of errors
            is_unknown = isinstance(error, pil.UnidentifiedImageError)  # its text shows a Python object
            reason = f"it is none of {', '.join(IMAGE_FORMATS)}" if is_unknown else error
            raise source_error(example, f"is not an image that can be read ({reason})") from None

    def resize(self, image: Image) -> Pixels:
        """The (H, W · 3) pixels of an RGB image, cropped or stretched to the size."""
        pil, side = import_pillow(), self.size
        if self.crop:
            image = pil.ImageOps.fit(image, (side, side), pil.Image.Resampling.BICUBIC)
        else:
            image = image.resize((side, side), pil.Image.Resampling.BICUBIC)
        return np.asarray(image, np.uint8).reshape(side, 3 * side)

    def blank(self) -> Pixels:
        return np.zeros((self.size, self.width), np.uint8)

    def augment(self, x: Pixels, rng: np.random.Generator) -> Pixels:
        pixels = x.reshape(self.size, self.size, 3)
        share = rng.uniform(MIN_CROP, 1.0)
        side = max(1, round(share * self.size))
        top, left = rng.integers(0, self.size - side + 1, 2)
        # Nearest pixels of the crop: an image of this size gains nothing from finer scaling.
        offsets = (np.arange(self.size) * side) // self.size
        rows, columns = top + offsets, left + offsets
        if self.flip and rng.random() < 0.5:
            columns = columns[::-1]
        contrast, brightness = rng.uniform(0.8, 1.2), rng.uniform(-25.0, 25.0)
        # A table of the 256 new values takes half the time of computing them for every pixel.
        light = (np.arange(256, dtype=np.float32) - 127.5) * contrast + 127.5 + brightness
        table = np.clip(light, 0, 255).astype(np.uint8)
        changed: Pixels = table.take(pixels.take(rows, 0).take(columns, 1)).reshape(x.shape)
        return changed


def to_rgb(file: Image) -> Image:
    """An open image, turned upright and converted to RGB; transparent parts become white."""
    pil = import_pillow()
    image: Image = pil.ImageOps.exif_transpose(file)
    if image.mode.startswith(("I", "F")):  # Pillow would cut off all above 255
        bits = 16 if image.mode.startswith("I;16") or (image.mode, file.format) == ("I", "PPM") else 32
        gray: Image = pil.Image.fromarray(to_8_bit(np.asarray(image), bits))
        return gray.convert("RGB")
    if not image.has_transparency_data:
        return image.convert("RGB")
    image = image.convert("RGBA")
    on_white: Image = pil.Image.alpha_composite(pil.Image.new("RGBA", image.size, "white"), image)
    return on_white.convert("RGB")


def to_8_bit(x: NDArray[Any], bits: int) -> NDArray[np.uint8]:
    """Gray values of 16 or 32 bits, scaled to 8 bits; ValueError if their range is unknown."""
    if bits == 16:
        return (x >> 8).astype(np.uint8)
    low, high, white = x.min(), x.max(), 1 if x.dtype.kind == "f" else 65535
    if not 0 <= low <= high <= white:  # false for NaN, too
        raise ValueError(f"its values are from {low:g} to {high:g}, not from 0 to {white}; save it with 8 or 16 bits")
    if white == 1:
        return (255 * x).round().astype(np.uint8)
    return (x if high <= 255 else x >> 8).astype(np.uint8)


def import_pillow() -> ModuleType:
    """The Pillow library; MissingExtra if it is not installed."""
    try:
        import PIL
        import PIL.Image
        import PIL.ImageOps
    except ImportError:
        raise MissingExtra("pillow", "image", "reading and drawing images") from None
    return PIL
