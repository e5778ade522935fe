"""An image as rows of pixels: (H, W · 3) bytes, red, green and blue for each pixel in turn.

    file ─Pillow→ upright RGB, on white ─resize so that the shorter side fits, crop the middle→ size × size

`augment`, one look in training: a random crop of 7/8 of each side or more, scaled back, brightness and contrast a
little up or down, and, with `flip`, left and right exchanged in half of the looks. Whatever is random comes from the
generator.

Grays of more than 8 bits are scaled to them. White is 65535 where the file has 16 bits; of 32-bit integers it is the
least of 255 and 65535 that none exceeds, of floats it is 1. Other numbers are refused: nobody knows their white.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from dragoman.core.errors import DataError, MissingExtra
from dragoman.core.types import Example
from dragoman.modalities.archives import content

if TYPE_CHECKING:
    from numpy.typing import NDArray

PIXELS = 89_000_000  # the most that is decoded: a small file may claim to be a huge picture; Pillow warns from there on
# No others are tried: some of Pillow's readers start other programs (EPS), and few know anyone's photos.
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM")
LEAST = 7 / 8  # of each side in a random crop


@dataclass(frozen=True)
class ImageModality:
    """Images of one size, read from files."""

    size: int = 128
    crop: bool = True  # the middle of the longer side; else both sides are squashed to the size
    augments: bool = field(default=True, repr=False)  # what the repr leaves out changes nothing of what is read
    flip: bool = field(default=False, repr=False)  # it would make left of right
    files: Sequence[str] = field(default=(), repr=False)

    kind, dtype = "image", "|u1"

    @property
    def width(self) -> int:
        return 3 * self.size

    def read(self, example: Example) -> NDArray[Any]:
        """(H, W · 3)"""
        data = content(example, self.files)
        pil = pillow()
        try:
            with pil.Image.open(io.BytesIO(data), formats=FORMATS) as file:
                if file.width * file.height > PIXELS:
                    raise ValueError(f"it has {file.width:,} × {file.height:,} pixels, too many")
                return self.pixels(upright(file))
        except Exception as error:  # damaged files make Pillow raise whatever its readers stumble over
            unknown = isinstance(error, pil.UnidentifiedImageError)  # whose text names an object of Python's
            reason = f"it is none of {', '.join(FORMATS)}" if unknown else error
            raise DataError(
                f"'{example.source}' is not an image that can be read ({reason})",
                example.file or None,
                example.line or None,
            ) from None

    def pixels(self, image: Any) -> NDArray[Any]:
        """A picture at the size wanted."""
        pil, side = pillow(), self.size
        if self.crop:
            image = pil.ImageOps.fit(image, (side, side), pil.Image.Resampling.BICUBIC)
        else:
            image = image.resize((side, side), pil.Image.Resampling.BICUBIC)
        return np.asarray(image, np.uint8).reshape(side, 3 * side)

    def blank(self) -> NDArray[Any]:
        return np.zeros((self.size, self.width), np.uint8)

    def augment(self, x: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
        """Another look at (H, W · 3) pixels."""
        pixels = x.reshape(self.size, self.size, 3)
        share = rng.uniform(LEAST, 1.0)
        side = max(1, round(share * self.size))
        top, left = rng.integers(0, self.size - side + 1, 2)
        # The nearest pixels of the crop: a picture of this size gains nothing from finer scaling.
        places = (np.arange(self.size) * side) // self.size
        rows, columns = top + places, left + places
        if self.flip and rng.random() < 0.5:
            columns = columns[::-1]
        contrast, brightness = rng.uniform(0.8, 1.2), rng.uniform(-25.0, 25.0)
        # What becomes of each of the 256 values, looked up: half the time of computing it for every pixel.
        light = (np.arange(256, dtype=np.float32) - 127.5) * contrast + 127.5 + brightness
        table = np.clip(light, 0, 255).astype(np.uint8)
        looked: NDArray[Any] = table.take(pixels.take(rows, 0).take(columns, 1)).reshape(x.shape)
        return looked

    def state(self) -> dict[str, bytes]:
        return {}


def upright(file: Any) -> Any:
    """A picture the right way up, in red, green and blue; what is transparent shows white paper."""
    pil = pillow()
    image = pil.ImageOps.exif_transpose(file)
    if image.mode.startswith(("I", "F")):  # Pillow would cut off all above 255
        bits = 16 if image.mode.startswith("I;16") or (image.mode, file.format) == ("I", "PPM") else 32
        return pil.Image.fromarray(gray(np.asarray(image), bits)).convert("RGB")
    if not image.has_transparency_data:
        return image.convert("RGB")
    image = image.convert("RGBA")
    return pil.Image.alpha_composite(pil.Image.new("RGBA", image.size, "white"), image).convert("RGB")


def gray(x: NDArray[Any], bits: int) -> NDArray[Any]:
    """Numbers of a file of 16 or 32 bits as bytes."""
    if bits == 16:
        return (x >> 8).astype(np.uint8)
    low, high, most = x.min(), x.max(), 1 if x.dtype.kind == "f" else 65535
    if not 0 <= low <= high <= most:  # nor is what is no number
        raise ValueError(f"its values are from {low:g} to {high:g}, not from 0 to {most}; save it with 8 or 16 bits")
    if most == 1:
        return (255 * x).round().astype(np.uint8)
    return (x if high <= 255 else x >> 8).astype(np.uint8)


def pillow() -> Any:
    try:
        import PIL
        import PIL.Image
        import PIL.ImageOps
    except ImportError:
        raise MissingExtra("pillow", "image", "reading images") from None
    return PIL
